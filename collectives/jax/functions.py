"""The public functions: they check their arguments, and make a call of them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core import _core
from .calls import COLLECTIVES, Call
from .ordering import forget_failed
from .places import Op, Place, op_of, place_of
from .primitives import bind, replicate

__all__ = [
    "allgather", "allreduce", "alltoall", "barrier", "bcast", "failure", "gather", "recv", "reduce", "reduce_scatter",
    "replicated", "scatter", "send", "sendrecv",
]  # fmt: skip


def allreduce(x: Any, op: Any = "sum", *, comm: Any = None) -> Any:
    """``x`` reduced over all ranks, element by element, on all ranks.

    ``op`` is mpi4py's, ``collectives.AVG``, or a name such as ``"max"``. Derivatives exist for sums and means: the
    tangent of the result is the reduced tangent; the cotangent of ``x`` is that of the result, which is taken to be the
    same on all ranks (for a mean, divided by their number). See :func:`replicated`.
    """
    return _reduction("allreduce", x, op, comm)


def reduce(x: Any, op: Any = "sum", root: int = 0, *, comm: Any = None) -> Any:
    """``x`` reduced over all ranks, on the root; zeros on other ranks. ``op`` is as in :func:`allreduce`.

    The gradient broadcasts the root's cotangent.
    """
    return _reduction("reduce", x, op, comm, root)


def reduce_scatter(x: Any, op: Any = "sum", *, comm: Any = None) -> Any:
    """``x[i]`` reduced over all ranks, on rank i; ``x`` has a block for each rank along its first axis.

    ``op`` is as in :func:`allreduce`. The gradient all-gathers the ranks' cotangents.
    """
    return _reduction("reduce_scatter", x, op, comm, blocks=True)


def allgather(x: Any, *, comm: Any = None) -> Any:
    """The ``x`` of all ranks, in rank order along a new first axis.

    The cotangent of the result is taken to be the same on all ranks, as in :func:`allreduce`.
    """
    return _moving("allgather", x, comm)


def alltoall(x: Any, *, comm: Any = None) -> Any:
    """Send ``x[i]`` to rank i; ``result[i]`` comes from rank i. The gradient is an all-to-all."""
    return _moving("alltoall", x, comm, blocks=True)


def bcast(x: Any, root: int = 0, *, comm: Any = None) -> Any:
    """The root's ``x``. On other ranks only the shape and the type of ``x`` matter, which must be the root's.

    The cotangent of the result is taken to be the same on all ranks, as in :func:`allreduce`.
    """
    return _moving("bcast", x, comm, root)


def scatter(x: Any, root: int = 0, *, comm: Any = None) -> Any:
    """Block ``x[i]`` of the root's ``x``, on rank i. On other ranks ``x`` has the shape and the type of one block.

    The gradient gathers the ranks' cotangents on the root.
    """
    return _moving("scatter", x, comm, root, blocks=True)


def gather(x: Any, root: int = 0, *, comm: Any = None) -> Any:
    """The ``x`` of all ranks, in rank order along a new first axis, on the root; without elements on other ranks.

    The gradient scatters the root's cotangent.
    """
    return _moving("gather", x, comm, root)


def replicated(x: Any, *, comm: Any = None) -> Any:
    """``x`` itself, which is the same on all ranks; the gradient is the sum of the ranks' cotangents.

    It is for a value from which the ranks go on with data of their own: parameters, or the result of an
    :func:`allreduce` that is not the last. Forward nothing is sent.
    """
    return _named("replicated", lambda: replicate(_array(x), place_of(comm)))


def barrier(*, comm: Any = None) -> None:
    """Wait, where the program does so, until all ranks are there."""
    _named("barrier", lambda: bind(Call("barrier", place_of(comm))))


def send(x: Any, dest: int, tag: int = 0, *, comm: Any = None) -> None:
    """Send ``x`` to rank ``dest``, which calls :func:`recv`. It has no gradient and no batch; :func:`sendrecv` has."""

    def made() -> None:
        place = place_of(comm)
        bind(Call("send", place, dest=_peer(dest, "dest", place), sendtag=_tag(tag, "tag", place)), _array(x))

    _named("send", made)


def recv(like: Any, source: int, tag: int = 0, *, comm: Any = None) -> Any:
    """What rank ``source`` sends, of the shape and the type of ``like``: an array, or a ``jax.ShapeDtypeStruct``."""

    def made() -> Any:
        place = place_of(comm)
        call = Call(
            "recv", place, source=_peer(source, "source", place), recvtag=_tag(tag, "tag", place), like=_like(like)
        )
        return bind(call)[0]

    return _named("recv", made)


def sendrecv(
    x: Any, like: Any = None, *, dest: int | None, source: int | None, sendtag: int = 0, recvtag: int = 0,
    comm: Any = None,
) -> Any:  # fmt: skip
    """Send ``x`` to rank ``dest``, and return what rank ``source`` sends, of the shape and the type of ``like``.

    Without ``like`` these are those of ``x``. ``dest=None`` sends nothing; the result of ``source=None`` is zeros. The
    gradient sends cotangents the other way round; it is a NotImplementedError if ``like`` has integers or bool.
    """

    def made() -> Any:
        place, array = place_of(comm), _array(x)
        there = None if dest is None else _peer(dest, "dest", place)
        back = None if source is None else _peer(source, "source", place)
        tags = _tag(sendtag, "sendtag", place), _tag(recvtag, "recvtag", place)
        shape = _like(array if like is None else like)
        return bind(Call("sendrecv", place, None, 0, False, there, back, *tags, shape), array)[0]

    return _named("sendrecv", made)


def failure() -> BaseException | None:
    """The exception of the last call that failed in a program of JAX, whose own error has only its text; else None.

    If the program ran in the background, JAX lets all later calls of the thread fail with the same error, until the
    thread has called this function.
    """
    forget_failed()
    return _core.xla_failure()


# Arguments


def _named(function: str, made: Callable[[], Any]) -> Any:
    """The result of ``made``; errors about arguments name the function."""
    try:
        return made()
    except (TypeError, ValueError) as e:
        if type(e) in (TypeError, ValueError) and not str(e).startswith(f"{__package__}."):
            raise type(e)(f"{__package__}.{function}: {e}") from e
        raise


def _reduction(function: str, x: Any, op: Any, comm: Any, root: int = 0, blocks: bool = False) -> Any:
    def made() -> Any:
        place, array, known = place_of(comm), _array(x), op_of(op)
        _refuse_type(function, array, known, place)
        if blocks:
            _refuse_blocks(array, place)
        return bind(Call(function, place, known, _peer(root, "root", place)), array)[0]

    return _named(function, made)


def _moving(function: str, x: Any, comm: Any, root: int = 0, blocks: bool = False) -> Any:
    def made() -> Any:
        place, array = place_of(comm), _array(x)
        call = Call(function, place, root=_peer(root, "root", place))
        if blocks and (function != "scatter" or call.here):
            _refuse_blocks(array, place)
        return bind(call, array)[0]

    return _named(function, made)


def _array(x: Any) -> Any:
    """``x`` as JAX's array. TypeError for elements that are no whole bytes, and for those of JAX alone, as keys."""
    array = jnp.asarray(x)
    _refuse_elements(array.dtype)
    return array


def _refuse_elements(dtype: Any, argument: str = "x") -> None:
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        raise TypeError(f"{argument}: elements of {dtype} cannot be sent; jax.random.key_data has those of a key")
    if any(dtype.name.startswith(short) for short in ("int2", "uint2", "int4", "uint4", "float4")):
        raise TypeError(f"{argument}: elements of {dtype} are shorter than a byte")


def _refuse_blocks(array: Any, place: Place) -> None:
    if array.ndim == 0 or array.shape[0] != place.size:
        raise ValueError(f"x: the first axis of {array.shape} has not one block for each of the {place.size} ranks")


def _refuse_type(function: str, array: Any, op: Op, place: Place) -> None:
    """TypeError or ValueError if the op does not apply to the elements."""
    if place.comm is not None:
        place.ready().explain(COLLECTIVES[function], array.size * array.dtype.itemsize, array.dtype, op.given)
        return
    name = array.dtype.name
    if op.code is None or name not in _core.DTYPES or not _core.has_kernel(_core.DTYPES.index(name), op.code):
        raise TypeError(f"op: {op} does not apply to {name}")


def _integer(value: Any, argument: str) -> int:
    if isinstance(value, jax.core.Tracer) or isinstance(value, bool):
        raise TypeError(f"{argument}: must be an integer that is known before the program runs, not {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{argument}: must be an integer, not {type(value).__name__}") from None


def _peer(value: Any, argument: str, place: Place) -> int:
    rank = _integer(value, argument)
    if not 0 <= rank < place.size:
        raise ValueError(f"{argument}: {rank} is not a rank of a communicator of {place.size}")
    return rank


def _tag(value: Any, argument: str, place: Place) -> int:
    tag, most = _integer(value, argument), place.most_tag()
    if tag < 0:
        raise ValueError(f"{argument}: {tag} is negative")
    if tag > most:
        raise ValueError(f"{argument}: {tag} is larger than {most}, MPI's largest tag")
    return tag


def _like(like: Any) -> tuple[tuple[int, ...], np.dtype]:
    array = like if hasattr(like, "shape") and hasattr(like, "dtype") else jnp.asarray(like)
    _refuse_elements(array.dtype, "like")
    return tuple(map(int, array.shape)), np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
