"""The means of what a run logs, and its log file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...files import replacing
from ..tensors import is_tensor

FORMAT = 1
OWN = ("epoch", "step", "samples", "seconds", "lr")  # what a run writes into its records itself


class Means:
    """Means over the samples of all ranks since the last record, of values by name.

    Every rank adds up its values, each times its number of samples. The ranks' sums are added exactly and rounded once
    (``math.fsum``), so the means have the same bits on all ranks, and in all runs with as many ranks.
    """

    def __init__(self) -> None:
        self.samples = 0  # of this rank
        self._sums: dict[str, list[float]] = {}  # name: [sum of value * samples, samples]

    def add(self, values: Mapping[str, Any], samples: int) -> None:
        """Add `values`, each a mean over `samples` samples of this rank. ValueError for a name of `OWN`."""
        for key, value in values.items():
            check_name(key)
            total = self._sums.setdefault(key, [0.0, 0.0])
            if samples:
                total[0] += float(value.detach() if is_tensor(value) else value) * samples
                total[1] += samples

    def reduce(self, comm: Any) -> tuple[int, dict[str, float]]:
        """The samples of all ranks and the means of the values, and begin anew. Collective.

        A value without samples is nan. ValueError on all ranks if the ranks have logged different names; one that has
        had no step may have logged nothing.
        """
        every = comm.allgather((self.samples, self._sums))
        self.samples, self._sums = 0, {}
        logged = {rank: sums for rank, (samples, sums) in enumerate(every) if samples or sums}
        first = min(logged, default=0)
        for rank, sums in logged.items():
            if sums.keys() != logged[first].keys():
                raise ValueError(f"rank {rank} has logged {sorted(sums)}, rank {first} {sorted(logged[first])}")
        means = {}
        for key in sorted(logged.get(first, {})):
            total, count = (math.fsum(sums[key][i] for sums in logged.values()) for i in (0, 1))
            means[key] = total / count if count else math.nan
        return sum(samples for samples, _ in every), means

    def state_dict(self) -> dict[str, Any]:
        """What this rank has added up since the last record."""
        return {"samples": self.samples, "sums": {key: list(total) for key, total in self._sums.items()}}

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Begin with the sums of `states`: this rank's, or on one rank those of all."""
        self.samples = sum(state["samples"] for state in states)
        self._sums = {
            key: [math.fsum(state["sums"][key][i] for state in states if key in state["sums"]) for i in (0, 1)]
            for key in dict.fromkeys(key for state in states for key in state["sums"])
        }


def check_name(name: Any) -> None:
    """TypeError if `name` cannot be that of a value in a record, ValueError if it is one of `OWN`."""
    if not isinstance(name, str):
        raise TypeError(f"values of a record are named by texts, not by {name!r}")
    if name in OWN:
        raise ValueError(f"{name!r} is a value of the record that the run sets itself; choose another name")


def numbers(found: Any) -> dict[str, float | int]:
    """What an evaluation has found, as Python's numbers. TypeError for what is no dict of numbers, ValueError for a
    name of `OWN`."""
    if not isinstance(found, Mapping):
        raise TypeError(f"evaluate returns a dict of numbers, not {found!r}")
    return {key: _number(key, value) for key, value in found.items()}


def _number(name: Any, value: Any) -> float | int:
    check_name(name)
    plain = value.item() if getattr(value, "size", None) == 1 or is_tensor(value) and value.numel() == 1 else value
    if not isinstance(plain, int | float):
        raise TypeError(f"evaluate returns a dict of numbers; {name!r} is {value!r}")
    return plain


def read_log(path: str | Path) -> dict[str, Any]:
    """The contents of a ``log.json``: ``{"format": 1, "runs": {name: {"ranks", "settings", "records"}}}``.

    Raises OSError for a file that cannot be read, ValueError for a file that is no such log.
    """
    try:
        log = json.loads(Path(path).read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(log, dict) or log.get("format") != FORMAT or not isinstance(log.get("runs"), dict):
        raise ValueError(f"{path} is not a training log of format {FORMAT}")
    return log


def write_log(path: Path, name: str, run: dict[str, Any]) -> None:
    """Write a run into the log beside the runs of other names. A reader never sees an incomplete file."""
    log: dict[str, Any] = read_log(path) if path.exists() else {"format": FORMAT, "runs": {}}
    log["runs"][name] = run
    with replacing(path) as file:
        file.write(json.dumps(log, indent=1) + "\n")
