"""Calls like earlier ones: what was found about ordinary arrays is remembered, so that a call costs little Python.

An ordinary call has NumPy arrays, contiguous and of their own type, for buffers, a predefined op, and no options but
an algorithm, ``deterministic`` and a timeout. All that its checks depend on is then those, and the arrays' type, length
and place, and only the place is new in the next call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import _core
from .buffers import op_code
from .calls import Arguments, Collective, Draft, Options
from .plans import Shape
from .select import Choice

__all__ = ["Recipe", "Recipes"]

MOST = 1000
_NAMES, _FLAGS = (str, type(None)), (bool, type(None))


class Recipe(NamedTuple):
    """What a call of one form becomes."""

    choice: Choice
    shape: Shape
    nbytes: int
    sends: bool
    receives: bool


def _form(array: Any) -> Any:
    """What decides how an array is treated, besides its place; None for nothing, False for what is not ordinary."""
    if type(array) is np.ndarray:
        flags = array.flags
        return (array.dtype, array.size, flags.writeable) if flags.c_contiguous else False
    return None if array is None else False


class Recipes:
    """The recipes of one communicator."""

    def __init__(self) -> None:
        self._known: dict[Any, Recipe] = {}

    def key(self, collective: Collective, arguments: Arguments, options: Options, blocking: bool) -> Any:
        """The form of a call, or None where it is not an ordinary one."""
        if collective.vector or options.engine is not None or options.stream is not None:
            return None
        if type(options.algorithm) not in _NAMES or type(options.deterministic) not in _FLAGS:
            return None
        sent, received = _form(arguments.sendbuf), _form(arguments.recvbuf)
        if sent is False or received is False or type(arguments.root) is not int:
            return None
        code = op_code(arguments.op) if collective.reduces else -1
        if code is None:
            return None
        how = blocking, options.algorithm, options.deterministic
        return collective.name, how, sent, received, code, arguments.root

    def find(self, key: Any, arguments: Arguments) -> tuple[Recipe, int, int] | None:
        """The recipe for a form, and the addresses of input and vector; None if there is none, or they overlap."""
        recipe = self._known.get(key)
        if recipe is None:
            return None
        send, receive = arguments.sendbuf, arguments.recvbuf
        if receive is None and recipe.sends and recipe.receives:  # a broadcast
            address = _core.address(send)
            return recipe, address, address
        source = _core.address(send) if recipe.sends else 0
        target = _core.address(receive) if recipe.receives else 0
        if source and target and source < target + receive.nbytes and target < source + send.nbytes:
            return None
        return recipe, source, target

    def remember(self, key: Any, collective: Collective, arguments: Arguments, draft: Draft, choice: Choice) -> None:
        """Keep what a call became, if another like it becomes the same."""
        moves_in_place = draft.shape.in_place and collective.name != "bcast"
        spare = draft.target and arguments.recvbuf is None and collective.name != "bcast"
        if moves_in_place or spare or draft.loads or draft.stores or choice.algorithm.name == "mpi":
            return
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[key] = Recipe(choice, draft.shape, draft.nbytes, bool(draft.source), bool(draft.target))
