"""The order of calls: an ordered effect of JAX, and the tokens that it becomes in a compiled program.

JAX has no public interface for effects of other packages. All that is used of its private modules is in this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

__all__ = ["ORDERED", "TARGET", "forget_failed", "lowered", "wait_at_exit"]

TARGET = "collectives"  # the handler's name in XLA

try:
    from jax._src import core, dispatch, effects
    from jax._src.lax.control_flow import loops

    class CommunicationEffect(effects.Effect):
        """That a call communicates: all such calls of a thread run in the order in which it makes them."""

        def __repr__(self) -> str:
            return "Communication"

        def __hash__(self) -> int:  # the same in every process, since JAX hashes programs for its cache
            return 0x636F6C6C

        def __eq__(self, other: object) -> bool:
            return isinstance(other, CommunicationEffect)

    for _known in (
        effects.ordered_effects, effects.lowerable_effects, effects.control_flow_allowed_effects,
        effects.custom_derivatives_allowed_effects, effects.remat_allowed_effects,
    ):  # fmt: skip
        _known.add_type(CommunicationEffect)
    _TOKEN: Any = core.abstract_token
    _TOKENS: Any = dispatch.runtime_tokens  # of each thread: what its next program waits for
    _SET_RESULT: Any = dispatch.RuntimeTokenSet.set_token_result
    _LOOP: Any = loops._while_lowering
except (ImportError, AttributeError) as e:
    raise ImportError(f"collectives.jax does not know JAX {jax.__version__}: {e}") from e

ORDERED = CommunicationEffect()
_LAST: dict[object, Any] = {}  # by thread, also one that has ended: the token of its last program with calls


def _set_result(tokens: Any, effect: Any, token: Any) -> None:
    """Keep the token that a program ends with. JAX's method is overridden since each thread sees its own tokens only,
    and the process must not end before the programs of all threads have."""
    _SET_RESULT(tokens, effect, token)
    if effect != ORDERED:
        return
    if not hasattr(tokens, "collectives_thread"):  # the first program of this thread: forget what has ended
        for thread, last in list(_LAST.items()):
            if last._buf.is_ready() and not _failed(last):
                _LAST.pop(thread, None)
        tokens.collectives_thread = object()
    _LAST[tokens.collectives_thread] = token


dispatch.RuntimeTokenSet.set_token_result = _set_result


def _lowered_loop(ctx: Any, *args: Any, cond_jaxpr: Any, **parameters: Any) -> Any:
    """A ``while_loop``, by JAX's own rule. NotImplementedError for one in a batch that JAX would compute wrongly: where
    the condition has effects, JAX lets all elements go on until the last one ends."""
    if cond_jaxpr.out_avals[0].shape and ORDERED in cond_jaxpr.effects:
        raise NotImplementedError(
            f"{__package__}: vmap of a while_loop with a call in its condition, if the elements of the batch end at "
            "different times; make the call in the loop's body"
        )
    return _LOOP(ctx, *args, cond_jaxpr=cond_jaxpr, **parameters)


mlir.register_lowering(jax.lax.while_p, _lowered_loop, platform="cpu")


def lowered(ctx: Any, operands: Sequence[Any], avals: Sequence[Any], results: Sequence[Any], site: int) -> list[Any]:
    """A call of the handler with these operands, behind all calls before it; the values of its ``results``.

    ``avals`` and ``results`` are the abstract values of operands and results.
    """
    inner = ctx.replace(avals_in=[*avals, _TOKEN], avals_out=[*results, _TOKEN])
    rule = jax.ffi.ffi_lowering(TARGET, has_side_effect=True)
    *values, token = rule(inner, *operands, ctx.tokens_in.get(ORDERED), site=np.int64(site))
    ctx.set_tokens_out(mlir.TokenSet({ORDERED: token}))
    return values


def forget_failed() -> None:
    """Let this thread's programs run again after one has failed in the background: JAX has each wait for the last."""
    last = _TOKENS.current_tokens.get(ORDERED)
    if last is None or not last._buf.is_ready() or not _failed(last):
        return
    del _TOKENS.current_tokens[ORDERED]
    _LAST.pop(_TOKENS.collectives_thread, None)
    for device, token in list(_TOKENS.output_runtime_tokens.items()):
        if _failed(token):
            del _TOKENS.output_runtime_tokens[device]


def _failed(token: Any) -> bool:
    """Whether the program that ends with this token fails."""
    try:
        token.block_until_ready()
    except jax.errors.JaxRuntimeError:
        return True
    return False


def wait_at_exit() -> None:
    """Wait until the calls of all threads have ended. JaxRuntimeError if one fails; JAX does not raise it again."""
    try:
        for token in [token for token in list(_LAST.values()) if _failed(token)]:
            token.block_until_ready()
        jax.effects_barrier()
    finally:
        _TOKENS.clear()
