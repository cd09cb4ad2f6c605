"""Parameters and gradients fused into flat arrays (buckets), which are communicated while the backward pass goes on.

Many small messages cost latency. One large message cannot overlap with the backward pass. Buckets are a compromise
(Li et al., PyTorch Distributed, VLDB 2020, sec. 3.2.3).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..models.nn import Array
from .memory import allocate, is_narrow
from .model import Model, Slot

LONGEST = 1 << 20  # bytes of a bucket, unless a strategy says otherwise
ON_ONE_MACHINE = 25 << 20  # the same if all ranks are on one machine
ALIGNED = 16  # elements
UNUSED = ("error", "zero")
TWICE = (
    "backward() ran twice before opt.step(), when the first gradients were on their way; for micro-batches, run "
    "all but the last one within strategy.no_sync(); to drop the first gradients, call opt.zero_grad()"
)
CHANGED = "the gradient of {} was changed between backward() and opt.step(), while it was on its way; {}"


class Progress:
    """How far a step has come, as all buckets of a network know it.

    * ``samples``: the number of samples of the backward pass under way, or of the last one; None before the first one.
    * ``staged``: whether a strategy has sent more than buckets, which no step has used.
    """

    def __init__(self) -> None:
        self.samples: int | None = None
        self.staged = False


class Bucket:
    """Some parameters of one dtype and of one group of the optimizer, as flat arrays.

    * ``index``: the number of the bucket; buckets are sent in this order.
    * ``parameters``: a `Slot` for each parameter, with ``name``, ``shape``, ``size`` and ``start``.
    * ``data``: their values, of shape (count,). The network's parameters are views of it; or, on a device, it has
      copies of them, which ``Buckets.fetch`` and ``Buckets.deliver`` keep alike.
    * ``flat``: their gradients and one element more, of shape (count + 1,). Views of it are ``grads`` (all gradients)
      and ``weight`` (the last element), which a strategy may use for a number that goes with the gradients.
    * ``samples``: the number of samples of this rank of which ``grads`` is the mean; of none it is zeros.
    * ``progress``: that of the step under way, shared by all buckets of the network.
    """

    def __init__(
        self, index: int, parameters: Sequence[Slot], comm: Any, progress: Progress, keep_grads: bool = True,
        share_data: bool = True,
    ) -> None:  # fmt: skip
        self.index, self.parameters, self.progress = index, list(parameters), progress
        self.dtype, self.group = parameters[0].dtype, parameters[0].group
        self.samples = 0
        self.problem: str | None = None  # of gradients that could not be gathered
        self.missing = len(parameters)
        self.data = allocate(comm if share_data else None, sum(slot.size for slot in parameters), self.dtype)
        start = 0
        for slot in parameters:
            slot.start = start
            slot.move(self.data[start : start + slot.size])
            start += slot.size
        self.sums: Array | None = None  # of the gradients of micro-batches, each times its number of samples
        if keep_grads:
            self.hold(allocate(comm, start + 1, self.dtype))
            for slot in parameters:
                slot.bind(self.grads[slot.start : slot.start + slot.size])

    def __len__(self) -> int:
        return len(self.data)

    def hold(self, memory: Array) -> None:
        """Make `memory`, of shape (n,) with n > count, the memory of the gradients."""
        count = len(self.data)
        self.flat = memory[: count + 1]
        self.grads, self.weight = self.flat[:count], self.flat[count:]

    def widened(self, comm: Any) -> Bucket:
        """A bucket of the same parameters, whose gradients are float32, in memory of their own."""
        made = copy.copy(self)
        made.dtype = np.dtype(np.float32)
        made.hold(allocate(comm, len(self) + 1, made.dtype))
        return made

    def put_scaled(self, factor: float, target: Bucket) -> None:
        """Make the gradients of `target`, which may be this bucket, `factor` times these; zeros if it is 0."""
        if factor == 0:
            target.grads.fill(0)  # the mean over no samples may be NaN
        elif factor != 1 or target is not self:
            with np.errstate(over="ignore", invalid="ignore"):
                np.multiply(self.grads, target.dtype.type(factor), out=target.grads, dtype=target.dtype)

    def gather(self, memory: Array, ready: Callable[[Slot], bool]) -> None:
        """Copy the gradients into `memory`, zeros where ``ready(slot)`` is False, and give back their own memory."""
        self.hold(memory)
        for slot in self.parameters:
            slot.bind(self.grads[slot.start : slot.start + slot.size])
            if ready(slot):
                self.problem = slot.collect() or self.problem
            else:
                slot.put_zeros()
            slot.release()

    def add_up(self, samples: int) -> None:
        """Add ``samples * grads`` to the sums of the micro-batches."""
        if self.sums is None:
            self.sums = np.zeros(len(self.data), np.float32 if is_narrow(self.dtype) else self.dtype)
        if samples:  # the gradient of no samples may be NaN
            self.sums += np.multiply(self.grads, self.sums.dtype.type(samples), dtype=self.sums.dtype)

    def take_mean(self, samples: int, total: int) -> None:
        """Make ``grads``, of `samples` samples, the mean over these and over the micro-batches: `total` samples."""
        self.add_up(samples)
        assert self.sums is not None
        np.divide(self.sums, self.sums.dtype.type(max(total, 1)), out=self.grads, casting="unsafe")
        self.sums.fill(0)


def fuse(slots: Iterable[Slot], bucket_bytes: int) -> list[list[Slot]]:
    """Group parameters, last first, into buckets of one dtype, one group of the optimizer and at most `bucket_bytes`.

    A parameter that is longer is a bucket of its own. Buckets stand in the order in which they become full if the
    backward pass goes from the last parameter to the first. Within a bucket, parameters of odd lengths come last, so
    that the others are aligned, which matters to matrix products.
    """
    full: list[list[Slot]] = []
    filling: dict[Any, list[Slot]] = {}
    for slot in sorted(slots, key=lambda slot: -slot.order):
        kind = (slot.dtype, slot.group)
        bucket = filling.get(kind)
        if bucket is None or sum(other.nbytes for other in bucket) + slot.nbytes > bucket_bytes:
            bucket = filling[kind] = []
            full.append(bucket)
        bucket.append(slot)
    full.sort(key=lambda bucket: -bucket[-1].order)
    return [sorted(bucket, key=lambda slot: slot.size % ALIGNED > 0) for bucket in full]


class Buckets:
    """All buckets of a network. ``list`` has them in order.

    ``on_bucket(bucket)`` is called for each bucket as soon as it and all buckets before it are full. So the order of
    collective calls is the same on all ranks, whatever the order in which gradients are completed.

    While ``sync`` is False, the gradients of backward passes are added up, each times its samples. In the next pass
    with ``sync`` buckets hold the mean over the samples of all these passes. With `every_pass` buckets are handed over
    in each pass, and nothing is added up here. Without `share_data` parameters are in ordinary memory. Without
    `keep_grads` a bucket has no memory of its own for gradients:
    the strategy calls ``bucket.gather``. `unused` is one of UNUSED, see `distribute`.
    """

    def __init__(
        self, model: Model, bucket_bytes: int, comm: Any, *, keep_grads: bool = True, share_data: bool = True,
        every_pass: bool = False, unused: str = "error",
    ) -> None:  # fmt: skip
        self.model, self.sync = model, True
        self._every_pass, self._keep, self._unused = every_pass, keep_grads, unused
        groups = fuse(model.slots, bucket_bytes)
        self._progress = Progress()
        self.list = [Bucket(i, group, comm, self._progress, keep_grads, share_data) for i, group in enumerate(groups)]
        self._home = {slot: bucket for bucket in self.list for slot in bucket.parameters}
        self._on_device = [slot for slot in model.slots if slot.on_device]
        self._used: set[Slot] = set()  # in passes of this step without ``sync``
        self.on_bucket: Callable[[Bucket], None] = lambda bucket: None
        self._begin_step()
        model.listen(self._ready, self._end)

    def __len__(self) -> int:
        return len(self.list)

    def fetch(self) -> None:
        """Bring the parameters of a network on a device into ``data`` of the buckets, to be read there."""
        for slot in self._on_device:
            slot.fetch()

    def deliver(self) -> None:
        """Bring ``data`` of the buckets, which was changed, into the parameters of a network on a device."""
        for slot in self._on_device:
            slot.deliver()

    def deliver_grads(self) -> None:
        """Bring the gradients in the buckets into those of a network on a device, for its optimizer."""
        for slot in self._on_device if self._keep else ():
            slot.deliver_grad()

    def _begin(self) -> None:
        """Prepare for a backward pass."""
        self._next = 0
        self._samples = 0  # of the pass under way
        self._done: set[Slot] = set()
        for bucket in self.list:
            bucket.missing = len(bucket.parameters)

    @property
    def accumulating(self) -> bool:
        """Whether backward passes without ``sync`` were made since the last step."""
        return bool(self._used)

    def _begin_step(self) -> None:
        self._begin()
        self._problem: str | None = None
        self._used.clear()
        self._before = 0  # samples of the micro-batches before this pass
        self._progress.samples = None
        self._settled = False  # whether nothing is on its way any more

    def reset(self) -> None:
        """Prepare for the next step, and forget what was added up."""
        self._begin_step()
        for bucket in self.list:
            if bucket.sums is not None:
                bucket.sums.fill(0)

    def discard(self) -> bool:
        """Drop what backward passes have brought since the last step. Returns whether some of it was handed over."""
        handed_over = bool(self._done) or (self._every_pass and bool(self._used)) or self._progress.staged
        if self._done:
            self._send_all()  # as on ranks whose buckets were full before
        self.reset()
        return handed_over

    def ready(self, slot: Slot) -> bool:
        """Whether a parameter has got its gradient in the pass under way."""
        return slot in self._done

    def _ready(self, slot: Slot) -> None:
        if slot in self._done:
            self._problem = TWICE
            return
        if not self._done:
            self._samples = self._progress.samples = self.model.samples
        if self._keep:
            self._problem = slot.collect() or self._problem
        self._done.add(slot)
        self._home[slot].missing -= 1
        if self.sync or self._every_pass:
            while self._next < len(self.list) and self.list[self._next].missing == 0:
                self._send()

    def _send(self) -> None:
        """Hand over the next bucket. Parameters without a gradient count with zeros."""
        bucket = self.list[self._next]
        self._next += 1
        if bucket.missing and self._keep:
            self._put_zeros(bucket)
        total = self._before + self._samples
        bucket.samples = self._samples if self._every_pass else total
        if self._before and not self._every_pass:
            bucket.take_mean(self._samples, total)
        if self._keep and not bucket.samples:  # the gradient of no samples may be NaN
            for slot in bucket.parameters:
                slot.put_zeros()
        self.on_bucket(bucket)

    def _put_zeros(self, bucket: Bucket) -> None:
        """Zeros for the parameters that have no gradient."""
        for slot in bucket.parameters:
            if slot not in self._done:
                slot.put_zeros()

    def _send_all(self) -> None:
        while self._next < len(self.list):
            self._send()

    def _end(self) -> None:
        """The end of a backward pass. Micro-batches before the last one are added up here."""
        if self.sync:
            return
        self._used |= self._done
        if self._every_pass:
            self._send_all()
        else:
            for slot in self._on_device:
                if slot in self._done and slot.touched():  # a hook of the program came after the copy
                    self._problem = slot.collect() or self._problem
            for bucket in self.list:
                self._put_zeros(bucket)
                bucket.add_up(self._samples)
        self._before += self._samples
        for slot in self.model.slots:
            slot.renew()
        self._begin()

    def settle(self, wait: Callable[[], object]) -> None:
        """Hand over the buckets that are left, and ``wait()``; until `close` the program may then change gradients."""
        self._send_all()
        wait()
        self.deliver_grads()
        self._settled = True

    def close(self, instead: str | None) -> str | None:
        """Hand over the buckets that are left. Returns what is wrong with this step on this rank, or None.

        `instead`: see `Strategy.instead`. If it is None, gradients that the program has changed are taken.
        """
        moved = [slot.name for slot in self.model.slots if slot.moved()]
        absent = [slot.name for slot in self.model.slots if slot not in self._done and slot not in self._used]
        strangers = self.model.strangers()
        problems = [self._problem, *self._changes(instead)]
        self._send_all()
        problems += [bucket.problem for bucket in self.list]
        for bucket in self.list:
            bucket.problem = None
        self._begin_step()
        if moved:
            return f"{', '.join(moved)} left the flat array, by net.to() for example"
        if absent and self._unused == "error":
            return f"opt.step() without a backward() through {', '.join(absent)}; see distribute(unused=...)"
        if strangers:
            return f"{', '.join(strangers)} required no gradient when distribute was called, but does now"
        return next((problem for problem in problems if problem is not None), None)

    def _changes(self, instead: str | None) -> Iterator[str | None]:
        """What the program has done to gradients since they were collected. What it may do is brought to its place."""
        for slot in self.model.slots if self._keep else ():
            if self._settled:
                yield slot.collect()
            elif slot not in self._done or not slot.touched():
                continue
            elif instead is not None:
                yield CHANGED.format(slot.name, instead)
            elif self._before and self._home[slot].index >= self._next:
                yield f"the gradient of {slot.name} was changed before that of all micro-batches was there"
            else:
                yield slot.collect()
