"""mpi4py's methods by the parameters they take: for each collective the blocking, non-blocking and persistent one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..arguments.calls import COLLECTIVES, Arguments, Collective, Options
from ..core import _core
from .blocking import DEFAULTS
from .nonblocking import Nonblocking

__all__ = ["add_methods"]

Method = Callable[..., Any]
Binding = Callable[..., Arguments]

#: Functions with mpi4py's parameters, by what the collective takes; each returns them as Arguments.
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
    "bcast": "Give all ranks what the root has in ``buf``.",
    "gather": "Collect a block from every rank on the root, in rank order.",
    "gatherv": "Collect blocks of different lengths on the root.",
    "scatter": "Give every rank its block of what the root has.",
    "scatterv": "Give every rank its block, of its own length, of what the root has.",
    "allgather": "Collect a block from every rank on all ranks, in rank order.",
    "allgatherv": "Collect blocks of different lengths on all ranks.",
    "alltoall": "Send a block to every rank, and receive one from every rank.",
    "alltoallv": "Send and receive blocks of different lengths.",
    "reduce": "Reduce over all ranks, and give the root the result.",
    "allreduce": "Reduce over all ranks, and give all ranks the result.",
    "reduce_scatter_block": "Reduce over all ranks, and give every rank its block, of equal length, of the result.",
    "reduce_scatter": "Reduce over all ranks, and give rank i the i-th block, of ``recvcounts[i]`` elements.",
    "scan": "Reduce over the ranks up to this one.",
    "exscan": "Reduce over the ranks before this one; rank 0's ``recvbuf`` is left as it is.",
}

_HOW = """

        Buffers are what mpi4py takes, and float16 and bfloat16 arrays. ``algorithm`` is a name of
        ``collectives.algorithms({base!r})``; ``deterministic`` demands a fold in rank order where there is one
        (None: as ``comm.deterministic`` says);
        ``timeout`` is in seconds; ``engine="python"`` runs the schedule in the readable executor. Raises TypeError or
        ValueError, before anything is sent, for arguments that cannot be served, and CollectiveTimeout when the time
        is over.
"""
_STARTS = "Non-blocking :meth:`{0}`; the request also works in ``MPI.Request.Waitall`` and its kin."
_LASTS = "Persistent :meth:`{0}`: ``Start`` and ``Wait`` any number of times, then ``Free``."

_BLOCKING = ("algorithm", "deterministic", "timeout", "stream", "engine")
_LATER = ("algorithm", "deterministic", "stream")


def _options(name: str, given: dict[str, Any], allowed: tuple[str, ...]) -> Options:
    if not given:
        return DEFAULTS
    for key in given:
        if key not in allowed:
            raise TypeError(f"{name}() got an unexpected keyword argument {key!r}")
    return Options(**given)


def _split(given: dict[str, Any], options: tuple[str, ...]) -> dict[str, Any]:
    """Take what is not among mpi4py's parameters out of keyword arguments."""
    return {key: given.pop(key) for key in options if key in given}


def _signature(binding: Binding, options: tuple[str, ...], *more: inspect.Parameter) -> inspect.Signature:
    positional = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    positional += [*inspect.signature(binding).parameters.values(), *more]
    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in options]
    return inspect.Signature([*positional, *keywords])


def _bind(name: str, binding: Binding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    try:
        return binding(*args, **kwargs)
    except TypeError as e:
        raise TypeError(str(e).replace("<lambda>", name).replace(binding.__qualname__, name)) from None


def _blocking(c: Collective, binding: Binding) -> Method:
    def method(self: Nonblocking, *args: Any, **kwargs: Any) -> None:
        options = _options(c.method, _split(kwargs, _BLOCKING), _BLOCKING) if kwargs else DEFAULTS
        self._run(c, _bind(c.method, binding, args, kwargs), options)

    named = _named(method, c.method, _signature(binding, _BLOCKING), _WHAT[c.name] + _HOW.format(base=c.base))
    return _core.fast_path(c.name, named, Nonblocking._first, MPI.SUM)


def _starting(c: Collective, binding: Binding) -> Method:
    name = "I" + c.name

    def method(self: Nonblocking, *args: Any, **kwargs: Any) -> MPI.Request:
        options = _options(name, _split(kwargs, _LATER), _LATER) if kwargs else DEFAULTS
        return self._start(c, _bind(name, binding, args, kwargs), options)

    named = _named(method, name, _signature(binding, _LATER), _STARTS.format(c.method))
    return _core.fast_path(c.name, named, Nonblocking._start_first, MPI.SUM)


def _lasting(c: Collective, binding: Binding) -> Method:
    name = f"{c.method}_init"
    info = inspect.Parameter("info", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=MPI.INFO_NULL)
    before = len(inspect.signature(binding).parameters)

    def method(self: Nonblocking, *args: Any, **kwargs: Any) -> MPI.Prequest:
        options = _options(name, _split(kwargs, _LATER), _LATER) if kwargs else DEFAULTS
        hints = args[before] if len(args) > before else kwargs.pop("info", MPI.INFO_NULL)
        return self._init(c, _bind(name, binding, args[:before] + args[before + 1 :], kwargs), options, hints)

    return _named(method, name, _signature(binding, _LATER, info), _LASTS.format(c.method))


def _named(method: Any, name: str, signature: inspect.Signature, doc: str) -> Method:
    method.__name__ = name
    method.__qualname__ = f"Communicator.{name}"
    method.__signature__ = signature
    method.__doc__ = doc
    return method


def add_methods(cls: type) -> None:
    """Give a class the three methods of every collective that it does not define itself."""
    for c in COLLECTIVES.values():
        binding = _BINDINGS[c.takes]
        for method in (_blocking(c, binding), _starting(c, binding), _lasting(c, binding)):
            method.__module__ = cls.__module__
            if method.__name__ not in vars(cls):
                setattr(cls, method.__name__, method)
