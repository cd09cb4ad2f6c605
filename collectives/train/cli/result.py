"""What a training has found, as the values of ``--json``."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from ...files import replacing, unwritable
from ..mesh import AXES
from ..models.nn import Sequential
from ..pipeline.report import Report
from ..traffic import Traffic
from .plan import Plan

FOUND = ("accuracy", "seconds", "steps", "samples")


def values(
    strategy: str, seed: int, found: Mapping[str, Any], traffic: Traffic, net: Sequential, comm: Any,
    stopped: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The values of ``--json``, whole on rank 0. `found` has those of `FOUND`, as far as there are any. Collective."""
    return {
        "strategy": strategy,
        "ranks": comm.size,
        "seed": seed,
        **{key: found.get(key) for key in FOUND},
        "bytes_sent": comm.gather(traffic.bytes, root=0),
        "weights_sha256": sha256(net),
        "stopped": stopped,
    }


def of_mesh(plan: Plan, report: Report | None) -> dict[str, Any]:
    """The values of ``--json`` about a mesh, and about this rank's pipeline if there is any."""
    found: dict[str, Any] = {
        "mesh": {axis: plan.shape[axis] for axis in reversed(AXES)},
        "pipeline": None, "micro_batches": None, "bubble": None, "activation_bytes": None,
    }  # fmt: skip
    if plan.schedule is not None and report is not None:
        found["pipeline"], found["micro_batches"] = plan.schedule.name, plan.micro_batches
        found["bubble"] = {"measured": report.bubble, "formula": report.predicted}
        found["activation_bytes"] = report.activation_bytes
    return found


def check_json(path: str | None) -> None:
    """OSError if the file of ``--json`` cannot be written."""
    if (why := unwritable([path])) is not None:
        raise OSError(why)


def write_json(path: str, values: Any) -> None:
    """Write the file of ``--json`` whole, or not at all. JSON has no numbers that are not finite: they become null."""
    with replacing(path) as file:
        file.write(json.dumps(_finite(values), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sha256(net: Sequential) -> str:
    """The SHA-256 of the parameters of `net`, in their order."""
    digest = hashlib.sha256()
    for parameter in net.parameters():
        digest.update(parameter.data.tobytes())
    return digest.hexdigest()
