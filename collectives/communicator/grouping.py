"""Grouped calls: many small collectives of one kind, run as one collective."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ..arguments.calls import Arguments, Collective, Draft, Options
from ..arguments.packing import region
from ..core import _core

if TYPE_CHECKING:
    from .blocking import Blocking

__all__ = ["Group", "Groups"]

#: Bytes above which a call gains nothing from fusion.
LARGE = 256 << 10

#: Collectives that treat every element alike, so that the vectors of several calls can be concatenated.
FUSIBLE = ("allreduce", "reduce", "bcast", "scan", "exscan")


class Group:
    """``with comm.group():`` collects blocking calls and runs them at the end of the block, all ranks in one order.

    Calls of the same collective, op, element type, root, ``algorithm`` and ``deterministic`` become one call on all
    their elements, with the shortest of their timeouts. Results are valid after the block. Allreduce, Reduce, Bcast,
    Scan and Exscan can be grouped; ValueError for others, for buffers with gaps, and for memory that one call writes
    and another one uses; Bcast counts as writing its buffer, on the root too. Calls of more than 256 KiB, calls with an
    op of the user, and calls that the MPI library serves run separately at the end of the block. After an exception in
    the block, this rank runs none.
    """

    def __init__(self, comm: Blocking):
        self._comm = comm
        self._calls: list[tuple[Collective, Arguments, Options, Draft, bool]] = []
        self._spans: list[tuple[int, int, bool]] = []  # memory: begin, end, whether it is written

    def __enter__(self) -> Group:
        comm = self._comm
        context = comm._enter()
        if comm._open_group is not None:
            raise ValueError("this communicator has an open group already")
        context.admit(False)  # the fast path would run calls at once
        comm._open_group = self
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        comm, calls = self._comm, self._calls
        comm._open_group = None
        if comm._context is not None:
            comm._context.admit(True)
        self._calls, self._spans = [], []
        if kind is None:
            self._run(calls)

    def add(self, collective: Collective, arguments: Arguments, options: Options) -> None:
        """Check a call and keep it for the end of the block."""
        if collective.name not in FUSIBLE:
            raise ValueError(f"{collective.method} cannot be grouped; {', '.join(map(str.capitalize, FUSIBLE))} can")
        arguments.sendbuf, arguments.recvbuf = _fixed(arguments.sendbuf), _fixed(arguments.recvbuf)
        self._comm._enter()
        draft, choice = self._comm._prepare(collective, arguments, options)
        if draft.loads or draft.stores:
            raise ValueError(f"{collective.method}: buffers with gaps cannot be grouped")
        self._claim(collective, draft)
        op = draft.shape.op
        own = op is not None and not isinstance(op, int)  # a user's op or type, which is another object on each rank
        alone = choice.algorithm.name == "mpi" or options.engine == "python" or own or draft.nbytes > LARGE
        self._calls.append((collective, arguments, options, draft, alone))

    def _claim(self, collective: Collective, draft: Draft) -> None:
        """ValueError for a call that uses memory which another call of the group uses, unless both only read it."""
        nbytes = draft.nbytes
        spans = [(draft.source, draft.source + nbytes, False)] if draft.source else []
        # A bcast counts as writing on the root, too, so that all ranks refuse the same calls.
        spans += [(draft.target, draft.target + nbytes, True)] if draft.target else []
        for begin, end, written in spans:
            for other_begin, other_end, other_written in self._spans:
                if (written or other_written) and begin < other_end and other_begin < end:
                    raise ValueError(
                        f"{collective.method}: its memory is that of another call of the group, which is valid only "
                        "after the block"
                    )
        self._spans += spans

    def _run(self, calls: list[tuple[Collective, Arguments, Options, Draft, bool]]) -> None:
        fused: dict[Any, list[int]] = {}
        for number, (collective, _, options, draft, alone) in enumerate(calls):
            kind = (number,) if alone else (collective.name, draft.shape.root, *_operands(draft))
            fused.setdefault((*kind, options.algorithm, options.deterministic, options.engine), []).append(number)
        for numbers in fused.values():
            collective, arguments, options, *_ = calls[numbers[0]]
            options = replace(options, timeout=self._timeout([calls[number][2] for number in numbers]))
            if len(numbers) == 1:
                self._comm._run(collective, arguments, options)
            else:
                self._together(collective, [calls[number][3] for number in numbers], options)

    def _timeout(self, options: list[Options]) -> float | None:
        """The shortest timeout of calls with these options; None without any."""
        default = self._comm._enter().timeout
        given = [default if one.timeout is None else one.timeout for one in options]
        return min((seconds for seconds in given if seconds is not None), default=None)

    def _together(self, collective: Collective, drafts: list[Draft], options: Options) -> None:
        """Run one call in place of several, on a temporary with all their elements."""
        shape = drafts[0].shape
        nbytes = sum(d.nbytes for d in drafts)
        itemsize = 1 if shape.op is None else shape.itemsize
        vector = np.empty(max(1, nbytes), np.uint8)
        address = _core.address(vector)
        joint = replace(
            drafts[0],
            shape=shape._replace(
                elements=nbytes // itemsize, itemsize=itemsize, in_place=True,
                dtype=-1 if shape.op is None else shape.dtype,
            ),
            source=address, target=address, agreed=nbytes, owners=(vector, drafts), loads=[], stores=[], parts="",
        )  # fmt: skip
        position = 0
        for draft in drafts:
            if draft.nbytes:
                vector[position : position + draft.nbytes] = region(draft.source, draft.nbytes)
            position += draft.nbytes
        self._comm._run_draft(joint, options)
        rank = self._comm._enter().rank
        if collective.name == "exscan" and rank == 0 or collective.name == "bcast" and rank == shape.root:
            return  # the vector is this rank's own
        position = 0
        for draft in drafts:
            if draft.target and draft.nbytes:
                region(draft.target, draft.nbytes)[:] = vector[position : position + draft.nbytes]
            position += draft.nbytes


class Groups(MPI.Group):
    """The type of ``comm.group``: mpi4py's group of the ranks; calling it returns a block of grouped calls."""

    comm: Blocking

    def __call__(self) -> Group:
        """The context manager of ``with comm.group():``."""
        self.Free()
        return Group(self.comm)


def _fixed(spec: Any) -> Any:
    """A buffer specification as it is now; the program may change a list before the end of the block."""
    return tuple(map(_fixed, spec)) if isinstance(spec, (list, tuple)) else spec


def _operands(draft: Draft) -> tuple[Any, ...]:
    """What calls that become one must have in common beside collective, root and options. It is equal on all ranks.

    Bytes that are only moved match elements of any type.
    """
    shape = draft.shape
    return () if shape.op is None else (shape.dtype, shape.op)
