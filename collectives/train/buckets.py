"""Gradients fused into flat arrays (buckets), which are communicated while the backward pass goes on.

Many small messages cost latency. One large message cannot overlap with the backward pass. Buckets are a compromise
(Li et al., PyTorch Distributed, VLDB 2020, sec. 3.2.3). The parameters' ``grad`` are views into the bucket, so nothing
is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .models.nn import Array, Parameter, Sequential


def allocate(comm: Any, count: int, dtype: DTypeLike) -> Array:
    """Zeroed memory for one bucket: an array of shape (count,). All memory of buckets is allocated here."""
    return np.zeros(count, dtype)


class Bucket:
    """Gradients of some parameters in one array, ``flat``. Its views are ``grads`` (all gradients) and ``weight``.

    ``weight`` is the last element. A strategy may use it for a number that is reduced together with the gradients, such
    as the rank's number of samples. ``samples`` is the number of samples of which this rank's gradients are the mean.
    """

    def __init__(self, index: int, parameters: list[Parameter], comm: Any) -> None:
        self.index = index
        self.parameters = parameters
        self.samples = 0
        self.missing = len(parameters)
        count = sum(p.data.size for p in parameters)
        self.flat = allocate(comm, count + 1, parameters[0].data.dtype)
        self.grads, self.weight = self.flat[:count], self.flat[count:]
        start = 0
        for p in parameters:
            p.bind_grad(self.grads[start : start + p.data.size].reshape(p.data.shape))
            start += p.data.size


def cut(parameters: list[Parameter], bucket_bytes: int) -> list[list[Parameter]]:
    """Group `parameters`, last first, into runs of one dtype and at most `bucket_bytes` bytes.

    A parameter that is longer is a group of its own.
    """
    groups: list[list[Parameter]] = []
    room = 0
    for p in reversed(parameters):
        if not groups or p.data.nbytes > room or p.data.dtype != groups[-1][0].data.dtype:
            groups.append([])
            room = bucket_bytes
        groups[-1].append(p)
        room -= p.data.nbytes
    return groups


class Buckets:
    """All buckets of a network.

    ``on_bucket(bucket)`` is called for each bucket as soon as it and all buckets before it are full. So the order of
    collective calls is the same on all ranks, whatever the order in which gradients are completed.
    """

    def __init__(self, net: Sequential, bucket_bytes: int, on_bucket: Callable[[Bucket], None], comm: Any) -> None:
        self._net = net
        self._on_bucket = on_bucket
        self._next = 0
        self._done: set[str] = set()
        groups = cut(net.parameters(), bucket_bytes)
        self.buckets = [Bucket(i, group, comm) for i, group in enumerate(groups)]
        self._home = {p.name: bucket for bucket in self.buckets for p in bucket.parameters}
        for p in net.parameters():
            p.register_post_accumulate_grad_hook(self._ready)

    def __len__(self) -> int:
        return len(self.buckets)

    def _ready(self, parameter: Parameter) -> None:
        if parameter.name in self._done:
            raise RuntimeError("backward() ran twice before opt.step(): the first gradients are already on their way")
        self._done.add(parameter.name)
        bucket = self._home[parameter.name]
        bucket.missing -= 1
        bucket.samples = self._net.samples
        while self._next < len(self.buckets) and self.buckets[self._next].missing == 0:
            self._next += 1
            self._on_bucket(self.buckets[self._next - 1])

    def complete(self) -> None:
        """Prepare for the next backward pass. Raises RuntimeError unless the last one has filled every bucket."""
        if self._next < len(self.buckets):
            absent = [name for name in self._home if name not in self._done]
            raise RuntimeError(f"opt.step() without a backward() through {', '.join(absent)}")
        self._next = 0
        self._done.clear()
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)
