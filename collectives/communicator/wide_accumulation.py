"""Calls that run on temporaries: elements of a wider type than the caller's, or elements that are divided already.

A schedule sends the partial results of a reduction as messages. If rounding them would make the bits of the result
depend on the schedule, the call runs on temporaries of a wider type: float32 for sums and products of float16 and
bfloat16 in deterministic mode, exact accumulators for ``collectives.REPRODUCIBLE_SUM``. A partial sum of float16 may
also be infinite where the mean is not, so a mean of float16 is the sum of elements that are divided first, as NCCL
computes it. The node-local engine needs none of this, since it folds all operands of an element at once and rounds the
result once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..arguments.calls import Draft
from ..arguments.datatypes import DTYPE_CODES
from ..arguments.packing import Packed, region
from ..arguments.shape import Shape
from ..core import _core

__all__ = ["MOST", "REPRODUCIBLE", "Form", "form", "needed", "parts"]

#: Code of ``collectives.REPRODUCIBLE_SUM``.
REPRODUCIBLE = _core.OPS.index("reproducible_sum")
#: Bytes of temporaries that a blocking call holds at a time.
MOST = 16 << 20

_HALVES = DTYPE_CODES["float16"], DTYPE_CODES["bfloat16"]
_FLOATS = DTYPE_CODES["float32"], DTYPE_CODES["float64"]
_ROUNDING = tuple(_core.OPS.index(name) for name in ("sum", "prod", "avg"))

_SUM, _AVG = _core.OPS.index("sum"), _core.OPS.index("avg")

Spans = list[tuple[int, int]]  # address and number of elements


class Widened(Packed):
    """A temporary of wider elements, filled from the caller's elements, and rounded to them."""

    def __init__(self, dtype: int, spans: Spans, wide: int | None = None):
        """``wide``: the code of the temporary's type, by default the wider one."""
        self._dtype, self._spans = dtype, spans
        self._sizes = _core.itemsize(dtype), _core.itemsize(_core.wider(dtype) if wide is None else wide)
        self.bytes = np.empty(max(1, sum(count for _, count in spans) * self._sizes[1]), np.uint8)

    def __del__(self) -> None:
        """Do nothing: unlike the base class, this one has no datatype of MPI's to free."""

    def load(self) -> None:
        """Fill the temporary from the caller's elements."""
        for narrow, wide in self._pairs():
            _core.widen(self._dtype, wide, narrow)

    def store(self) -> None:
        """Round the temporary to the caller's elements."""
        for narrow, wide in self._pairs():
            _core.narrow(self._dtype, narrow, wide)

    def _pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        narrow, wide = self._sizes
        position = 0
        for address, count in self._spans:
            if count:
                yield region(address, count * narrow), self.bytes[position : position + count * wide]
            position += count * wide


class Divided(Widened):
    """A temporary of the caller's type, filled with the caller's elements divided by the number of ranks."""

    def __init__(self, dtype: int, size: int, spans: Spans):
        super().__init__(dtype, spans, dtype)
        self._size = size

    def load(self) -> None:
        """Fill the temporary with the quotients."""
        for source, divided in self._pairs():
            _core.scale(self._dtype, divided, source, self._size)

    def store(self) -> None:
        """Copy the temporary to the caller's elements."""
        for target, result in self._pairs():
            target[:] = result


class Form(NamedTuple):
    """What parts of a call run on: temporaries that ``make`` makes of spans, their type's code, and the op."""

    make: Callable[[Spans], Widened]
    dtype: int
    op: int


def needed(shape: Shape, linear: bool) -> bool:
    """Whether a schedule must run a call of ``shape`` on wider elements; ``linear``: it must fold in rank order."""
    if shape.op == REPRODUCIBLE:
        return shape.dtype in _FLOATS
    return linear and shape.dtype in _HALVES and shape.op in _ROUNDING


def _divides(shape: Shape) -> bool:
    """Whether a call between processes must divide its elements before it adds them."""
    return shape.op == _AVG and shape.dtype == _HALVES[0]


def form(shape: Shape, size: int, linear: bool, scheduled: bool) -> Form | None:
    """What a call between processes runs on in place of its own elements; None: on these.

    ``linear``: it must fold in rank order; ``scheduled``: a schedule runs it, not the hierarchical algorithm.
    """
    if scheduled and needed(shape, linear):
        return Form(functools.partial(Widened, shape.dtype), _core.wider(shape.dtype), shape.op)
    if _divides(shape):
        return Form(functools.partial(Divided, shape.dtype, size), shape.dtype, _SUM)
    return None


def parts(draft: Draft, rank: int, size: int, most: int | None, form: Form) -> Iterator[Draft]:
    """The call on temporaries: calls of about ``most`` bytes each (None: one call), as many on all ranks."""
    nbytes = draft.shape.elements * _core.itemsize(form.dtype)
    number = 1 if most is None else max(1, -(-nbytes // most))
    cut = _blocks if draft.shape.collective == "reduce_scatter" else _elements
    for i in range(number):
        yield cut(draft, rank, size, i, number, form)


def _shape(draft: Draft, elements: int, in_place: bool, form: Form) -> Shape:
    return draft.shape._replace(
        elements=elements, itemsize=_core.itemsize(form.dtype), dtype=form.dtype, op=form.op, in_place=in_place
    )


def _elements(draft: Draft, rank: int, size: int, i: int, number: int, form: Form) -> Draft:
    """Part i of ``number`` of a call that treats every element alike: one temporary, in place if there is a result."""
    shape, narrow = draft.shape, draft.shape.itemsize
    first, end = _core.partition(shape.elements, number)[i : i + 2]
    source = form.make([(draft.source + first * narrow, end - first)])
    stores: list[Packed] = []
    if draft.target:
        result = form.make([(draft.target + first * narrow, end - first)])
        result.bytes = source.bytes
        if not (shape.collective == "exscan" and rank == 0):  # rank 0's result is not changed
            stores.append(result)
    made = _shape(draft, end - first, bool(draft.target), form)
    return replace(
        draft, shape=made, source=source.address, target=source.address if draft.target else 0,
        agreed=draft.agreed and made.nbytes, loads=[source], stores=stores,
    )  # fmt: skip


def _blocks(draft: Draft, rank: int, size: int, i: int, number: int, form: Form) -> Draft:
    """Part i of ``number`` of every block of a reduce-scatter; the caller's own stores follow the last part."""
    shape, narrow = draft.shape, draft.shape.itemsize
    blocks = shape.cuts or _core.partition(shape.elements, size)
    spans, first = [], 0
    for r, (begin, end) in enumerate(itertools.pairwise(blocks)):
        a, b = _core.partition(end - begin, number)[i : i + 2]
        spans.append((draft.source + (begin + a) * narrow, b - a))
        first = a if r == rank else first
    cuts = tuple(itertools.accumulate((count for _, count in spans), initial=0))
    source = form.make(spans)
    result = form.make([(draft.target + first * narrow, spans[rank][1])])
    made = _shape(draft, cuts[-1], False, form)._replace(cuts=cuts if shape.cuts else None)
    last = draft.stores if i == number - 1 else []
    return replace(
        draft, shape=made, source=source.address, target=result.address, agreed=made.nbytes,
        loads=[source], stores=[result, *last],
    )  # fmt: skip
