"""What ``advise.py`` and its ranks agree on: the network, and the configurations by name."""

from __future__ import annotations

import re

from collectives.advise.plan import Mesh, Plan

BLOCKS, WIDTH, HIDDEN, BATCH = 8, 960, 32, 128
#: Lengths of the axes data, pipeline and tensor, rows of a micro-batch, and settings.
ROWS = (
    "8x1x1 16", "8x1x1 16 zero1", "4x1x2 16", "4x1x2 32 recompute", "2x1x4 16", "1x1x8 16", "4x2x1 16", "2x4x1 16",
    "2x4x1 8 gpipe", "2x4x1 16 zero_bubble", "2x4x1 16 interleaved_1f1b:2", "2x4x1 16 recompute", "1x8x1 16",
    "1x8x1 8 zero_bubble", "2x2x2 16", "1x4x2 16", "1x2x4 16",
)  # fmt: skip
FORM = re.compile(r"(\d)x(\d)x(\d) (\d+)(?: (gpipe|zero_bubble|interleaved_1f1b:\d|recompute|zero1))?")


def of(name: str) -> Plan:
    """The plan that a name such as ``2x4x1 16 gpipe`` stands for; ValueError for other texts."""
    found = FORM.fullmatch(name)
    if not found:
        raise ValueError(f"{name!r} is not a configuration such as '{ROWS[0]}' or '{ROWS[8]}'")
    data, pipeline, tensor, rows = map(int, found.groups()[:4])
    word = found[5] or ""
    schedule, _, chunks = word.partition(":") if word not in ("", "recompute", "zero1") else ("1f1b", "", "")
    return Plan(
        Mesh(data, pipeline, tensor), rows, BATCH // data // rows, schedule, int(chunks or 1),
        "stage" if word == "recompute" else "none", int(word == "zero1"),
    )  # fmt: skip
