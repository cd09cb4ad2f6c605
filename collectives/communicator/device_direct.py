"""Calls on arrays of GPUs between nodes, by an MPI that takes their addresses: schedules run on the GPU's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments.calls import Draft, Options
from ..core import _cuda
from ..cuda import proof
from ..cuda.direct import DeviceSpace, Endpoint
from ..cuda.lanes import Lane
from ..cuda.moves import ROUNDS
from ..cuda.ordering import Order
from ..cuda.peers import LEAST, REASON, Sync, first_of, why_not_here
from ..runtime.mpi_context import MPIContext
from ..schedules.registry import ScheduleAlgorithm, find
from ..selection.policy import Choice

__all__ = ["Direct", "choice_for", "foresee", "run"]

_APART = "schedules run on the GPU"


class Direct:
    """What a communicator keeps for its calls: why a rank's MPI takes no addresses on GPUs, or None; collective."""

    def __init__(self, lane: Lane, gather: Any, deadline: float | None):
        self.lane, self.gather = lane, gather
        why = why_not_here() or proof.why_not(lane.driver.library, lane.number)
        with lane:
            kernels = lane.kernels()
        why = why or (kernels if isinstance(kernels, str) else None)
        self.why = first_of(Sync(gather, deadline)(np.array([(why or "").encode()[:100]], REASON)))

    def leave(self) -> None:
        """Nothing belongs to other ranks."""

    free = leave


def choice_for(comm: Any, context: MPIContext, draft: Draft, options: Options) -> Choice | None:
    """The schedule of a call that need not go through the host, as far as all ranks know; None if it must."""
    shape = draft.shape
    if context.apart is None or context.size < 2 or options.engine is not None:
        return None
    if draft.collective.base not in ROUNDS or not draft.collective.agreed or shape.nbytes < LEAST:
        return None
    if draft.collective.reduces and (not isinstance(shape.op, int) or _cuda.no_kernel(shape.dtype, shape.op)):
        return None
    named = options.algorithm or context.rules.forced_for(draft.collective.name)
    if named is not None and not isinstance(find(draft.collective.name, named), ScheduleAlgorithm):
        return None
    choice: Choice = comm._choose(draft, options, options.algorithm, _APART, mpi="never")
    if not isinstance(choice.algorithm, ScheduleAlgorithm) or comm._form(draft, choice, options) is not None:
        return None
    return choice


def run(
    context: MPIContext, draft: Draft, able: bool, choice: Choice, order: Order, deadline: float | None
) -> bool:  # fmt: skip
    """Make a call by the schedule of ``choice``; False, on all ranks, if one of them is not ``able`` to."""
    sync = Sync(context.gpu.gather, deadline)
    aligned = (draft.source | draft.target) % draft.shape.itemsize == 0
    if not sync(np.array([able and aligned], np.uint8)).all():
        return False
    space = DeviceSpace(order.lane, deadline)
    with context.walking(draft.collective.name):
        plan, walk = context.begin_walk(choice, draft, Endpoint(context.internal, space), space)
        with order.lane:
            order.follow(space.stream)
            context.end_walk(plan, walk, sync.left())
            order.lead(space.stream, deadline)
            space.end()
    return True


def foresee(context: MPIContext, choice: Choice) -> tuple[str, bool]:
    """What ``explain`` says of the schedule of ``choice``, and whether the call may go through the host."""
    if context.gpu is None:
        return f"direct by MPI, {choice}, if the first such call finds that MPI takes arrays on GPUs; else ", True
    if context.gpu.why is None:
        return f"direct by MPI, {choice}", False
    return f"(not direct by MPI, since {context.gpu.why})", True
