"""Makes the compiled handler known to XLA, and sees to it that all calls have ended when MPI ends."""

from __future__ import annotations

import atexit
import os

import jax
import jaxlib

from ..core import _core
from ..diagnostics.diagnosis import libraries
from .ordering import TARGET

__all__: list[str] = []

#: Versions of XLA's interface, from and to, whose data the handler is known to understand.
OLDEST = (0, 1)


def _register() -> None:
    jax.ffi.register_ffi_target(TARGET, _core.xla_handler(), platform="cpu")
    try:
        version = _core.xla_version()
    except RuntimeError as e:
        raise ImportError(f"collectives.jax cannot serve jaxlib {jaxlib.__version__}: {e}") from e
    if version is not None and (version[0] != OLDEST[0] or version < OLDEST):
        raise ImportError(
            f"collectives.jax cannot serve jaxlib {jaxlib.__version__}, whose foreign function interface has version "
            f"{version[0]}.{version[1]}, not one from {OLDEST[0]}.{OLDEST[1]} on"
        )


_register()
atexit.register(jax.effects_barrier)  # runs before what this library and MPI do at exit
for _package in (jax, jaxlib):  # errors name the lines of the program
    libraries.append(os.path.dirname(_package.__file__ or "") + os.sep)
