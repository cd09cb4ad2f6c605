"""The pipeline schedules by name, for command lines. A new schedule needs one line here."""

from __future__ import annotations

from .gpipe import GPipe
from .instructions import PipelineSchedule
from .one_f_one_b import OneFOneB

__all__ = ["SCHEDULES", "find"]

SCHEDULES: dict[str, type[PipelineSchedule]] = {kind.name: kind for kind in (GPipe, OneFOneB)}


def find(name: str) -> type[PipelineSchedule]:
    """The class of the schedule `name`. ValueError, which lists the names, if there is none."""
    if name not in SCHEDULES:
        raise ValueError(f"unknown pipeline schedule {name!r}; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[name]
