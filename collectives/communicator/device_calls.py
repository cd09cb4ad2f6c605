"""Blocking calls on arrays of a GPU: checked like those on arrays of the host, then run by :mod:`collectives.cuda`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..arguments.buffers import in_place
from ..arguments.calls import Arguments, Collective, Draft, Options
from ..arguments.memory import OnDevice, memory_of
from ..arguments.shape import Shape
from ..core import _core
from ..cuda import driver
from ..cuda.arrays import Array, array_of, stream_of
from ..cuda.lanes import lane_of
from ..cuda.ordering import Order
from ..cuda.staging import ALL, Side, Staging, pieces
from ..errors import CollectiveMismatch
from ..runtime.mpi_context import MPIContext
from ..selection.policy import Choice
from . import device_direct, device_peers

__all__ = ["Checked", "foresee", "prepared", "run", "run_checked", "run_draft"]

#: Collectives with a block for each rank on the side of the input, and on that of the result.
_SOURCE_BLOCKS = ("scatter", "alltoall", "reduce_scatter")
_TARGET_BLOCKS = ("gather", "allgather", "alltoall")
#: What may be the reason of a mismatch.
PIECES = "(on a GPU this call has {} pieces, so all ranks must pass arrays on GPUs, or none: docs/gpu.md)"


@dataclass
class Checked:
    """A checked call: a draft on the addresses of the arrays, and its two sides."""

    draft: Draft
    source: Side | None
    target: Side | None
    reads: bool
    writes: bool


def prepared(
    comm: Any, context: MPIContext, collective: Collective, arguments: Arguments, options: Options, found: OnDevice
) -> tuple[Checked, Callable[[], Order]]:  # fmt: skip
    """A checked call, in whose arguments an array on a GPU was ``found``, and a function that makes its order.

    TypeError or ValueError if the call cannot be served.
    """
    why = driver.why_not()
    if why is not None:
        raise TypeError(f"{found}: {why}")
    if options.algorithm == "mpi":
        raise TypeError(f"{found} with algorithm 'mpi'")
    stream = None if options.stream is None else stream_of(options.stream)
    placed, arrays = _placed(collective, arguments, context)
    call = _call(comm._draft(context, collective, placed, options.timeout), in_place(placed.sendbuf), arrays, context)
    used = [array for array in arrays.values() if array.nbytes]  # others need no order, and may be of another GPU
    lane = lane_of(_device(used or list(arrays.values())))
    return call, functools.partial(Order, lane, used, stream if used else None)


def run(
    comm: Any, context: MPIContext, collective: Collective, arguments: Arguments, options: Options, found: OnDevice
) -> None:  # fmt: skip
    """Run a blocking call of a communicator, whose check has ``found`` an array on a GPU; this thread has the turn."""
    tick = _core.ticks()
    call, make_order = prepared(comm, context, collective, arguments, options, found)
    _run(comm, context, call, options, make_order(), tick)


def run_checked(comm: Any, call: Checked, options: Options, order: Order) -> None:
    """Run a blocking call that :func:`prepared` has checked, for a communicator of which ``comm`` is a duplicate."""
    tick, context = _core.ticks(), comm._enter()
    with context.in_turn():
        _run(comm, context, call, options, order, tick)


def run_draft(comm: Any, draft: Draft, number: int, stream: int, timeout: float | None) -> None:
    """Run a blocking call whose arguments are checked, on memory of the GPU ``number`` in the order of ``stream``."""
    tick, context = _core.ticks(), comm._enter()
    why = driver.why_not()
    if why is not None:
        raise TypeError(f"arrays on GPU {number}: {why}")
    call = _call(draft, draft.shape.in_place, ("source", "target"), context)
    order = Order(lane_of(number), [], stream)
    with context.in_turn():
        _run(comm, context, call, Options(timeout=timeout), order, tick)


def _run(comm: Any, context: MPIContext, call: Checked, options: Options, order: Order, tick: int) -> None:
    """Run a checked call by the way that is there for it; this thread has the turn."""
    draft, begun = call.draft, context.begun
    timeout = context.timeout if options.timeout is None else options.timeout
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        if device_peers.may_serve(context, draft, options) and device_peers.run(
            comm, context, draft, (call.source, call.target), order, deadline
        ):
            name = "peers"
        elif _direct(comm, context, call, options, order, deadline):
            name = "direct"
        else:
            name = _stage(comm, context, call, options, order, deadline)
    except BaseException as e:
        if context.begun != begun and context.broken is None:
            context.torn(draft.collective.name, e)
        raise
    context.ended(draft.collective.name, name, draft.nbytes, draft.shape.root, tick)


def _direct(
    comm: Any, context: MPIContext, call: Checked, options: Options, order: Order, deadline: float | None
) -> bool:  # fmt: skip
    """Make a call by an MPI that takes addresses on GPUs; False, on all ranks, if it must go through the host."""
    draft = call.draft
    if context.apart is None or context.gpu is not None and context.gpu.why is not None:
        return False
    choice = device_direct.choice_for(comm, context, draft, options)
    if choice is None:
        return False
    if context.gpu is None:
        context.gpu = device_direct.Direct(order.lane, device_peers.Gather(comm, context), deadline)
        if context.gpu.why is not None:
            return False
    able = order.lane is context.gpu.lane and not draft.loads and not draft.stores
    able = able and all(side is None or side.on_device for side in (call.source, call.target))
    return device_direct.run(context, draft, able, choice, order, deadline)


def _stage(
    comm: Any, context: MPIContext, call: Checked, options: Options, order: Order, deadline: float | None
) -> str:  # fmt: skip
    """Run a call through the host, in pieces, by an algorithm chosen for the whole; its name."""
    draft = call.draft
    choice = comm._choose(draft, options, options.algorithm, mpi="never")

    def serve(source: int, target: int, begin: int, end: int) -> None:
        part = _part(draft, source, target, begin, end, context.size)
        left = None if deadline is None else max(1e-3, deadline - time.monotonic())
        comm._run_parts(part, choice, replace(options, timeout=left))

    staging = Staging(
        order, call.source, call.target, reads=call.reads, writes=call.writes, deadline=deadline
    )  # fmt: skip
    cuts = _cuts(draft.collective, draft.shape.nbytes, draft.shape.itemsize, context.size)
    try:
        staging.run(cuts, serve)
    except CollectiveMismatch as e:
        if len(cuts) > 1:
            e.args = (f"{e}\n  {PIECES.format(len(cuts))}",)
        raise
    name: str = choice.algorithm.name
    return name


def foresee(comm: Any, context: MPIContext, draft: Draft, choice: Choice) -> str:
    """What ``explain`` says of a call on arrays of GPUs for which an algorithm of the host would be the ``choice``."""
    why = driver.why_not()
    if why is not None:
        return f"none, since {why}; with a GPU {choice}"
    peers, staged = device_peers.foresee(context, draft)
    schedule = device_direct.choice_for(comm, context, draft, Options())
    if schedule is not None:
        peers, staged = device_direct.foresee(context, schedule)
    if not staged:
        return peers
    number = len(_cuts(draft.collective, draft.shape.nbytes, draft.shape.itemsize, context.size))
    several = f"{number} piece{'s' * (number > 1)}"
    staging = f"staging through pinned memory of the host in {several}, served by {choice}"
    return f"{staging} {peers}" if peers.startswith("(") else f"{peers}{staging}"


def _placed(
    collective: Collective, arguments: Arguments, context: MPIContext
) -> tuple[Arguments, dict[str, Array]]:  # fmt: skip
    """The arguments with the places of arrays on a GPU instead of the arrays, and these arrays."""
    arrays: dict[str, Array] = {}
    root = arguments.root == context.rank

    def replaced(spec: Any, side: str, argument: str, writable: bool) -> Any:
        thing = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
        try:
            memory_of(thing, None, argument, writable)
        except OnDevice:
            arrays[side] = array_of(thing, argument, writable)
        except (TypeError, ValueError):
            pass  # the check of the call says what is wrong, if the argument matters on this rank
        if side not in arrays:
            return spec
        return arrays[side].memory if spec is thing else [arrays[side].memory, *spec[1:]]

    bcast = collective.name == "bcast"
    sends = root or collective.name not in ("scatter", "scatterv")
    send = arguments.sendbuf
    if sends:
        send = replaced(send, "source", "buf" if bcast else "sendbuf", bcast and not root)
    receives = not bcast and (root or collective.name not in ("reduce", "gather", "gatherv"))
    recv = replaced(arguments.recvbuf, "target", "recvbuf", True) if receives else arguments.recvbuf
    return replace(arguments, sendbuf=send, recvbuf=recv), arrays


def _device(arrays: Sequence[Array]) -> int:
    """The number of the GPU whose arrays these are; ValueError if there are several."""
    numbers = {array.device for array in arrays} or {0}
    if len(numbers) > 1:
        raise ValueError(f"sendbuf and recvbuf are on different GPUs, {' and '.join(map(str, sorted(numbers)))}")
    return numbers.pop()


def _call(draft: Draft, same: bool, on_gpu: Collection[str], context: MPIContext) -> Checked:
    """The sides of a call, of which those named in ``on_gpu`` are on a GPU; ``same``: the call is in place.

    TypeError for what only a copy by the host could serve: elements or blocks with gaps.
    """
    rank, root, collective = context.rank, draft.shape.root == context.rank, draft.collective
    spare_input = same and collective.base == "alltoall"  # of in-place calls whose blocks arrive in the way
    spare_result = same and collective.base == "reduce_scatter"
    if len(draft.loads) > spare_input or len(draft.stores) > spare_result:
        raise TypeError("sendbuf, recvbuf: elements or blocks with gaps between them, on a GPU")
    if draft.obstacle is not None:
        raise TypeError(f"arrays on a GPU: {draft.obstacle}")
    lengths = _lengths(draft, rank, context.size)
    inward = "target" if same and collective.base not in ("bcast", "scatter") else "source"
    outward = "source" if collective.base == "bcast" else "target"
    source = _side(draft.target if spare_input else draft.source, lengths[0], inward in on_gpu)
    if draft.source == draft.target and lengths[0] == lengths[1] and not spare_input:
        target = source
    else:
        target = _side(draft.source if spare_result else draft.target, lengths[1], outward in on_gpu)
    reads = collective.base != "bcast" or root
    writes = not (collective.base == "bcast" and root or collective.name == "exscan" and rank == 0)
    return Checked(draft, source, target, reads, writes)


def _side(address: int, lengths: tuple[int, int], on_device: bool) -> Side | None:
    return Side(address, *lengths, on_device) if address and lengths[1] else None


def _blocks(base: str, size: int) -> int:
    """Number of blocks that the vector of a collective has."""
    return size if base in _SOURCE_BLOCKS or base in _TARGET_BLOCKS else 1


def _lengths(draft: Draft, rank: int, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Number of blocks and bytes of a block, of the input and of the result; blocks of different lengths are one."""
    shape, base = draft.shape, draft.collective.base
    inward, outward = base in _SOURCE_BLOCKS, base in _TARGET_BLOCKS
    if shape.cuts is None:
        block = shape.nbytes // _blocks(base, size)
        return (size if inward else 1, block), (size if outward else 1, block)
    mine = (shape.cuts[rank + 1] - shape.cuts[rank]) * shape.itemsize
    whole = (shape.input_cuts or shape.cuts)[-1] * shape.itemsize, shape.cuts[-1] * shape.itemsize
    return (1, whole[0] if inward else mine), (1, whole[1] if outward else mine)


def _cuts(collective: Collective, nbytes: int, itemsize: int, size: int) -> list[tuple[int, int]]:
    """The pieces of a call with a vector of ``nbytes`` bytes, as bytes of a block.

    All ranks must make the same pieces. So a call with a root has one, since other ranks may have no array on a GPU, or
    no array at all. Calls with blocks of different lengths have one too.
    """
    if collective.rooted or collective.vector:
        return [(0, ALL)]
    blocks = _blocks(collective.base, size)
    return pieces(nbytes // blocks, blocks, itemsize)


def _part(draft: Draft, source: int, target: int, begin: int, end: int, size: int) -> Draft:
    """The call on the piece from ``begin`` to ``end``, at these addresses of host memory."""
    shape: Shape = draft.shape._replace(in_place=source == target != 0 or draft.collective.base == "bcast")
    if end != ALL:
        shape = shape._replace(elements=_blocks(draft.collective.base, size) * ((end - begin) // shape.itemsize))
    return replace(
        draft, shape=shape, source=source, target=target, agreed=shape.nbytes if draft.collective.agreed else 0,
        loads=[], stores=[], spare=None,
    )  # fmt: skip
