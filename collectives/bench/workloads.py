"""The buffers of one collective call on this rank, the call in its three forms, and the check of its result.

Works with every communicator that has mpi4py's methods, so that this library and plain MPI are timed on equal calls.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arguments.buffers import REPRODUCIBLE_SUM
from ..arguments.calls import COLLECTIVES
from .operands import Fold, check_dtype, difference, fold, operand
from .programs import messages_of

__all__ = [
    "Plan", "Workload", "blocks", "footprint", "in_turn", "lengths", "page_aligned", "typed", "usable_count",
]  # fmt: skip

PAGE = 4096
CHUNK = 1 << 14  # elements that are made or compared at a time, so that temporaries stay in the cache
FORMS = ("call", "start", "plan")

_FOLDS: list[tuple[Any, Fold]] = [
    (MPI.SUM, np.add), (MPI.MAX, np.maximum), (MPI.MIN, np.minimum), (REPRODUCIBLE_SUM, np.add),
]  # fmt: skip
_ONE_PLACE = ("barrier", "bcast")  # collectives without an in-place form


def blocks(count: int, size: int) -> list[int]:
    """Elements of each rank's block in a reduce-scatter of ``count`` elements; the first ranks may have one more."""
    return [count // size + (rank < count % size) for rank in range(size)]


def lengths(collective: str, count: int, rank: int, size: int, root: int = 0) -> tuple[int, int]:
    """Elements that a rank sends and receives, where ``count`` is the message of the OSU benchmarks:

    ====================================  ===========================================================
    barrier                               nothing: 0
    bcast, reduce, allreduce, (ex)scan    the vector
    allgather(v), gather(v), scatter(v)   the block of one rank (OMB gives all blocks one length)
    alltoall(v)                           what one rank sends to one other
    reduce_scatter, reduce_scatter_block  the whole vector, of which a rank receives its block
    ====================================  ===========================================================

    The root of a broadcast also counts the vector as received.
    """
    match COLLECTIVES[collective].base:
        case "barrier":
            return 0, 0
        case "bcast":
            return 0, count
        case "reduce":
            return count, count * (rank == root)
        case "allgather":
            return count, count * size
        case "gather":
            return count, count * size * (rank == root)
        case "scatter":
            return count * size * (rank == root), count
        case "alltoall":
            return count * size, count * size
        case "reduce_scatter":
            return count, blocks(count, size)[rank]
        case _:  # allreduce and the scans
            return count, count


def usable_count(collective: str, count: int, size: int) -> int:
    """The largest number of elements up to ``count`` that the collective allows: a reduce_scatter_block needs blocks
    of equal length."""
    return count // size * size if collective == "reduce_scatter_block" else count


def footprint(collective: str, count: int, itemsize: int, size: int, *, in_place: bool = False, rotate: int = 1) -> int:
    """Bytes of the buffers on the rank that needs most: whole pages for input and output, times ``rotate``."""
    both = lengths(collective, count, 0, size)
    parts = (max(both),) if in_place else both
    return rotate * sum(-(-n * itemsize // PAGE) * PAGE for n in parts)


def page_aligned(count: int, dtype: np.dtype, empty: Callable[..., np.ndarray] = np.empty) -> np.ndarray:
    """An array of ``count`` elements that begins on a page; ``empty`` allocates its memory."""
    nbytes = count * dtype.itemsize
    raw = empty(nbytes + PAGE, np.uint8)
    start = -raw.__array_interface__["data"][0] % PAGE
    return raw[start : start + nbytes].view(dtype)


class Workload:
    """The buffers of a collective call on this rank, filled with data, and the call.

    ``comm`` is any communicator with mpi4py's methods. ``collective`` is a name in
    :data:`collectives.arguments.calls.COLLECTIVES`. ``count`` is as in :func:`lengths`. ``dtype`` is an integer type,
    float16, bfloat16, float32 or float64. ``op`` is SUM (default), MAX, MIN or ``collectives.REPRODUCIBLE_SUM``.
    ``root`` is a rank, or several that take turns as the root. Buffers begin on pages; ``rotate`` sets of them are used
    in turn, so that the data are not in the cache. With ``heap`` they are arrays of ``comm.empty``. ValueError names
    the wrong argument.

    All ranks pass the same arguments. ``nbytes`` is the bytes of the vector, all blocks together, as in ``comm.last``;
    ``message`` is what OSU's tables call the size.
    """

    def __init__(
        self, comm: Any, collective: str, count: int, *, dtype: Any = "float32", op: MPI.Op | None = None,
        root: int | Sequence[int] = 0, in_place: bool = False, rotate: int = 1, heap: bool = False,
    ):  # fmt: skip
        if collective not in COLLECTIVES:
            raise ValueError(f"collective: {collective!r} is none of {', '.join(COLLECTIVES)}")
        self.comm, self.kind, self.count = comm, COLLECTIVES[collective], count
        self.rank, self.size = comm.rank, comm.size
        self.dtype = typed(dtype)
        self.op = MPI.SUM if op is None else op
        self.fold = next((f for known, f in _FOLDS if known == self.op), None)
        self.roots = (root,) if isinstance(root, int) else tuple(root)
        self.in_place, self.rotate, self.heap = in_place, rotate, heap
        self._check(op)
        self.message = count * self.dtype.itemsize
        self.nbytes = self.message * messages_of(collective, self.size)
        most = [max(ends) for ends in zip(*(self._lengths(root) for root in self.roots), strict=True)]
        if in_place and self.kind.base != "scatter":
            most = [0, max(most)]
        self._memory = [tuple(map(self._allocate, most)) for _ in range(rotate)]
        #: Every set of buffers combined with every root.
        self._sets = [(root, number) for root in self.roots for number in range(rotate)]
        for each in self._sets:
            self._result(*each).view(np.uint8)[:] = 0  # so that no timed call touches a page first
            self._fill_input(*each)

    def _check(self, op: MPI.Op | None) -> None:
        check_dtype(self.dtype)
        if self.count < 0 or self.count != usable_count(self.kind.name, self.count, self.size):
            raise ValueError(f"count: {self.kind.name} of {self.size} ranks cannot have {self.count} elements")
        if op is not None and not self.kind.reduces:
            raise ValueError(f"op: {self.kind.name} has none")
        if self.fold is None:
            raise ValueError("op: expected SUM, MAX, MIN or REPRODUCIBLE_SUM")
        if not self.roots or not all(0 <= root < self.size for root in self.roots):
            raise ValueError(f"root: {self.roots} are not all ranks of a communicator of {self.size}")
        if self.in_place and self.kind.name in _ONE_PLACE:
            raise ValueError(f"in_place: {self.kind.name} has no such form")
        if self.rotate < 1:
            raise ValueError(f"rotate: expected at least 1 set of buffers, not {self.rotate}")
        if self.heap and not hasattr(self.comm, "empty"):
            raise ValueError("heap: needs a collectives.Communicator")

    # --- the call --------------------------------------------------------------------------------------------------

    def call(self, **keywords: Any) -> Callable[[], Any]:
        """A function without arguments that makes a blocking call with ``keywords`` (such as ``algorithm``)."""
        return in_turn(self._calls("call", keywords))

    def start(self, **keywords: Any) -> Callable[[], MPI.Request]:
        """A function without arguments that starts a non-blocking call and returns its request."""
        return in_turn(self._calls("start", keywords))

    def plan(self, **keywords: Any) -> Plan:
        """Persistent requests for all sets of buffers. Collective."""
        return Plan(self._calls("plan", keywords))

    def _calls(self, form: str, keywords: dict[str, Any]) -> list[Any]:
        """For each set of buffers a function that makes or starts the call, or the persistent request."""
        name = {"call": self.kind.method, "start": f"I{self.kind.name}", "plan": f"{self.kind.method}_init"}[form]
        method = getattr(self.comm, name)
        made = [functools.partial(method, *self._arguments(*each), **keywords) for each in self._sets]
        return [prepare() for prepare in made] if form == "plan" else made

    def _arguments(self, root: int, number: int) -> tuple[Any, ...]:
        """The arguments of mpi4py's method, in order."""
        send, recv = self._buffers(root, number)
        listed = self._listed if self.kind.vector and not self.kind.reduces else lambda array: array
        base, is_root = self.kind.base, self.rank == root
        sent: Any = listed(send) if base in ("scatter", "alltoall") else send
        received: Any = listed(recv) if base != "scatter" else recv
        if base == "scatter":
            sent = sent if is_root else None
            received = MPI.IN_PLACE if self._aliased(root) else received
        else:
            sent = MPI.IN_PLACE if self._aliased(root) else sent
            received = received if is_root or base not in ("gather", "reduce") else None
        given = {
            "buf": received, "sendbuf": sent, "recvbuf": received, "op": self.op, "root": root,
            "recvcounts": blocks(self.count, self.size),
        }  # fmt: skip
        return tuple(given[name] for name in self.kind.takes)

    def _listed(self, array: np.ndarray) -> Any:
        """The buffer with the counts and displacements of its blocks."""
        return [array, ([self.count] * self.size, [rank * self.count for rank in range(self.size)])]

    # --- the buffers -----------------------------------------------------------------------------------------------

    def _lengths(self, root: int) -> tuple[int, int]:
        return lengths(self.kind.name, self.count, self.rank, self.size, root)

    def _aliased(self, root: int) -> bool:
        """Whether this rank's input is in the output buffer (in a scatter: the output in the input buffer)."""
        return self.in_place and (not self.kind.rooted or self.rank == root)

    def _allocate(self, count: int) -> np.ndarray:
        return page_aligned(count, self.dtype, self.comm.empty if self.heap else np.empty)

    def _buffers(self, root: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The arrays that the call sends and receives; in place, the array that holds both, and an empty one."""
        sends, receives = self._lengths(root)
        send, recv = self._memory[number]
        if not self._aliased(root):
            if self.in_place and self.kind.base != "scatter":  # a rank other than the root has its input there
                return recv[:sends], recv[:0]
            return send[:sends], recv[:receives]
        if self.kind.base == "scatter":
            return send[:sends], recv[:0]
        return send[:0], recv[: max(sends, receives)]

    def _input(self, root: int, number: int) -> np.ndarray:
        """The array with this rank's contribution."""
        send, recv = self._buffers(root, number)
        if self.kind.base == "bcast":
            return recv if self.rank == root else recv[:0]
        if len(send) or not self._aliased(root):
            return send
        if self.kind.base in ("allgather", "gather"):
            return recv[self.rank * self.count : (self.rank + 1) * self.count]
        return recv

    def _result(self, root: int, number: int) -> np.ndarray:
        """The array with this rank's result."""
        return self._buffers(root, number)[1][: self._lengths(root)[1]]

    # --- the proof -------------------------------------------------------------------------------------------------

    def validate(self, form: str = "call", **keywords: Any) -> str | None:
        """Call once on every set of buffers, with fresh data; returns what is wrong on this rank, or None. Collective.

        ``form`` is ``"call"``, ``"start"`` or ``"plan"``, otherwise ValueError. Integers must agree bit by bit, floats
        to 0 ulps: sums are exact in any order (see :mod:`collectives.bench.operands`).
        """
        if form not in FORMS:
            raise ValueError(f"form: {form!r} is none of {', '.join(FORMS)}")
        found = None
        plans = self._calls(form, keywords)
        for (root, number), call in zip(self._sets, plans, strict=True):
            self._fill(root, number)
            if form == "call":
                call()
            elif form == "start":
                call().Wait()
            else:
                call.Start()
                call.Wait()
                call.Free()
            found = found or self._difference(root, number)
        return found

    def _fill(self, root: int, number: int) -> None:
        """Fill the result with wrong values, and the input with this rank's data."""
        result = self._result(root, number)
        bits = result.view(np.uint8)
        for first, last in _pieces(len(result)):
            at = slice(first * self.dtype.itemsize, last * self.dtype.itemsize)
            np.invert(self._expected(root, number, first, last).view(np.uint8), out=bits[at])
        self._fill_input(root, number)

    def _fill_input(self, root: int, number: int) -> None:
        mine = self._input(root, number)
        for first, last in _pieces(len(mine)):
            mine[first:last] = self._operand(self.rank, number, first, last)

    def _difference(self, root: int, number: int) -> str | None:
        if self.kind.name == "exscan" and self.rank == 0:  # MPI leaves it undefined
            return None
        result = self._result(root, number)
        for first, last in _pieces(len(result)):
            found = difference(result[first:last], self._expected(root, number, first, last))
            if found is not None:
                return f"rank {self.rank}: element {first + found[0]} is {found[1]}"
        return None

    def _operand(self, rank: int, number: int, first: int, last: int) -> np.ndarray:
        return operand(self.dtype, rank, self.size, first, last, number)

    def _expected(self, root: int, number: int, first: int, last: int) -> np.ndarray:
        """Elements ``first`` to ``last - 1`` of the correct result."""
        base = self.kind.base
        if base in ("bcast", "scatter"):
            skipped = self.rank * self.count * (base == "scatter")
            return self._operand(root, number, skipped + first, skipped + last)
        if not self.kind.reduces:
            return np.concatenate(list(self._blocks(number, first, last)))
        skipped = sum(blocks(self.count, self.size)[: self.rank]) if base == "reduce_scatter" else 0
        ranks = {"scan": self.rank + 1, "exscan": max(self.rank, 1)}.get(base, self.size)
        assert self.fold is not None
        return fold(self.fold, (self._operand(r, number, skipped + first, skipped + last) for r in range(ranks)))

    def _blocks(self, number: int, first: int, last: int) -> Iterator[np.ndarray]:
        """Elements ``first`` to ``last - 1`` of the ranks' blocks in rank order, in pieces."""
        skipped = self.rank * self.count * (self.kind.base == "alltoall")
        for rank in range(first // self.count, -(-last // self.count)):
            begin, end = max(first - rank * self.count, 0), min(last - rank * self.count, self.count)
            yield self._operand(rank, number, skipped + begin, skipped + end)


class Plan:
    """Persistent requests used in turn: a call starts the next one and waits for it."""

    def __init__(self, requests: Sequence[Any]):
        self.requests = requests
        self._next = itertools.cycle(requests).__next__

    def __call__(self) -> None:
        """Start the next request and wait for it."""
        request = self._next()
        request.Start()
        request.Wait()

    def free(self) -> None:
        """Free the requests."""
        for request in self.requests:
            request.Free()


def in_turn(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """A function that makes the next call each time; with one call that call itself, to save a Python call."""
    if len(calls) == 1:
        return calls[0]
    following = itertools.cycle(calls).__next__
    return lambda: following()()


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + CHUNK, count)) for first in range(0, count, CHUNK))


def typed(dtype: Any) -> np.dtype:
    """A NumPy dtype; ``"bfloat16"`` is the one of ml_dtypes."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)
