"""Files in the format safetensors, version 0.3 and later: a length, a JSON header, the bytes of the arrays.

Any library for safetensors reads them. They are not written by one, since an array is to be hashed while it is
written, the disk is to have the file before it gets its name, and the package's NumPy side knows no bfloat16.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..tensors import Array
from .arrays import CODES
from .files import Written, write

LONGEST = 100_000_000  # bytes of a header that other libraries accept
SIZES = {code: 1 if code == "BOOL" else int(re.findall(r"\d+", code)[0]) // 8 for code in CODES.values()}  # bytes


class Place(NamedTuple):
    """Where an array lies in a file: offset and length in bytes."""

    offset: int
    size: int


def write_tensors(path: Path, arrays: Mapping[str, Array]) -> Written:
    """Write `arrays` (C-contiguous, little-endian) by name into the file `path`; a scalar array has shape ().

    Arrays of types that safetensors lacks are written as the bytes that they are. OSError if the disk does not take it.
    """
    header: dict[str, Any] = {}
    offset = 0
    for name, array in arrays.items():
        code = CODES.get(array.dtype.name)
        shape = list(array.shape) if code else [array.nbytes]
        header[name] = {"dtype": code or "U8", "shape": shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the arrays are aligned
    return write(path, _parts(text, arrays))


def _parts(text: bytes, arrays: Mapping[str, Array]) -> Iterator[Any]:
    yield len(text).to_bytes(8, "little")
    yield text
    for array in arrays.values():
        yield array.reshape(-1).view(np.uint8)


def places(path: Path) -> dict[str, Place]:
    """Where the arrays of a file lie, by name. ValueError if it is no whole file in this format."""
    size = os.stat(path).st_size
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(LONGEST, size - 8):
                raise ValueError("its header does not end")
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            found = {name: _place(entry, 8 + length, size) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a file of safetensors: {error}") from error
    return found


def _place(entry: Any, begin: int, end: int) -> Place:
    low, high = entry["data_offsets"]
    if not 0 <= low <= high <= end - begin or math.prod(entry["shape"]) * SIZES[entry["dtype"]] != high - low:
        raise ValueError(f"an array from {low} to {high}, of shape {entry['shape']}")
    return Place(begin + low, high - low)


def read_tensor(path: Path, place: Place, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """The array at `place` of the file `path`. ValueError if it has not the bytes for `dtype` and `shape`."""
    if math.prod(shape) * dtype.itemsize != place.size or min(shape, default=0) < 0:
        raise ValueError(f"{path}: {place.size} bytes are not an array of {dtype} and shape {shape}")
    made = np.empty(shape, dtype)
    if place.size:
        with open(path, "rb", buffering=0) as file:
            file.seek(place.offset)
            rest = made.reshape(-1).view(np.uint8).data
            while len(rest):
                if not (count := file.readinto(rest)):
                    raise ValueError(f"{path} ends too early")
                rest = rest[count:]
    return made
