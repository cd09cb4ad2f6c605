"""mpi4py's methods for each collective: blocking, non-blocking and persistent, made from one table of parameters."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from mpi4py import MPI

from ..arguments.calls import Arguments, Collective, Options, checked_options
from ..core import _core
from .blocking import DEFAULTS, Seen
from .nonblocking import Nonblocking

__all__ = ["add_methods"]

Method = Callable[..., Any]
Binding = Callable[..., Arguments]

#: Functions with mpi4py's parameters, by the parameters' names; each returns its arguments as Arguments.
_BINDINGS: dict[tuple[str, ...], Binding] = {
    (): lambda: Arguments(),
    ("buf", "root"): lambda buf, root=0: Arguments(buf, root=root),
    ("sendbuf", "recvbuf"): lambda sendbuf, recvbuf: Arguments(sendbuf, recvbuf),
    ("sendbuf", "recvbuf", "root"): lambda sendbuf, recvbuf, root=0: Arguments(sendbuf, recvbuf, root=root),
    ("sendbuf", "recvbuf", "op"): lambda sendbuf, recvbuf, op=MPI.SUM: Arguments(sendbuf, recvbuf, op),
    ("sendbuf", "recvbuf", "op", "root"): lambda sendbuf, recvbuf, op=MPI.SUM, root=0: Arguments(
        sendbuf, recvbuf, op, root
    ),
    ("sendbuf", "recvbuf", "recvcounts", "op"): lambda sendbuf, recvbuf, recvcounts=None, op=MPI.SUM: Arguments(
        sendbuf, recvbuf, op, 0, recvcounts
    ),
}

_WHAT = {
    "barrier": "Return when all ranks have called it.",
    "bcast": "Copy the root's ``buf`` to all ranks.",
    "gather": "Collect a block from every rank in the root's ``recvbuf``, in rank order.",
    "gatherv": "Collect blocks of different lengths from all ranks in the root's ``recvbuf``.",
    "scatter": "Send block i of the root's ``sendbuf`` to rank i's ``recvbuf``; all blocks have the same length.",
    "scatterv": "Send block i of the root's ``sendbuf`` to rank i's ``recvbuf``; blocks may have different lengths.",
    "allgather": "Collect a block from every rank on all ranks, in rank order.",
    "allgatherv": "Collect blocks of different lengths from all ranks on all ranks, in rank order.",
    "alltoall": "Send block i of ``sendbuf`` to rank i, and receive block i of ``recvbuf`` from it.",
    "alltoallv": "Send block i of ``sendbuf`` to rank i, and receive block i of ``recvbuf``; lengths may differ.",
    "alltoallw": "Exchange blocks with all ranks; each block has its own length, place (in bytes) and datatype.",
    "neighbor_allgather": "Send ``sendbuf`` to all neighbours, and receive a block from each, in their order.",
    "neighbor_allgatherv": "Send ``sendbuf`` to all neighbours, and receive blocks of different lengths from them.",
    "neighbor_alltoall": "Send block i of ``sendbuf`` to the i-th neighbour, and receive block i from it.",
    "neighbor_alltoallv": "Exchange blocks with the neighbours; lengths may differ.",
    "neighbor_alltoallw": "Exchange blocks with the neighbours; each has its length, place (in bytes) and datatype.",
    "reduce": "Reduce ``sendbuf`` over all ranks, element by element; the root has the result in ``recvbuf``.",
    "allreduce": "Reduce ``sendbuf`` over all ranks, element by element; all ranks have the result in ``recvbuf``.",
    "reduce_scatter_block": "Reduce ``sendbuf`` over all ranks; rank i has the i-th of p equal blocks of the result.",
    "reduce_scatter": "Reduce ``sendbuf`` over all ranks; rank i has the i-th block, of ``recvcounts[i]`` elements.",
    "scan": "Reduce ``sendbuf`` over the ranks from 0 to this one, element by element, into ``recvbuf``.",
    "exscan": "Reduce ``sendbuf`` over the ranks before this one into ``recvbuf``, which rank 0 leaves as it is.",
}

_TOLD = {
    "algorithm": "``algorithm`` is a name of ``collectives.algorithms({name!r})``, by default chosen by the library.",
    "deterministic": "``deterministic=True`` reduces in rank order (default: ``comm.deterministic``).",
    "timeout": "``timeout`` is in seconds (default: ``comm.timeout``).",
    "stream": "``stream`` is the CUDA stream of arrays on a GPU, by default that of the arrays' library (docs/gpu.md).",
    "engine": "``engine`` runs a schedule: ``'c'`` (default), or ``'python'``, slow and with the same bits, for tests.",
}
_ERRORS = (
    "Raises TypeError or ValueError for arguments that cannot be served, before anything is sent; CollectiveTimeout, "
    "CollectiveMismatch, PeerFailure or another CollectiveError for a call that cannot begin or end."
)
_BUFFERS = (
    "Buffers are contiguous arrays of NumPy, torch or DLPack, or mpi4py's lists, such as ``[array, count, datatype]``."
)
_INDENT = " " * 8  # as of docstrings in the source
_COUNTS = (
    "Without ``recvcounts``, the call first waits until all ranks have told their counts, also if it is non-blocking; "
    "with MPI.IN_PLACE it needs them."
)
_STARTS = "Non-blocking :meth:`{0}`; returns a request, which ``MPI.Request.Waitall`` takes, too."
_LASTS = "Persistent :meth:`{0}`; returns a request with ``Start``, ``Wait`` and ``Free``."
_BETWEEN = (
    "Between the start of the call and the end of ``Wait`` the program must not change the buffers, and the result is "
    "not yet there. Raises TypeError or ValueError for arguments that cannot be served; ``Wait`` raises "
    "CollectiveTimeout, CollectiveMismatch, PeerFailure or another CollectiveError, and ``Test`` all but the first. "
    "Below MPI.THREAD_MULTIPLE the MPI library serves the call, and arrays on a GPU are a RuntimeError."
)

#: What the fast path passes on for an argument that is not given.
_MISSING = object()

_BLOCKING = ("algorithm", "deterministic", "timeout", "stream", "engine")
_LATER = ("algorithm", "deterministic", "stream")


def _options(given: dict[str, Any], options: tuple[str, ...]) -> Options:
    """Remove the ``options`` of this library from the keyword arguments ``given``, and return them."""
    found = {key: given.pop(key) for key in options if key in given}
    return checked_options(**found) if found else DEFAULTS


def _signature(binding: Binding, options: tuple[str, ...], *more: inspect.Parameter) -> inspect.Signature:
    positional = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    positional += [*inspect.signature(binding).parameters.values(), *more]
    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in options]
    return inspect.Signature([*positional, *keywords])


def _bind(name: str, binding: Binding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    if any(arg is _MISSING for arg in args):
        kwargs |= dict(zip(inspect.signature(binding).parameters, args, strict=False))
        args, kwargs = (), {k: arg for k, arg in kwargs.items() if arg is not _MISSING}
    try:
        return binding(*args, **kwargs)
    except TypeError as e:
        raise TypeError(str(e).replace("<lambda>", name).replace(binding.__qualname__, name)) from None


def _first(c: Collective, run: Method) -> Method:
    """Runs, by ``run``, a call that the fast path has parsed, but for which it has no cached plan yet."""

    def first(
        self: Nonblocking, seen: Seen, sendbuf: Any, recvbuf: Any, op: Any, root: int, recvcounts: Any,
        options: dict[str, Any],
    ) -> Any:  # fmt: skip
        return run(self, c, Arguments(sendbuf, recvbuf, op, root, recvcounts), checked_options(**options), seen)

    return first


def _blocking(c: Collective, binding: Binding) -> Method:
    def method(self: Nonblocking, *args: Any, **kwargs: Any) -> None:
        options = _options(kwargs, _BLOCKING) if kwargs else DEFAULTS
        self._run(c, _bind(c.method, binding, args, kwargs), options)

    named = _named(method, c.method, _signature(binding, _BLOCKING), _told(c, _WHAT[c.name], _BLOCKING, _ERRORS))
    return _core.fast_path(c.name, named, _first(c, Nonblocking._run), MPI.SUM, _MISSING)


def _starting(c: Collective, binding: Binding) -> Method:
    name = "I" + c.name

    def method(self: Nonblocking, *args: Any, **kwargs: Any) -> MPI.Request:
        options = _options(kwargs, _LATER) if kwargs else DEFAULTS
        return self._start(c, _bind(name, binding, args, kwargs), options)

    named = _named(method, name, _signature(binding, _LATER), _told(c, _STARTS.format(c.method), _LATER, _BETWEEN))
    return _core.fast_path(c.name, named, _first(c, Nonblocking._start), MPI.SUM, _MISSING)


def _lasting(c: Collective, binding: Binding) -> Method:
    name = f"{c.method}_init"
    info = inspect.Parameter("info", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=MPI.INFO_NULL)
    before = len(inspect.signature(binding).parameters)

    def method(self: Nonblocking, *args: Any, **kwargs: Any) -> MPI.Prequest:
        options = _options(kwargs, _LATER) if kwargs else DEFAULTS
        hints = args[before] if len(args) > before else kwargs.pop("info", MPI.INFO_NULL)
        return self._init(c, _bind(name, binding, args[:before] + args[before + 1 :], kwargs), options, hints)

    return _named(method, name, _signature(binding, _LATER, info), _told(c, _LASTS.format(c.method), _LATER, _BETWEEN))


def _told(c: Collective, what: str, options: tuple[str, ...], *more: str) -> str:
    """The docstring of a method: ``what`` it does, then its buffers, its ``options``, and what else there is to say."""
    data = [_BUFFERS] if c.name != "barrier" else []
    told = [_TOLD[name].format(name=c.name) for name in options if name != "deterministic" or c.reduces]
    counts = [_COUNTS] if c.name == "reduce_scatter" else []
    text = textwrap.fill(
        " ".join([*data, *told, *counts, *more]), 120, initial_indent=_INDENT, subsequent_indent=_INDENT
    )
    return f"{what}\n\n{text}\n"


def _named(method: Any, name: str, signature: inspect.Signature, doc: str) -> Method:
    method.__name__ = name
    method.__qualname__ = f"Communicator.{name}"
    method.__signature__ = signature
    method.__doc__ = doc
    return method


def add_methods(cls: type, collectives: Iterable[Collective]) -> None:
    """Add the three methods of each of ``collectives`` to ``cls``, except those that it defines itself."""
    for c in collectives:
        binding = _BINDINGS[c.takes]
        for method in (_blocking(c, binding), _starting(c, binding), _lasting(c, binding)):
            method.__module__ = cls.__module__
            if method.__name__ not in vars(cls):
                setattr(cls, method.__name__, method)
