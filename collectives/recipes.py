"""Calls like earlier ones: what was found about ordinary arrays is remembered, so that a call costs little Python.

An ordinary call has NumPy arrays, contiguous, for buffers, perhaps with counts, displacements and a predefined
datatype, a predefined op, and no options but an algorithm, ``deterministic`` and a timeout. All that its checks depend
on is then those, and the arrays' type, length and place, and only the place is new in the next call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from . import _core
from .buffers import op_code
from .calls import Arguments, Collective, Draft, Options
from .plans import Shape
from .select import Choice

__all__ = ["Recipe", "Recipes", "holds"]

MOST = 1000
MOST_RANKS = 256  # whose counts are remembered: beyond, the keys would take much memory
_NAMES, _FLAGS = (str, type(None)), (bool, type(None))


class Recipe(NamedTuple):
    """What a call of one form becomes."""

    choice: Choice
    shape: Shape
    nbytes: int
    send_offset: int | None  # bytes from where the array begins; None where nothing is sent
    receive_offset: int | None


_DATATYPES = {id(value): name for name, value in vars(MPI).items() if type(value) is MPI.Datatype}


def _form(spec: Any) -> Any:
    """What decides how a buffer is treated, besides its place; None for nothing, False for what is not ordinary."""
    if type(spec) is np.ndarray:
        flags = spec.flags
        return (spec.dtype, spec.size, flags.writeable) if flags.c_contiguous else False
    if type(spec) not in (list, tuple):
        return None if spec is None else False
    if not 2 <= len(spec) <= 4 or type(spec[0]) is not np.ndarray:
        return False
    parts = _parts(spec[1:])
    return (_form(spec[0]), parts) if parts is not False else False


def _parts(parts: Any) -> Any:
    made = tuple(map(_part, parts))
    return False if any(part is False for part in made) else made


def _part(part: Any) -> Any:
    """The same of a datatype, of counts, displacements, or a tuple of both; it matters which kind of sequence it is."""
    if part is None or type(part) is int:
        return part
    if type(part) is MPI.Datatype:
        return _DATATYPES.get(id(part), False)
    numbers = part.tolist() if type(part) is np.ndarray and part.ndim == 1 else part
    if type(numbers) not in (list, tuple) or len(numbers) > MOST_RANKS:
        return False
    if all(type(number) is int for number in numbers):
        return type(part), tuple(numbers)
    return _parts(part) if type(part) is tuple else False


def _array(spec: Any) -> Any:
    return spec[0] if type(spec) in (list, tuple) else spec


def holds(arguments: Arguments) -> list[Any]:
    """What keeps the arrays of an ordinary call where they are."""
    arrays = map(_array, (arguments.sendbuf, arguments.recvbuf))
    return [_core.hold(array) for array in arrays if array is not None]


class Recipes:
    """The recipes of one communicator."""

    def __init__(self) -> None:
        self._known: dict[Any, Recipe] = {}

    def key(self, collective: Collective, arguments: Arguments, options: Options, blocking: bool) -> Any:
        """The form of a call, or None where it is not an ordinary one."""
        if options.engine is not None or options.stream is not None:
            return None
        if type(options.algorithm) not in _NAMES or type(options.deterministic) not in _FLAGS:
            return None
        sent, received = _form(arguments.sendbuf), _form(arguments.recvbuf)
        if sent is False or received is False or type(arguments.root) is not int:
            return None
        code = op_code(arguments.op) if collective.reduces else -1
        if code is None:
            return None
        counts = _part(arguments.recvcounts)
        if counts is False or (counts is None and collective.name == "reduce_scatter"):
            return None
        how = blocking, options.algorithm, options.deterministic
        return collective.name, how, sent, received, code, arguments.root, counts

    def find(self, key: Any, arguments: Arguments) -> tuple[Recipe, int, int] | None:
        """The recipe for a form, and the addresses of input and vector; None if there is none, or they overlap."""
        recipe = self._known.get(key)
        if recipe is None:
            return None
        send, receive = _array(arguments.sendbuf), _array(arguments.recvbuf)
        if recipe.send_offset is None:
            return recipe, 0, 0 if recipe.receive_offset is None else _core.address(receive) + recipe.receive_offset
        source = _core.address(send)
        if recipe.receive_offset is None:
            return recipe, source + recipe.send_offset, 0
        if receive is None:  # a broadcast
            return recipe, source + recipe.send_offset, source + recipe.send_offset
        target = _core.address(receive)
        if source < target + receive.nbytes and target < source + send.nbytes:
            return None
        return recipe, source + recipe.send_offset, target + recipe.receive_offset

    def remember(self, key: Any, collective: Collective, arguments: Arguments, draft: Draft, choice: Choice) -> None:
        """Keep what a call became, if another like it becomes the same."""
        moves_in_place = draft.shape.in_place and collective.name != "bcast"
        spare = draft.target and arguments.recvbuf is None and collective.name != "bcast"
        if moves_in_place or spare or draft.loads or draft.stores or choice.algorithm.name == "mpi":
            return
        if len(self._known) >= MOST:
            self._known.clear()
        send, receive = _array(arguments.sendbuf), _array(arguments.recvbuf)
        send_offset = draft.source - _core.address(send) if draft.source else None
        receive_offset = draft.target - _core.address(send if receive is None else receive) if draft.target else None
        self._known[key] = Recipe(choice, draft.shape, draft.nbytes, send_offset, receive_offset)
