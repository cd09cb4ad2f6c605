"""The collectives within programs of JAX on the CPU, under ``jax.jit`` and its transformations; see docs/jax.md."""

from __future__ import annotations

from . import handler as _handler  # noqa: F401  # makes the collectives known to XLA
from .functions import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    bcast,
    failure,
    gather,
    recv,
    reduce,
    reduce_scatter,
    replicated,
    scatter,
    send,
    sendrecv,
)

__all__ = [
    "allgather", "allreduce", "alltoall", "barrier", "bcast", "failure", "gather", "recv", "reduce", "reduce_scatter",
    "replicated", "scatter", "send", "sendrecv",
]  # fmt: skip
