"""Tensors on GPUs of NVIDIA's: which calls are on them, the stream that torch works on, and the end of a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import failed
from .calls import Call
from .work import Job

__all__ = ["SERVED", "Issued", "check_config", "gpu_of", "stream_of"]

#: The types of devices whose tensors the backend takes: GPUs if torch finds one.
SERVED = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _tensors(owners: Any) -> Iterator[torch.Tensor]:
    if isinstance(owners, torch.Tensor):
        yield owners
    elif isinstance(owners, (list, tuple)):
        for one in owners:
            yield from _tensors(one)


def gpu_of(calls: Sequence[Call]) -> torch.device | None:
    """The GPU on which the memory of calls is, None if it is the processor's; ValueError for several devices."""
    if SERVED == ["cpu"]:
        return None
    devices = {tensor.device for call in calls if call.name != "barrier" for tensor in _tensors(call.owners)}
    if len(devices) > 1:
        raise ValueError(f"tensors on several devices: {', '.join(sorted(map(str, devices)))}")
    return next((device for device in devices if device.type == "cuda"), None)


def check_config(group: dist.ProcessGroup, gpu: torch.device) -> None:
    """RuntimeError if the program has named another backend for GPUs than for the processor.

    If this library's backend is one of them, torch makes no other one for the group.
    """
    config = distributed_c10d._world.pg_backend_config.get(group, "")
    named = dict(part.split(":") for part in config.split(",") if ":" in part)
    if named.get(gpu.type, "collectives") != "collectives":
        raise RuntimeError(
            f"{config}: torch has made no backend {named[gpu.type]!r} for this group; make a group of its own for "
            f"tensors on {gpu.type}, by torch.distributed.new_group(backend={named[gpu.type]!r})"
        )


def stream_of(gpu: torch.device) -> int:
    """The handle of the stream on which torch works now."""
    return torch.cuda.current_stream(gpu).cuda_stream


class Issued(Job):
    """Calls on a GPU, in the order of the stream on which torch works now: their results are there after its event."""

    def __init__(self, results: list[Any], gpu: torch.device):
        super().__init__(results)
        self._gpu, self._event = gpu, torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(gpu))

    def _wait(self, timeout: float | None) -> None:
        """Let the stream on which torch works now wait, as with NCCL; the program does not."""
        self._event.wait(torch.cuda.current_stream(self._gpu))

    def _new_future(self) -> torch.futures.Future:
        return failed.Future(devices=[self._gpu])  # the streams that wait for it are torch's business

    def _is_completed_soon(self) -> bool:
        """True: the future is complete at once, and torch lets the streams that use its value wait.

        So its callbacks run where they are attached, and calls that they make have the same place on all ranks.
        """
        return True

    def is_completed(self) -> bool:
        """Whether the GPU has done it."""
        return self._event.query()
