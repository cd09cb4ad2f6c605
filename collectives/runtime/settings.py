"""The settings of a communicator, which rank 0 reads from its environment for all ranks."""

from __future__ import annotations

import os
from typing import NamedTuple

from ..arguments.timeouts import stall_from_environment, timeout_from_environment
from ..errors import CollectiveError, brief
from ..selection import table as tuning
from ..selection.policy import Rules
from ..system import machine, mpi_library
from ..trace import recording

__all__ = ["Agreed", "agreed"]


class Agreed(NamedTuple):
    """The settings that rank 0's environment gives to all ranks of a communicator."""

    forced: dict[str, str]  # algorithm asked for, by collective
    table: tuning.Table | None
    timeout: float | None
    stall: float | None  # seconds after which a wait without a timeout is reported
    checked: bool  # whether ranks compare each call before they make it
    timeline: tuple[str | None, int]  # file name, and the number of events it has room for


def agreed() -> Agreed | Exception:
    """The settings of this process's environment, or the exception that all ranks are to raise if there are none."""
    check = os.environ.get("COLLECTIVES_CHECK", "0")
    if check not in ("", "0", "1"):
        return ValueError(f"COLLECTIVES_CHECK={check!r}: expected 0 or 1")
    try:
        forced = Rules.from_environment().forced
        table = tuning.from_environment(machine.kind(), mpi_library.description())
        limits = timeout_from_environment(), stall_from_environment()
        return Agreed(forced, table, *limits, check == "1", recording.from_environment())
    except ValueError as e:
        return e
    except Exception as e:  # the other ranks wait for an answer, whatever happens here
        return CollectiveError(f"rank 0 cannot read its settings: {brief(e)}")
