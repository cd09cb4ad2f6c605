"""What a rank hands over to a communicator, in bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .loading import fields

#: Methods whose first argument every rank sends, of each kind of call; I... are non-blocking.
_COLLECTIVES = (
    "Allreduce", "Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Reduce", "Reduce_scatter",
    "Reduce_scatter_block", "Gather", "Gatherv", "Scan", "Exscan",
)  # fmt: skip
_MESSAGES = ("Send", "Ssend", "Bsend", "Rsend", "Sendrecv")
_FROM_ROOT = ("Bcast", "Scatter", "Scatterv")
#: Methods that call other ones of these, where ranks are threads.
_BY_OTHERS = (*_COLLECTIVES, *_MESSAGES, *_FROM_ROOT, "Ireduce_scatter_block")
_MAKERS = ("Dup", "Clone", "Split", "Split_type", "Create", "Create_group")


class Traffic:
    """``bytes``: the bytes of the vectors that this rank has given to collectives and messages; a run saves it.

    That is what a strategy asks for. An algorithm may send a vector in more bytes, or, on one node, in none.
    """

    per_rank = True

    def __init__(self) -> None:
        self.bytes = 0

    def state_dict(self) -> dict[str, Any]:
        """The bytes so far."""
        return {"bytes": self.bytes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` returned."""
        (self.bytes,) = fields("Traffic", state, bytes=int)


def counted(comm: Any, traffic: Traffic) -> Any:
    """A communicator like `comm`, of a class derived from its, whose calls add to `traffic`. Collective.

    Counted are blocking and non-blocking calls on arrays; of a broadcast or scatter those of its root. So are calls on
    the communicators that are made from this one.
    """
    base, threads = type(comm), hasattr(comm, "same_ranks")
    methods: dict[str, Any] = {"traffic": traffic}
    for name in (*_COLLECTIVES, *_MESSAGES, *_FROM_ROOT):
        for method in (name, f"I{name.lower()}"):
            if hasattr(base, method) and not (threads and method in _BY_OTHERS):
                methods[method] = _counting(getattr(base, method), traffic, from_root=name in _FROM_ROOT)
    for name in _MAKERS:
        if hasattr(base, name):
            methods[name] = _making(getattr(base, name), traffic)
    counting = type(f"Counted{base.__name__}", (base,), methods)
    if threads:
        made = comm.Dup()
        made.__class__ = counting
        return made
    return counting(comm)


def _making(method: Callable[..., Any], traffic: Traffic) -> Callable[..., Any]:
    def make(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = method(self, *args, **kwargs)
        return counted(made, traffic) if made and not hasattr(made, "traffic") else made

    return make


def _counting(method: Callable[..., Any], traffic: Traffic, *, from_root: bool) -> Callable[..., Any]:
    def call(self: Any, buffer: Any, *args: Any, **kwargs: Any) -> Any:
        root = kwargs.get("root", args[-1] if args and isinstance(args[-1], int) else 0)
        if not from_root or self.rank == root:
            traffic.bytes += _nbytes(buffer, *args[:1], *(kwargs[key] for key in ("recvbuf",) if key in kwargs))
        return method(self, buffer, *args, **kwargs)

    return call


def _nbytes(buffer: Any, *others: Any) -> int:
    """The bytes of a buffer in one of mpi4py's forms; of an in-place call, those of the buffer that it names next."""
    for given in (buffer, *others):
        array = given[0] if isinstance(given, list | tuple) and given else given
        if hasattr(array, "nbytes"):
            return int(array.nbytes)
    return 0
