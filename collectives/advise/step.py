"""How long a step lasts, term by term."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from ..train.flat.buckets import LONGEST
from ..train.pipeline.registry import find
from .links import Links
from .machine import Machine
from .model import Model
from .plan import Plan
from .replays import Passes, Run, least, run
from .stages import Part, parts

__all__ = ["Estimate", "Step"]

SLOWEST = 1e15  # seconds of a step: beyond that a rate is a mistake, and sums overflow


class Step(NamedTuple):
    """Seconds of a step. Their sum is its length.

    * ``compute``: the passes of the busiest stage. ``tensor``: its all-reduces within the layers.
    * ``bubble``: the time in which it waits for others. ``transfers``: how much longer messages make the pipeline.
    * ``data``: averages of gradients, and weights that ZeRO gathers, as far as no computation hides them.
    * ``update``: the optimizer.
    """

    compute: float
    tensor: float
    bubble: float
    transfers: float
    data: float
    update: float

    @property
    def seconds(self) -> float:
        """All of them."""
        return sum(self)


class Estimate:
    """The time of a step of a plan. ``links`` are those of the plan's mesh.

    ``least`` are the seconds that it takes at least, known at once. ``seconds`` and `step` replay the pipeline.
    ValueError if ``least`` is more than 1e15 s.
    """

    def __init__(self, model: Model, machine: Machine, plan: Plan, links: Links | None = None) -> None:
        mesh = plan.mesh
        self.model, self.machine, self.plan = model, machine, plan
        self.links = links or Links(machine, mesh.pipeline, mesh.data, mesh.tensor)
        self.parts = parts(model, mesh.pipeline * plan.chunks, mesh.tensor, plan.recompute, plan.sequence)
        found = {part: self._passes(part) for part in set(self.parts)}
        self.passes = tuple(found[part][0] for part in self.parts)
        self._tensor = [found[part][1] for part in self.parts]
        stages = range(mesh.pipeline)
        self._parameters = [sum(p.parameters for p in self.parts[s :: mesh.pipeline]) for s in stages]
        self._update = max(map(self._update_of, self._parameters))
        self._sharding = plan.micro_batches * sum(map(self._sharded, self.parts, self.passes))
        border = max(part.border for part in self.parts)
        self._transfer = self.links.transfer(plan.micro_batch * border) if mesh.pipeline > 1 else 0.0
        shortest = least(plan.schedule, mesh.pipeline, plan.micro_batches, self.passes, self._transfer)
        after = min(self._data_after(stage, shortest, shortest) for stage in stages)
        self.least = shortest + after + self._sharding + self._update
        if not self.least <= SLOWEST:
            raise ValueError(
                f"a step on {mesh} takes more than {SLOWEST:g} s: a rate of the machine is too low, or a time too long"
            )

    @functools.cached_property
    def _run(self) -> Run:
        return run(self.plan.schedule, self.plan.mesh.pipeline, self.plan.micro_batches, self.passes, self._transfer)

    @functools.cached_property
    def _data(self) -> float:
        """What averages add to the passes."""
        found = self._run
        return self._sharding + max(self._data_after(s, end, found.length) for s, end in enumerate(found.ends))

    @property
    def seconds(self) -> float:
        """The length of the step."""
        return self._run.length + self._data + self._update

    def step(self) -> Step:
        """The terms."""
        plan, stages = self.plan, self.plan.mesh.pipeline
        without = run(plan.schedule, stages, plan.micro_batches, self.passes, 0.0).length
        busy, tensor = max(
            (plan.micro_batches * sum(one.both for one in self.passes[s::stages]),
             plan.micro_batches * sum(self._tensor[s::stages])) for s in range(stages)
        )  # fmt: skip
        transfers = self._run.length - without
        return Step(busy - tensor, tensor, max(0.0, without - busy), transfers, self._data, self._update)

    def _passes(self, part: Part) -> tuple[Passes, float]:
        """The passes of a micro-batch, and the seconds of their all-reduces. Backward there are twice the operations of
        a forward pass. A backward pass that a schedule splits has the overhead twice."""
        plan, rate, more = self.plan, self.machine.flops, self.machine.overhead
        one, again = plan.micro_batch * part.flops / rate, plan.micro_batch * part.repeated / rate
        call = self.links.allreduce(self.links.tensor, plan.micro_batch * part.reduced)
        ahead, back = part.forward_calls * call, (part.backward_calls + part.repeated_calls) * call
        second = one + more if find(plan.schedule).split else one
        return Passes(one + more + ahead, one + more + again + back, second), ahead + back

    def _sharded(self, part: Part, one: Passes) -> float:
        """By how much the passes of a micro-batch are longer for ZeRO, which sends gradients in each backward pass and,
        with stage 3, gathers weights in each pass, beside the computation."""
        if self.plan.zero < 2 or self.plan.mesh.data == 1:
            return 0.0
        precision, links = self.model.precision, self.links
        gather = links.allgather(links.data, precision.weight * part.parameters) if self.plan.zero == 3 else 0.0
        scatter = links.reduce_scatter(links.data, precision.gradient * part.parameters)
        return max(0.0, gather - one.forward) + max(0.0, gather + scatter - one.backward)

    def _data_after(self, stage: int, end: float, length: float) -> float:
        """How much later than ``length`` gradients are averaged on a stage that has ended its passes, and weights are
        gathered."""
        plan, precision, links = self.plan, self.model.precision, self.links
        if plan.mesh.data == 1:
            return 0.0
        parameters = self._parameters[stage]
        gather = links.allgather(links.data, precision.weight * parameters) if plan.zero in (1, 2) else 0.0
        if plan.zero >= 2:
            return gather
        nbytes = precision.gradient * parameters
        seconds = (links.reduce_scatter if plan.zero else links.allreduce)(links.data, nbytes)
        exposed = _exposed(seconds, nbytes, self.passes[stage].backward)  # of the chunk whose gradients come last
        return max(0.0, end + exposed - length) + gather

    def _update_of(self, parameters: float) -> float:
        """Seconds of the optimizer, which reads and writes weights and states, and reads gradients."""
        precision = self.model.precision
        nbytes = 2 * precision.weight + precision.gradient + 2 * precision.optimizer
        return nbytes * parameters / self.machine.update_rate / (self.plan.mesh.data if self.plan.zero else 1)


def _exposed(seconds: float, nbytes: float, backward: float) -> float:
    """How long communication goes on after a backward pass, which hands over its gradients in buckets.

    The buckets come evenly. The links carry them one after the other, each once it is complete.
    """
    buckets = max(1, math.ceil(nbytes / LONGEST))
    return max(seconds / buckets, seconds - backward * (buckets - 1) / buckets)
