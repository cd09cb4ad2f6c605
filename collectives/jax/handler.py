"""Makes the compiled handler known to XLA, and sees to it that all calls have ended when MPI ends."""

from __future__ import annotations

import atexit
import os

import jax
import jaxlib

from ..core import _core
from ..diagnostics.diagnosis import libraries
from .ordering import TARGET, wait_at_exit

__all__: list[str] = []

# XLA asks for the handler's version when it begins to work, and refuses it if they do not fit.
jax.ffi.register_ffi_target(TARGET, _core.xla_handler(), platform="cpu")
atexit.register(wait_at_exit)  # runs before what this library and MPI do at exit
for _package in (jax, jaxlib):  # errors name the lines of the program
    libraries.append(os.path.dirname(_package.__file__ or "") + os.sep)
