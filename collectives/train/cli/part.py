"""One network on a mesh: this rank's part of it, its steps, and what the whole network has learnt."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..distribute import distribute
from ..mesh import Mesh
from ..models.loss import CrossEntropyLoss
from ..models.nn import Array
from ..optim.schedules import Warmup, set_lr
from ..pipeline.pipeline import Pipeline
from ..pipeline.report import Report
from ..run.evaluate import evaluate
from ..strategies import Strategy
from ..tensor import cut_linear, whole_state
from ..weights import same_bits
from .plan import Plan, steps
from .task import Task


class Part:
    """This rank's part of a network of a task on a `Mesh`, under a strategy. Collective.

    * ``net``, ``opt``: what a run saves; ``loader`` deals what `step` takes; ``rate``: the learning rate by samples.
    * ``each``: the optimizer's steps for a batch of the loader.
    * ``whole``: the network that is evaluated: `net` itself if a rank has all of it, else another one with all weights,
      which `gather` brings there.

    What the part sends goes over `mesh`; `quiet` is the same mesh for what no strategy asks for. ValueError for a
    network that cannot be cut so.
    """

    def __init__(self, task: Task, plan: Plan, seed: int, strategy: Strategy, mesh: Mesh, quiet: Mesh) -> None:
        self._task, self._plan, self._mesh, self._quiet, self._strategy = task, plan, mesh, quiet, strategy
        self.whole, opt = task.network(seed)
        self.pipe: Pipeline | None = None
        self.rate: Warmup = task.rate(strategy.batches(mesh.data.size))
        samples = len(task.data.y_train)
        self.loader = task.loader(quiet.data, samples if self._streams else task.batch, seed)
        self.each = steps(samples, task.batch) if self._streams else 1
        net: Any = self.whole
        if plan.splits:
            net, _ = task.network(seed)
            cut = plan.cut(net, task.model)
            if mesh.tensor.size > 1:
                net = cut_linear(net, mesh.tensor)
            if plan.schedule is not None:
                net = self.pipe = Pipeline(
                    net, mesh.pipeline, schedule=plan.schedule, micro_batches=plan.micro_batches, cut=cut
                )
            opt = task.optimizer(net.parameters())
        self.net, self.opt = distribute(net, opt, strategy, mesh=mesh)
        self._loss_fn = CrossEntropyLoss()

    @property
    def _streams(self) -> bool:
        """Whether an epoch is one stream, since the schedule has no flush."""
        return self._plan.schedule is not None and self._plan.schedule.flushless

    def step(self, x: Array, y: Array) -> Any:
        """Train on a batch of the loader. Returns the mean loss."""
        if self._streams:
            return self._stream(x, y)
        self.opt.zero_grad()
        if self.pipe is not None:
            loss: Any = self.pipe.step(x, y, self._loss_fn)
        else:
            loss = self._loss_fn(self.net(x), y)
            loss.backward()
        self.opt.step()
        return loss

    def _stream(self, x: Array, y: Array) -> float:
        """Train on an epoch, cut into batches."""
        assert self.pipe is not None
        batches = list(zip(np.array_split(x, self.each), np.array_split(y, self.each), strict=True))
        samples = self.loader.samples
        opt = _Rated(self.opt, self.rate, self.loader.epoch * samples, samples // self.each)
        losses = self.pipe.stream(batches, self._loss_fn, opt)
        return sum(loss * loss.samples for loss in losses) / max(1, len(y))

    @property
    def _layers(self) -> Any:
        """This rank's layers as a network."""
        return self.net if self.pipe is None else self.pipe.net

    def gather(self) -> None:
        """Bring the weights of all parts into `whole`. Collective."""
        if not self._plan.splits:
            return
        state = whole_state(self._layers, self._quiet.tensor)
        parts = self._quiet.pipeline.allgather(state)
        self.whole.load_state_dict({name: array for part in parts for name, array in part.items()})

    def test(self) -> dict[str, float]:
        """The accuracy of the whole network. Collective."""
        self.gather()
        replicated, data = self._strategy.replicated, self._task.data
        comm = self._quiet.comm if replicated else self._quiet.data
        return evaluate(self.whole, data.x_test, data.y_test, comm=comm, replicated=replicated)

    def same_bits(self) -> bool:
        """Whether all ranks of the data axis have the same bits, for each part. Collective."""
        return all(self._quiet.comm.allgather(same_bits(self._layers, self._quiet.data)))

    def report(self) -> Report | None:
        """What this rank's pipeline has measured, if there is any. Collective."""
        return None if self.pipe is None else self.pipe.report()

    def free(self) -> None:
        """Free the communicators. Collective."""
        if self.pipe is not None:
            self.pipe.free()
        self._mesh.free()


class _Rated:
    """An optimizer whose rate follows the samples of a stream: `each` are those of a step, `position` those before."""

    def __init__(self, opt: Any, rate: Warmup, position: int, each: int) -> None:
        self._opt, self._rate, self._position, self._each = opt, rate, position, each

    def step(self) -> None:
        """A step with the rate of its samples."""
        set_lr(self._opt, self._rate(self._position))
        self._opt.step()
        self._position += self._each

    def zero_grad(self) -> None:
        """See `Optimizer.zero_grad`."""
        self._opt.zero_grad()
