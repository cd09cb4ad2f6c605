"""Synchronous data parallelism: every step uses the gradient of the whole global batch."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compression import Compression
from ..counts import count, real
from ..flat.memory import allocate, is_narrow
from ..flat.model import check_fresh, narrow
from ..loading import fields
from ..models.nn import Array
from .base import Strategy
from .loss_scale import SMALLEST, LossScale
from .means import HasMessagesApart, Means, apart, averages
from .parts import Part, load_state, state_of
from .pattern import GRADIENTS, Pattern, together
from .turns import agree, raise_if_wrong

if TYPE_CHECKING:
    from ..flat.buckets import Bucket
    from ..flat.model import Handle, Model

NONFINITE = ("raise", "skip", "allow")
#: A number for each network that this process distributes. A network has that of rank 0.
_NUMBERS = itertools.count(1)


class AllReduce(HasMessagesApart, Strategy):
    """All-reduce each bucket while the backward pass goes on, wait before the step (Li et al., VLDB 2020, sec. 3.2).

    * `average` (default: True): the gradient is the mean over the samples of all ranks. So p ranks compute the same as
      one rank with the same global batch, even if the ranks' parts differ in length or are empty. With False, the
      gradient is the sum of the ranks' gradients: p times the mean if all parts have the same length.
    * `bucket_bytes`: the longest bucket, in bytes. None (default) is 1 MiB; or 25 MiB if all ranks are on one machine,
      where messages take little time but the cores' own. With `shard`, `compression` or parameters of 16 bits states
      are by bucket, and None is 1 MiB on any machines. A state fits only where buckets are as long as before.
    * `algorithm`: name of an all-reduce algorithm, for a communicator whose ``Iallreduce`` takes one. By default the
      communicator chooses.
    * `compression`: what exchanges the gradients of one network instead, for example ``train.PowerSGD(rank=2)``.
    * `clip_norm`: if the Euclidean norm of the whole gradient is larger, the gradient is multiplied by
      ``clip_norm / norm`` (Pascanu et al. 2013, algorithm 1). ``norm`` is that of the last step, before clipping.
    * `nonfinite`: what happens if the mean gradient has elements that are infinite or not a number. "raise" (default):
      FloatingPointError on all ranks, which names the parameter; no parameter has changed. "skip": all ranks skip the
      step, and ``skipped`` counts it. "allow": nothing.
    * `shard`: ZeRO (Rajbhandari et al. 2020). With 1 (sec. 5.1), each rank has the optimizer's state of a p-th of every
      bucket, and steps that. With 2 (sec. 5.2), a rank keeps gradients of its p-th only, and sends in every backward
      pass, also within `no_sync`: all ranks must run as many, on 0 samples where one has none. The optimizer must work
      element by element, as SGD and Adam do. Its state becomes `checkpoint.Shard` leaves, which any number of ranks can
      load. The default, 0, shards nothing.
    * `loss_scale`: the factor of `scale`, a number (default 1) or "dynamic". Steps divide by it. "dynamic" begins at
      65536, is halved after a step whose gradients were not finite, and doubled after 2000 steps without one.

    Parameters of 16 bits (float16, bfloat16) get float32 master weights, which the optimizer changes (Micikevicius et
    al. 2018, sec. 3.1). What the program changes in the network is taken into them at the next step. A compression gets
    their gradients as float32, and the optimizer gets its result as it is. With a dynamic `loss_scale`, all ranks skip
    a step whose gradient is not finite.

    In a step the ranks agree on what they found, so an error of one rank is raised on all ranks. Raises ValueError for
    bad arguments.
    """

    replicated = True
    on_device = True

    def __init__(
        self, average: bool = True, bucket_bytes: int | None = None, algorithm: str | None = None, *,
        compression: Compression[Any] | None = None, clip_norm: float | None = None, nonfinite: str = "raise",
        shard: int = 0, loss_scale: float | str = 1.0,
    ) -> None:  # fmt: skip
        if clip_norm is not None and not 0 < real("clip_norm", clip_norm) < math.inf:
            raise ValueError(f"clip_norm must be positive and finite, not {clip_norm}")
        if compression is not None and not isinstance(compression, Compression):
            raise TypeError(f"compression must be an object of train.PowerSGD or the like, not {compression!r}")
        if algorithm is not None and not isinstance(algorithm, str):
            raise TypeError(f"algorithm must be a name, not {algorithm!r}")
        if nonfinite not in NONFINITE:
            raise ValueError(f"nonfinite must be one of {', '.join(NONFINITE)}, not {nonfinite!r}")
        if shard not in (0, 1, 2):
            raise ValueError(f"shard must be 0, 1 or 2, not {shard}")
        if compression is not None and (shard or not average or algorithm is not None):
            raise ValueError("compression exchanges means of whole gradients: with shard=0, average=True, no algorithm")
        if shard and algorithm is not None:
            raise ValueError("algorithm is that of an all-reduce, and with shard there is none")
        self.bucket_bytes = None if bucket_bytes is None else count("bucket_bytes", bucket_bytes)
        self.average, self.algorithm, self.compression = average, algorithm, compression
        self.clip_norm, self.nonfinite, self.shard = clip_norm, nonfinite, shard
        self.loss_scale = LossScale(loss_scale)
        self.sends_parameters = shard > 0
        self.keep_grads, self.every_pass = shard < 2, shard == 2
        self.norm, self.skipped = math.nan, 0
        self._chosen = {} if algorithm is None else {"algorithm": algorithm}

    def check(self, model: Model, handle: Handle, comm: Any) -> None:
        """Raise ValueError unless network and optimizer can be used."""
        if self.compression is not None and self.compression.taken:
            raise ValueError("this compression serves another network already; each one needs an object of its own")
        short = narrow(model)
        if short is not None and not averages(comm):
            raise ValueError(f"parameter {short} has 16 bits, which needs a collectives.Communicator")
        if short is not None or self.shard:
            check_fresh(handle)
            if not handle.elementwise:
                what = f"{type(handle.opt).__name__} needs whole parameters in their shapes"
                raise ValueError(f"{what}; with shard, and with parameters of 16 bits, an optimizer gets flat arrays")

    def check_copies(self, model: Model) -> None:
        """Raise ValueError for what lets copies drift apart."""
        shared = [slot.name for slot in model.slots if slot.copies > 1]
        if shared and self.compression is not None and self.compression.per_rank:
            raise ValueError(
                f"{type(self.compression).__name__} would let copies of {shared[0]} on several ranks of the mesh drift "
                "apart: what it sends of a parameter depends on others, which differ there"
            )

    def saves_buckets(self, model: Model) -> bool:
        """True if the optimizer gets flat arrays, or if a compression keeps something of each bucket."""
        return self.shard > 0 or self.compression is not None or narrow(model) is not None

    def setup(self, net: Any, opt: Any, comm: Any) -> None:
        """See `Strategy.setup`."""
        super().setup(net, opt, comm)
        if self.compression is not None:
            self.compression.taken = True
        self._number = self._ranks.bcast(next(_NUMBERS), root=0)
        self._begin(comm)
        self._divide(comm)
        if self.shard == 2:
            longest = max(bucket.data.nbytes + bucket.dtype.itemsize for bucket in self.buckets.list)
            self._free = deque(allocate(comm, -(-longest // 8) * 8, np.uint8) for _ in range(2))
            self._full: deque[Array] = deque()
        if self.flat:
            self.handle.override("state_dict", lambda opt: state_of(self._parts, self.handle))
            self.handle.override("load_state_dict", lambda opt, state: load_state(self._parts, self.handle, state))
            self.model.on_load(self._refresh)

    def _divide(self, comm: Any) -> None:
        """Give the optimizer of each rank its part of the buckets, without any state."""
        widens, buckets = self.compression is not None, self.buckets.list
        self._parts = [Part(bucket, comm, self.shard > 0, widens and is_narrow(bucket.dtype)) for bucket in buckets]
        self.flat = self.shard > 0 or any(part.master for part in self._parts)
        if self.flat:
            self.handle.replace(self._parts)

    def _refresh(self) -> None:
        for part in self._parts:
            part.refresh()

    def _begin(self, comm: Any) -> None:
        compress = None if self.compression is None else self._compress
        types = {bucket.dtype for bucket in self.buckets.list}
        # Of 16 bits, a wrong guess would cost some; residuals must not depend on guesses.
        exact = compress is not None or any(is_narrow(dtype) for dtype in types)
        bounded = compress is None and np.dtype(np.float16) in types
        self._messages = apart(comm)
        self._means = Means(self._messages, self._start, compress, self.average, guess=not exact, bounded=bounded)
        self._total = 0  # samples of all ranks in the passes that parts have added up

    def scale(self, loss: Any) -> Any:
        """The loss times the loss scale: ``strategy.scale(loss).backward()``."""
        return loss if self.loss_scale.value == 1 else loss * self.loss_scale.value

    @property
    def instead(self) -> str:
        """What else there is. See `Strategy.instead`."""
        return "let the strategy clip (clip_norm) and scale (loss_scale) gradients, or call strategy.wait() first"

    def on_bucket(self, bucket: Bucket) -> None:
        """Start the exchange of this bucket."""
        if self.shard == 2:
            if bucket.index == 0 and self._means.active:
                self._end_pass()
            self._stage(bucket)
        self._means.add(bucket)

    def _stage(self, bucket: Bucket) -> None:
        """Copy gradients into one of two arrays, from which they are sent."""
        if not self._free:
            self._means.wait_first()
            self._free.append(self._full.popleft())
        memory = self._free.popleft()
        self._full.append(memory)
        bucket.gather(memory.view(bucket.dtype), self.buckets.ready)

    def _start(self, bucket: Bucket, op: Any) -> Any:
        from mpi4py import MPI

        if self.shard:
            part = self._parts[bucket.index]
            return self._messages.Ireduce_scatter(bucket.grads, part.received, part.counts, op=op)
        return self._messages.Iallreduce(MPI.IN_PLACE, bucket.grads, op=op, **self._chosen)

    def _compress(self, bucket: Bucket, weight: float) -> Iterator[Any]:
        assert self.compression is not None
        exchanged = self._parts[bucket.index].exchanged
        bucket.put_scaled(weight * self._scaled / self.loss_scale.value, exchanged)
        return self.compression.exchange(exchanged, self._messages)

    @property
    def _scaled(self) -> float:
        """The factor of the loss in the exchanged gradients; 1 if residuals are kept, since the loss scale changes."""
        keeps = self.compression is not None and self.compression.per_rank
        return 1.0 if keeps else self.loss_scale.value

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """See `Strategy.no_sync`; ValueError for ``average=False`` with ``shard=2``.

        Each pass is reduced there before it is known how many samples a rank has in the step, which its own mean needs.
        """
        if self.every_pass and not self.average:
            raise ValueError("no_sync: with average=False, shard=2 cannot weight micro-batches; shard=1 can")
        with super().no_sync():
            yield

    def _end_pass(self) -> None:
        """Wait for the buckets of a backward pass, and add up what came."""
        samples = self._wait()
        self._total += samples
        for part in self._parts:
            part.add_up(samples)

    def _wait(self) -> int:
        samples, factor = self._means.finish()
        with np.errstate(over="ignore", invalid="ignore"):  # `_inspect` finds what is not finite
            for part in self._parts if factor != 1 else ():
                part.received *= part.received.dtype.type(factor)
        if self.shard == 2:
            self._free.extend(self._full)
            self._full.clear()
        return samples

    def wait(self) -> None:
        """Wait until the parameters' ``grad`` are those of all ranks. Collective.

        A program needs this only if it reads or changes them between ``backward()`` and ``opt.step()``. They have the
        factor of the loss scale, unless a compression keeps residuals. RuntimeError if they are elsewhere: with
        `shard`, and if a compression exchanges gradients of 16 bits.
        """
        if any(part.received is not part.bucket.grads for part in self._parts):
            raise RuntimeError("with shard, or compressed gradients of 16 bits, the mean gradients are not in p.grad")
        self.buckets.settle(self._wait)

    def before_step(self) -> bool:
        """Wait for the buckets, inspect and clip the gradient. False if the step is skipped."""
        told = agree(self._ranks, self._number, True, self.problem)
        if self._total:
            self._end_pass()
            for part in self._parts:
                part.take_mean(self._total)
            self._total = 0
        else:
            self._wait()
        raise_if_wrong(self._ranks, told, self.problem)
        finite = self._inspect()
        if not finite and (self.nonfinite != "allow" or self.loss_scale.dynamic):
            self._refuse()
            return False
        factor = 1 / self._scaled
        self.loss_scale.update(True)
        if self.clip_norm is not None:
            factor *= min(1.0, self.clip_norm / (self.norm + 1e-6))
        for part in self._parts:
            part.prepare(factor)
        if self.flat:  # the optimizer works on what the program has, which may have changed it since the last step
            self.buckets.fetch()
            self._refresh()
        return True

    def discard(self) -> None:
        """Wait for gradients that nobody needs. RuntimeError on all ranks if some of them make a step instead."""
        told = agree(self._ranks, self._number, False, None)
        self._wait()
        self._total = 0
        for part in self._parts:
            part.forget()
        raise_if_wrong(self._ranks, told, None)

    def _inspect(self) -> bool:
        """Agree on the norm, if it is needed. Returns whether the gradient is finite. Collective."""
        from mpi4py import MPI

        looks = self.nonfinite != "allow" or self.clip_norm is not None or self.loss_scale.dynamic
        found = np.array([sum(part.squares() for part in self._parts) if looks else 0.0])
        if looks:
            self._ranks.Allreduce(MPI.IN_PLACE, found, op=MPI.SUM)
        self.norm = math.sqrt(found[0]) / self._scaled if looks else math.nan
        return math.isfinite(found[0])

    @property
    def _ranks(self) -> Any:
        """The communicator of all ranks that train the model: on a mesh, more than those that average gradients."""
        return self.comm if self.whole is None else self.whole

    def _refuse(self) -> None:
        """Skip a step whose gradient is not finite, or raise FloatingPointError. Collective."""
        self.loss_scale.update(False)
        if self.nonfinite == "raise" and (not self.loss_scale.dynamic or self.loss_scale.value < SMALLEST):
            self.buckets.deliver_grads()  # for the program to look at
            raise FloatingPointError(
                f"the gradient of {self._culprit()} is not finite; a smaller learning rate may help, or clip_norm"
            )
        self.skipped += 1

    def _culprit(self) -> str:
        """The first parameter whose gradient is not finite. Collective."""
        slots = [slot for part in self._parts for slot in part.bucket.parameters]
        bad = {order for part in self._parts for order in _bad(part)}
        mine = min(((slot.order, slot.name) for slot in slots if slot.order in bad), default=None)
        found = [one for one in self._ranks.allgather(mine) if one is not None]
        return min(found)[1] if found else "some parameter"

    def after_step(self) -> None:
        """Bring the optimizer's weights into the network."""
        for request in [part.publish() for part in self._parts]:
            if request is not None:
                request.Wait()
        if self.flat:
            self.buckets.deliver()

    def resize(self, comm: Any) -> None:
        """Go on with the ranks of `comm`. With `shard`, the optimizer's state is to be loaded after that.

        ValueError on a mesh, where every rank has a part of the model that others lack.
        """
        if self.whole is not None:
            raise ValueError("training on a mesh cannot go on without some of its ranks")
        self.leave_messages()
        self.comm = self._messages = comm
        self._number = comm.bcast(self._number, root=0)  # new ranks have counted for themselves
        self.buckets.reset()
        self._begin(comm)
        if not self.shard:
            for part in self._parts:
                part.move(comm)
            return
        self._divide(comm)
        if self.shard == 2:
            self._free.extend(self._full)
            self._full.clear()

    def batches(self, ranks: int) -> int:
        """All ranks', or 1 for a sum of gradients, which is already as many times longer than their mean."""
        return ranks if self.average else 1

    def pattern(self, size: int) -> Pattern:
        """An all-reduce of the gradients after each step."""
        return together(GRADIENTS)

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        own = ("average", "algorithm", "clip_norm", "nonfinite", "shard")
        found = {key: getattr(self, key) for key in own}
        compression = {"compression": None} if self.compression is None else self.compression.settings()
        return {**super().settings(), **found, **compression, "loss_scale": self.loss_scale.value}

    def state_dict(self) -> dict[str, Any]:
        """The loss scale, what `Means` expects, and the state of the compression, which is this rank's own."""
        state = {
            "loss_scale": self.loss_scale.state_dict(), "skipped": self.skipped, "samples": self._means.expected,
        }  # fmt: skip
        return state if self.compression is None else {**state, "compression": self.compression.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned. TypeError for what is no mapping, ValueError for another one."""
        kinds = {"loss_scale": dict, "skipped": int, "samples": float}
        if self.compression is not None:
            kinds["compression"] = dict
        scale, skipped, samples, *rest = fields("AllReduce", state, **kinds)
        self.loss_scale.load_state_dict(scale)
        self.skipped, self._means.expected = skipped, samples
        if self.compression is not None:
            self.compression.load_state_dict(*rest)

    def forget_own(self) -> None:
        """See `Strategy.forget_own`: residuals."""
        if self.compression is not None:
            self.compression.forget_residuals()


def _bad(part: Part) -> list[int]:
    """The numbers of parameters in whose gradients this rank finds elements that are not finite."""
    with np.errstate(all="ignore"):
        at = np.flatnonzero(~np.isfinite(part.inspected.astype(np.float64))) + part.inspected_start
    return [slot.order for slot in part.bucket.parameters if ((at >= slot.start) & (at < slot.start + slot.size)).any()]
