"""Element types: MPI datatypes and NumPy dtypes, with their sizes, extents and kernel codes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from ..core import _core
from .signature import SWAPPED, type_name

__all__ = ["ACCUMULATORS", "DTYPE_CODES", "PAIRS", "Type", "of_any", "of_mpi", "of_name", "of_numpy"]

#: The kernels' code of each element type, by name ("float32").
DTYPE_CODES = {name: code for code, name in enumerate(_core.DTYPES)}

#: The pair types of MINLOC and MAXLOC.
PAIRS = {
    "float_int": MPI.FLOAT_INT, "double_int": MPI.DOUBLE_INT, "long_int": MPI.LONG_INT,
    "two_int": MPI.INT_INT, "short_int": MPI.SHORT_INT, "long_double_int": MPI.LONG_DOUBLE_INT,
}  # fmt: skip
#: The types of the values of these; an index is an int.
_VALUES = {
    "float_int": MPI.FLOAT, "double_int": MPI.DOUBLE, "long_int": MPI.LONG, "two_int": MPI.INT,
    "short_int": MPI.SHORT, "long_double_int": MPI.LONG_DOUBLE,
}  # fmt: skip


_BYTES = "uint8"
#: Number of each basic type, by name; the node-local engine compares these numbers between ranks.
_BASIC = {
    type_name(number): number
    for name, code in DTYPE_CODES.items() if name != _BYTES
    for number in (code, code + SWAPPED)
}  # fmt: skip
MOST_RUNS = 64  # the most runs of equal basic types in a type map that is compared


def _accumulator(name: str) -> np.dtype:
    words = _core.itemsize(_core.wider(DTYPE_CODES[name])) // 8
    return np.dtype([("limbs", np.uint64, words - 1), ("seen", np.uint64)])


#: Types of accumulators of exact sums (csrc/kernels/exact.h), by the type of the operands.
ACCUMULATORS = {np.dtype(name): _accumulator(name) for name in ("float32", "float64")}
#: Names of types that MPI does not know.
_OURS = ("float16", "bfloat16", *(_core.DTYPES[_core.wider(DTYPE_CODES[d.name])] for d in ACCUMULATORS))


@dataclass(frozen=True, slots=True)
class Type:
    """The type of an element.

    An element has ``size`` bytes of data; ``extent`` bytes separate the starts of consecutive elements. The data lie
    from ``lower`` to before ``upper``, relative to the element. ``code`` is the kernels' code, None for types without
    kernels. ``named`` is the MPI datatype, None if it follows from the code. ``dense``: elements have no gaps and are
    in the order of the type map, so that memory and message are equal. ``parts`` names the basic types, which must be
    equal on all ranks; "" matches anything: bytes, and types that only NumPy knows.
    """

    name: str
    size: int
    extent: int
    upper: int
    code: int | None
    named: MPI.Datatype | None
    dense: bool
    lower: int = 0
    parts: str = ""

    @property
    def basic(self) -> int:
        """Number of the basic type that the type consists of, for the engine; -1 for bytes and mixtures."""
        return _BASIC.get(self.parts, -1)

    @property
    def datatype(self) -> MPI.Datatype | None:
        """The MPI datatype; None if MPI has none (float16, bfloat16, accumulators)."""
        if self.named is not None or self.code is None:
            return self.named
        return _mpi_datatype(_core.DTYPES[self.code])

    @property
    def gapless(self) -> bool:
        """Whether an op may be applied to elements of the type as one contiguous run of bytes."""
        return self.code is not None or (self.size == self.extent == self.upper and self.lower == 0)


@functools.cache
def _mpi_datatype(name: str) -> MPI.Datatype | None:
    if name in _OURS:
        return None
    return PAIRS[name] if name in PAIRS else MPI.Datatype.fromcode(np.dtype(name).char)


_of_dtype: dict[np.dtype, Type] = {}


def of_numpy(dtype: np.dtype) -> Type:
    """The type of an array's elements; for types that MPI does not know, without code and datatype."""
    known = _of_dtype.get(dtype)
    if known is None:
        if len(_of_dtype) > 1000:
            _of_dtype.clear()
        code = _code_of(dtype)
        named = _unserved(dtype) if code is None else None
        size = dtype.itemsize
        known = Type(
            _name(dtype, code, named), size, size, size, code, named, True, parts=_parts_of_numpy(dtype, code, named)
        )
        _of_dtype[dtype] = known
    return known


def _code_of(dtype: np.dtype) -> int | None:
    for terms, accumulator in ACCUMULATORS.items():
        if dtype == accumulator:
            return _core.wider(DTYPE_CODES[terms.name])
    return DTYPE_CODES.get(dtype.name) if dtype.isnative else None


def of_name(name: str, size: int | None = None) -> Type:
    """The type ``name`` of the kernels or of NumPy; if neither knows it, a type of ``size`` bytes."""
    code = DTYPE_CODES.get(name)
    if code is None and size is None:
        return of_numpy(np.dtype(name))
    size = size if code is None else _core.itemsize(code)
    assert size is not None
    return Type(name, size, size, size, code, None, True, parts="" if name == _BYTES else name)


def of_any(dtype: Any) -> Type:
    """The type for a name, a NumPy dtype, a torch dtype or an MPI datatype."""
    if isinstance(dtype, MPI.Datatype):
        return of_mpi(dtype, "dtype")
    name = str(dtype).removeprefix("torch.")
    return of_name(name) if name in DTYPE_CODES else of_numpy(np.dtype(dtype))


def _parts_of_numpy(dtype: np.dtype, code: int | None, named: MPI.Datatype | None) -> str:
    if not dtype.isnative and dtype.name in DTYPE_CODES:
        return type_name(DTYPE_CODES[dtype.name] + SWAPPED)
    if dtype.name == _BYTES or (code is None and dtype.kind in "VS"):
        return ""
    return _name(dtype, code, named)


def _name(dtype: np.dtype, code: int | None, named: MPI.Datatype | None) -> str:
    return _core.DTYPES[code] if code is not None else named.Get_name() if named is not None else str(dtype)


def _unserved(dtype: np.dtype) -> MPI.Datatype | None:
    """The MPI datatype of a NumPy type that has no kernels, such as long double; None if there is none."""
    try:
        return MPI.Datatype.fromcode(dtype.char) if dtype.isnative and dtype.kind in "biufc" else None
    except (ValueError, TypeError):
        return None


_predefined: dict[int, Type] = {}


def of_mpi(datatype: MPI.Datatype | str, argument: str) -> Type:
    """The type for an MPI datatype or its code; TypeError for anything else, ValueError for a null datatype."""
    if isinstance(datatype, str):
        try:
            datatype = MPI.Datatype.fromcode(datatype)
        except (KeyError, ValueError, TypeError) as e:
            raise TypeError(f"{argument}: {e}") from None
    if not isinstance(datatype, MPI.Datatype):
        raise TypeError(f"{argument}: {datatype!r} is no MPI datatype")
    if datatype == MPI.DATATYPE_NULL:
        raise ValueError(f"{argument}: the datatype is null")
    known = _predefined.get(datatype.handle)
    if known is None:
        known = _made(datatype)
        if datatype.is_predefined:
            _predefined[datatype.handle] = known
    return known


def _made(datatype: MPI.Datatype) -> Type:
    size = datatype.Get_size()
    lower, extent = datatype.Get_extent()
    first, length = datatype.Get_true_extent()
    upper = first + length
    code = None
    if datatype.is_named:
        pair = _pair(datatype)
        if pair is not None:
            code = DTYPE_CODES[pair]
        elif size == extent:
            code = _code(datatype)
    dense = size == extent == upper and lower == first == 0 and _in_order(datatype)
    return Type(_label(datatype), size, extent, upper, code, datatype, dense, first, _parts_of_mpi(datatype))


def _pair(datatype: MPI.Datatype) -> str | None:
    """Name of a pair type; None for other types."""
    return next((name for name, known in PAIRS.items() if known == datatype), None)


def _label(datatype: MPI.Datatype) -> str:
    return datatype.Get_name() or "a derived datatype"


def _code(datatype: MPI.Datatype) -> int | None:
    try:
        return DTYPE_CODES.get(np.dtype(datatype.tocode()).name)
    except (ValueError, TypeError):
        return None


def _in_order(datatype: MPI.Datatype) -> bool:
    """Whether the data of a datatype without gaps are known to lie in memory in the order of the type map."""
    combiner: Any
    how: Any
    base, combiner, how = datatype.decode()
    if combiner == "NAMED":
        return True
    try:
        return combiner in ("DUP", "CONTIGUOUS", "VECTOR", "HVECTOR", "RESIZED") and _made(base).dense
    finally:
        for each in how["datatypes"] if combiner == "STRUCT" else [base]:
            if not each.is_predefined:
                each.Free()


def _parts_of_mpi(datatype: MPI.Datatype) -> str:
    """The basic types of the type map, as one period if they repeat; "" for bytes, and if too long to compare."""
    runs = _runs(datatype)
    if not runs:
        return ""
    if len(runs) == 1:
        return runs[0][0]
    if runs[0][0] == runs[-1][0]:  # the last run of an element and the first of the next are one
        return ""
    period = next(n for n in range(1, len(runs) + 1) if len(runs) % n == 0 and runs == runs[:n] * (len(runs) // n))
    return "+".join(f"{n} {name}" for name, n in runs[:period])


def _runs(datatype: MPI.Datatype) -> list[tuple[str, int]] | None:
    """Runs of basic types in the order of the type map, as (name, length); None for bytes and if there are too many."""
    if datatype.is_predefined:
        pair = _pair(datatype)
        if pair is not None:
            return _joined(_runs(_VALUES[pair]), _runs(MPI.INT), 1)
        name = _basic_name(datatype)
        return [(name, 1)] if name else None
    how: Any
    base, combiner, how = datatype.decode()
    bases, lengths = [base], [0]
    if combiner != "STRUCT":
        lengths = [datatype.size // base.size if base.size else 0]
    else:
        bases, lengths = how["datatypes"], how["blocklengths"]
    found: list[tuple[str, int]] | None = []
    for each, length in zip(bases, lengths, strict=True):
        found = _joined(found, _runs(each), length)
        if not each.is_predefined:
            each.Free()
    return found


def _joined(
    found: list[tuple[str, int]] | None, runs: list[tuple[str, int]] | None, times: int
) -> list[tuple[str, int]] | None:
    """``found`` followed by ``runs`` repeated ``times`` times; None if either is None or the result is too long."""
    if found is None or runs is None:
        return None
    if len(runs) == 1:
        runs, times = [(runs[0][0], runs[0][1] * times)], min(times, 1)
    if len(found) + len(runs) * times > MOST_RUNS:
        return None
    for name, n in runs * times:
        if found and found[-1][0] == name:
            n += found.pop()[1]
        found.append((name, n))
    return found


def _basic_name(datatype: MPI.Datatype) -> str:
    """Name of the basic type of a predefined datatype that is no pair; "" for bytes."""
    if datatype in (MPI.BYTE, MPI.PACKED):
        return ""
    code = _code(datatype)
    name = _core.DTYPES[code] if code is not None else datatype.Get_name()
    return "" if name == _BYTES else name
