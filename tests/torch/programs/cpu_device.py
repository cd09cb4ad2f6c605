"""CPU memory in the place of CUDA devices, so that tests marked for GPUs run where there are none.

While :func:`on_cpu` is active, a device that a program names by number or as ``cuda`` is the CPU: factories, moves of
tensors and modules, and DistributedDataParallel's ``device_ids``. Streams and events are ones whose work is done when
it is given to them, as the CPU's is. A group asked for with the backend ``nccl`` has the one that is tested.
"""

from __future__ import annotations

import contextlib
import os
from unittest import mock

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode


def to_cpu(device):
    """The CPU for what names a GPU: a number, ``cuda:1``, ``torch.device("cuda")``; anything else as it is."""
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cpu")
    if isinstance(device, str | torch.device) and torch.device(device).type == "cuda":
        return torch.device("cpu")
    return device


class Stream:
    """A stream, or an event on one, of a device that does at once what it is told."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def record(self, stream=None):
        """Nothing is under way that an event could mark."""

    wait = wait_event = wait_stream = synchronize = record


class CpuDevice(TorchFunctionMode):
    """Sends what is meant for a GPU to the CPU; ``x.cuda()`` is x, as it is for a tensor that is on the GPU already."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.record_stream:
            return None
        if func is torch.Tensor.to and len(args) > 1 and not isinstance(args[1], torch.dtype | torch.Tensor):
            args = (args[0], to_cpu(args[1]), *args[2:])
        if "device" in kwargs:
            kwargs["device"] = to_cpu(kwargs["device"])
        return func(*args, **kwargs)


def moved(to):
    """``Module.to`` for which GPUs are the CPU."""
    return lambda self, *args, **kwargs: to(
        self, *map(to_cpu, args), **{name: to_cpu(value) for name, value in kwargs.items()}
    )


def without_device_ids(init):
    """``DistributedDataParallel.__init__`` for modules that are on the CPU."""

    def __init__(self, module, device_ids=None, output_device=None, *args, **kwargs):
        init(self, module, None, None, *args, **kwargs)

    return __init__


def of_tested_backend(new_group):
    """``new_group`` for which NCCL is the backend that is tested."""
    tested = dist.get_backend

    def make(*args, backend=None, **kwargs):
        return new_group(*args, backend=tested() if backend == "nccl" else backend, **kwargs)

    return make


def object_on_cpu(function):
    """An object collective of torch.distributed whose ``device`` may be a GPU."""
    return lambda *args, device=None, **kwargs: function(*args, device=to_cpu(device), **kwargs)


@contextlib.contextmanager
def on_cpu():
    """Let GPUs be the CPU, as many of them as there are ranks."""
    ddp, module, world = torch.nn.parallel.DistributedDataParallel, torch.nn.Module, int(os.environ["WORLD_SIZE"])
    subgroups = dist.new_subgroups
    stand_ins = {
        torch.cuda: dict(
            set_device=lambda device: None, synchronize=lambda device=None: None, current_device=lambda: 0,
            device_count=lambda: world, Stream=Stream, stream=Stream,
        ),
        torch: dict(Stream=Stream, Event=Stream),
        torch.accelerator: dict(current_stream=Stream),
        module: dict(to=moved(module.to)),
        ddp: dict(__init__=without_device_ids(ddp.__init__)),
        dist: dict(
            new_group=of_tested_backend(dist.new_group),
            new_subgroups=lambda group_size=None, *args, **kwargs: subgroups(group_size or world, *args, **kwargs),
        ),
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for owner, names in stand_ins.items():
            for name, stand_in in names.items():
                stack.enter_context(mock.patch.object(owner, name, stand_in))
        for name in ("broadcast_object_list", "send_object_list", "recv_object_list"):
            stack.enter_context(mock.patch.object(dist, name, object_on_cpu(getattr(dist, name))))
        stack.enter_context(CpuDevice())
        yield
