"""The reductions for devices, as `make cuda` builds them: found, checked, and loaded for one GPU."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from ..core import _cuda

__all__ = ["built", "load", "not_built"]

#: Where the image is, and its index.
FOLDER = Path(__file__).parent


@functools.cache
def _found(folder: Path) -> dict[str, Any] | str:
    """The index of the kernels in a folder, or why they cannot be used."""
    try:
        index: dict[str, Any] = json.loads((folder / "kernels.json").read_text())
        (folder / "kernels.fatbin").stat()
    except (OSError, ValueError):
        return "the CUDA kernels are not built: make cuda"
    if index.get("arguments") != _cuda.ARGUMENTS or not {*_cuda.kernel_names()} <= {*index.get("kernels", ())}:
        return "the CUDA kernels are of another version: make cuda"
    return index


def not_built() -> str | None:
    """Why there are no kernels to load, or None."""
    found = _found(FOLDER)
    return found if isinstance(found, str) else None


def built() -> dict[str, Any]:
    """The index of the kernels: the version of nvcc, the architectures, the names; empty if there are none."""
    found = _found(FOLDER)
    return {} if isinstance(found, str) else found


def load(own: _cuda.CudaDriver) -> _cuda.Kernels | str:
    """The kernels in the thread's current context, or why the driver does not take them."""
    why = not_built()
    if why is not None:
        return why
    try:
        return _cuda.Kernels(own, (FOLDER / "kernels.fatbin").read_bytes())
    except (OSError, _cuda.CudaError, MemoryError) as e:
        return f"the driver does not take the CUDA kernels: {e}"
