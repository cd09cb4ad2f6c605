"""The pipeline schedules by name, for command lines. A new schedule needs one line here."""

from __future__ import annotations

from .gpipe import GPipe
from .instructions import PipelineSchedule
from .interleaved_1f1b import Interleaved1F1B
from .one_f_one_b import OneFOneB
from .pipedream import PipeDream
from .pipedream_2bw import PipeDream2BW
from .zero_bubble import ZeroBubble

__all__ = ["SCHEDULES", "find"]

#: All schedules by name.
SCHEDULES: dict[str, type[PipelineSchedule]] = {
    schedule.name: schedule for schedule in (GPipe, OneFOneB, Interleaved1F1B, ZeroBubble, PipeDream, PipeDream2BW)
}


def find(name: str) -> type[PipelineSchedule]:
    """The class of the schedule ``name``. ValueError, which lists the names, if there is none."""
    if name not in SCHEDULES:
        raise ValueError(f"unknown pipeline schedule {name!r}; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[name]
