"""NVIDIA's driver, which is loaded when it is needed first, and why it cannot be used."""

from __future__ import annotations

import functools
import os

from ..core import _cuda

__all__ = ["driver", "why_not"]

_LIBRARY = "libcuda.so.1"


@functools.cache
def _load() -> _cuda.CudaDriver | str:
    """The driver, or why there is none."""
    try:
        found = _cuda.CudaDriver(os.environ.get("COLLECTIVES_CUDA_DRIVER") or _LIBRARY)
        return found if found.devices() else "NVIDIA's driver finds no GPU"
    except (OSError, _cuda.CudaError, MemoryError) as e:
        return f"NVIDIA's driver cannot be used: {e}"


def driver() -> _cuda.CudaDriver:
    """The driver, which the first call loads; RuntimeError with the reason if it cannot be used."""
    found = _load()
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def why_not() -> str | None:
    """Why there can be no arrays on a GPU, or None; loads the driver."""
    found = _load()
    return found if isinstance(found, str) else None
