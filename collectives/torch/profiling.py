"""Collectives as events of torch's profilers, with names like those of torch's backends: ``collectives:all_reduce``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from .work import run_aside

__all__ = ["begun", "enabled"]

_TITLES = {
    "allreduce": "all_reduce", "bcast": "broadcast", "reduce": "reduce", "allgather": "all_gather", "gather": "gather",
    "scatter": "scatter", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all", "barrier": "barrier",
}  # fmt: skip

enabled: Callable[[], bool] = torch.autograd._profiler_enabled


def begun(collective: str, tensors: list[Any]) -> Callable[[], None]:
    """Begin an event with the shapes of these tensors; returns a function that ends the event.

    The event ends in another thread: by that, profilers recognise calls that may progress beside the program.
    """
    flat = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    handle = torch.autograd._record_function_with_args_enter(f"collectives:{_TITLES[collective]}", *flat)
    ended = threading.Event()

    def end() -> None:
        torch.autograd._record_function_with_args_exit(handle)
        ended.set()

    def ends() -> None:
        run_aside(end)
        ended.wait()

    return ends
