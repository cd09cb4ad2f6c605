"""The order of calls: an ordered effect of JAX, and the tokens that it becomes in a compiled program.

JAX has no public interface for effects of other packages. All that is used of its private modules is in this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

__all__ = ["ORDERED", "TARGET", "lowered"]

TARGET = "collectives"  # the handler's name in XLA

try:
    from jax._src import core, effects

    class CommunicationEffect(effects.Effect):
        """That a call communicates: all such calls of a process run in the order in which the program makes them."""

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
except (ImportError, AttributeError) as e:
    raise ImportError(f"collectives.jax does not know JAX {jax.__version__}: {e}") from e

ORDERED = CommunicationEffect()


def lowered(ctx: Any, operands: Sequence[Any], avals: Sequence[Any], results: Sequence[Any], site: int) -> list[Any]:
    """A call of the handler with these operands, behind all calls before it; the values of its ``results``.

    ``avals`` and ``results`` are the abstract values of operands and results.
    """
    inner = ctx.replace(avals_in=[*avals, _TOKEN], avals_out=[*results, _TOKEN])
    rule = jax.ffi.ffi_lowering(TARGET, has_side_effect=True)
    *values, token = rule(inner, *operands, ctx.tokens_in.get(ORDERED), site=np.int64(site))
    ctx.set_tokens_out(mlir.TokenSet({ORDERED: token}))
    return values
