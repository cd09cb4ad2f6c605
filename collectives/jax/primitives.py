"""A primitive of JAX for each function: shapes, compilation, derivatives and batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .calls import COLLECTIVES, Call, form_of, site_of
from .ordering import ORDERED, lowered
from .places import Place, op_of

__all__ = ["bind", "replicate"]


def bind(call: Call, *operands: Any) -> list[Any]:
    """The results of a call, none or one; it becomes a part of the program that is being traced, if there is one."""
    if call.function in COLLECTIVES:
        call.place.set_up()
    results: list[Any] = _PRIMITIVES[call.function].bind(*operands, call=call)
    return results


def replicate(x: Any, place: Place) -> Any:
    """``x`` itself; the gradient is the sum of all ranks' cotangents."""
    return bind(Call("replicated", place), x)[0]


@functools.lru_cache(maxsize=4096)
def _compiled(call: Call) -> Any:
    """A call that is no part of a program, as a program of its own."""
    return jax.jit(lambda *operands: bind(call, *operands))


def _alone(*operands: Any, call: Call) -> Any:
    """Run a call that is no part of a program, also under ``jax.disable_jit``."""
    with jax.disable_jit(False):
        return _compiled(call)(*operands)


# Shapes and compilation


def _result(call: Call, operand: Any) -> Any:
    """The abstract value of the result; None if there is none. ``operand``: that of the operand, None without one."""
    shape = form_of(call, operand.shape if operand is not None else ()).shape
    if shape is None:
        return None
    return jax.core.ShapedArray(shape, call.like[1] if call.like is not None else operand.dtype)


def _abstract(*operands: Any, call: Call) -> tuple[list[Any], set[Any]]:
    result = _result(call, operands[0] if operands else None)
    return [] if result is None else [result], {ORDERED}


def _lower(ctx: Any, *operands: Any, call: Call) -> list[Any]:
    avals = list(ctx.avals_in)
    shape, dtype = (avals[0].shape, avals[0].dtype) if avals else ((), jnp.dtype("uint8"))
    form, results = form_of(call, shape), list(ctx.avals_out)
    written: list[Any] = []
    if form.reads or form.writes or call.function in COLLECTIVES:
        reads = slice(None) if form.reads else slice(0)
        site = site_of(call, shape, dtype)
        written = lowered(ctx, operands[reads], avals[reads], results if form.writes else [], site.number)
    else:  # a sendrecv without peers
        ctx.set_tokens_out(ctx.tokens_in)
    if form.shape is None or form.writes:
        return written
    if form.instead == "operand":
        return list(operands)
    return [mlir.ir_constant(np.broadcast_to(np.zeros((), a.dtype), a.shape)) for a in results]


# Derivatives


def _why_no_gradient(call: Call) -> str | None:
    """Why a call cannot be differentiated; None if it can."""
    if call.function == "send":
        return "a message of send has no gradient; sendrecv has one"
    if call.op is not None and not call.op.linear:
        return f"a reduction by {call.op} has no gradient; those by sum and avg have one"
    if call.like is not None and not jnp.issubdtype(call.like[1], jnp.inexact):
        return f"a call that receives {call.like[1]} has no gradient; receive by recv, and send with source=None"
    return None


def _jvp(primals: Any, tangents: Any, *, call: Call) -> tuple[Any, Any]:
    if why := _why_no_gradient(call):
        raise NotImplementedError(f"{__package__}.{call.function}: {why}")
    return bind(call, *primals), bind(call, *map(ad.instantiate_zeros, tangents))


def _over_ranks(call: Call, cotangent: Any) -> Any:
    """The cotangent of a mean from that of its result."""
    average = call.op is not None and call.op.name == "avg"
    return cotangent / call.place.size if average else cotangent


def _from_sum(call: Call, ct: Any, operand: Any) -> Any:
    return _over_ranks(call, replicate(ct, call.place))


def _from_reduce(call: Call, ct: Any, operand: Any) -> Any:
    return _over_ranks(call, bind(Call("bcast", call.place, root=call.root, partial=True), ct)[0])


def _from_bcast(call: Call, ct: Any, operand: Any) -> Any:
    if call.partial:
        return bind(Call("reduce", call.place, op_of("sum"), call.root), ct)[0]
    return jnp.where(call.here, replicate(ct, call.place), 0)


def _from_allgather(call: Call, ct: Any, operand: Any) -> Any:
    if call.partial:
        return bind(Call("reduce_scatter", call.place, op_of("sum")), ct)[0]
    return replicate(ct, call.place)[call.place.rank]


def _from_reduce_scatter(call: Call, ct: Any, operand: Any) -> Any:
    return _over_ranks(call, bind(Call("allgather", call.place, partial=True), ct)[0])


def _from_gather(call: Call, ct: Any, operand: Any) -> Any:
    blocks = ct if call.here else _nothing(ct, operand)
    return bind(Call("scatter", call.place, root=call.root), blocks)[0]


def _from_scatter(call: Call, ct: Any, operand: Any) -> Any:
    blocks = bind(Call("gather", call.place, root=call.root), ct)[0]
    return blocks if call.here else _nothing(blocks, operand)


def _nothing(empty: Any, like: Any) -> Any:
    """Zeros that depend on an empty array, so that further derivatives are taken on this rank, too."""
    return jnp.broadcast_to(jnp.sum(empty), like.shape)


def _from_alltoall(call: Call, ct: Any, operand: Any) -> Any:
    return bind(call, ct)[0]


def _from_sendrecv(call: Call, ct: Any, operand: Any) -> Any:
    back = Call(
        "sendrecv", call.place, dest=call.source, source=call.dest, sendtag=call.recvtag, recvtag=call.sendtag,
        like=(operand.shape, operand.dtype),
    )  # fmt: skip
    return bind(back, ct)[0]


def _from_replicated(call: Call, ct: Any, operand: Any) -> Any:
    return bind(Call("allreduce", call.place, op_of("sum")), ct)[0]


_TRANSPOSES: dict[str, Callable[[Call, Any, Any], Any]] = {
    "allreduce": _from_sum, "reduce": _from_reduce, "bcast": _from_bcast, "allgather": _from_allgather,
    "reduce_scatter": _from_reduce_scatter, "gather": _from_gather, "scatter": _from_scatter,
    "alltoall": _from_alltoall, "sendrecv": _from_sendrecv, "replicated": _from_replicated,
}  # fmt: skip


def _transpose(cotangents: Any, *operands: Any, call: Call) -> list[Any]:
    """All ranks take part in what a transpose sends, also one whose cotangent is zero."""
    (operand,), (cotangent,) = operands, cotangents
    return [_TRANSPOSES[call.function](call, ad.instantiate_zeros(cotangent), operand.aval)]


# Batches


def _batch(operands: Any, axes: Any, *, call: Call) -> tuple[list[Any], list[int]]:
    """One call for the whole batch, whose axis goes first, behind the axis of the ranks, if there is one.

    It goes there on all ranks, which may have it elsewhere: the ranks' programs need not be alike between calls.
    """
    (x,), (axis,) = operands, axes
    name = call.function
    if name == "send":
        raise NotImplementedError(f"{__package__}.send: under vmap recv cannot know the batch; sendrecv can")
    blocks = name in ("reduce_scatter", "alltoall") or name == "scatter" and call.here
    x, axis = jnp.moveaxis(x, axis, int(blocks)), int(name in ("allgather", "gather", "alltoall"))
    if call.like is not None:
        shape, dtype = call.like
        call = Call(**{**vars(call), "like": ((x.shape[0], *shape), dtype)})
    results = bind(call, x)
    return results, [axis] * len(results)


def _made(name: str) -> Primitive:
    made = Primitive(f"collectives_{name}")
    made.multiple_results = True
    made.def_impl(_alone)
    if name == "replicated":
        made.def_abstract_eval(lambda x, call: [jax.core.ShapedArray(x.shape, x.dtype)])
        mlir.register_lowering(made, lambda ctx, x, call: [x])
    else:
        made.def_effectful_abstract_eval(_abstract)
        mlir.register_lowering(made, _lower, platform="cpu")
    ad.primitive_jvps[made] = _jvp
    ad.primitive_transposes[made] = _transpose
    batching.primitive_batchers[made] = _batch
    return made


_PRIMITIVES = {name: _made(name) for name in (*COLLECTIVES, "send", "recv", "sendrecv", "replicated")}
