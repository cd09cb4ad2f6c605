"""A picture of a run: greedy returns on the way, and the bytes of each path for an environment step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..drawing import figure, save


def check_picture(path: str) -> None:
    """Raise ValueError if the ending of `path` is that of no kind of picture. ImportError without matplotlib."""
    kinds = figure(1, 1).canvas.get_supported_filetypes()
    kind = os.path.splitext(path)[1][1:].lower()
    if kind and kind not in kinds:
        raise ValueError(f"cannot draw {path}: pictures end with .{', .'.join(sorted(kinds))}")


def draw(results: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draw `results`, as ``--json`` has them, to `path`. ImportError without matplotlib, OSError as ``open``."""
    made = figure(11, 4)
    left, right = made.subplots(1, 2)
    names = []
    for number, result in enumerate(results):
        label = f"{result['algorithm']}, {result['ranks']} rank{'s' if result['ranks'] > 1 else ''}"
        trials = result["trials"]
        left.plot(
            [trial["env_steps"] for trial in trials], [trial["mean_return"] for trial in trials], "o-", label=label
        )
        for name, count in sorted(result["bytes"].items()):
            names.append(f"{result['algorithm']}: {name}")
            bar = right.barh(len(names) - 1, count / max(1, result["counted_steps"]), color=f"C{number}")
            right.bar_label(bar, fmt=" %.3g")
    left.set(xlabel="environment steps", ylabel="mean greedy return", title=results[0]["env"])
    left.legend()
    left.set_xlim(left=0)
    left.grid(alpha=0.3)
    right.set_yticks(range(len(names)), names)
    right.invert_yaxis()
    right.set(xlabel="bytes for each environment step", title="on the wire")
    if names:
        right.set_xscale("log")
        right.margins(x=0.2)
    else:
        right.set_axis_off()
        right.text(0.5, 0.5, "nothing is sent", ha="center", va="center", transform=right.transAxes)
    made.tight_layout()
    save(made, path)
