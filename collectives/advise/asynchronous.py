"""Whether the data ranks of a plan should wait for each other: other strategies, simulated under the same conditions.

The simulation is that of ``python -m collectives simulate --strategy``. A rank of it is one data rank of the mesh: a
model, on all its pipeline and tensor ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..simulation.strategies import Conditions, Pace, pace
from ..simulation.strategy_cli import SYNCHRONOUS
from ..train.cli.choice import Choice
from .links import Links
from .ranking import Advice, Entry

__all__ = ["Comparison", "compared", "conditions"]

STEPS = 5_000  # of all ranks together, that are simulated


class Comparison(NamedTuple):
    """A strategy on the data ranks of a plan. ``speedup`` are its steps for each of all-reduces."""

    strategy: Choice
    pace: Pace
    speedup: float

    @property
    def verdict(self) -> str:
        """When it pays. Nothing here says how many more steps old parameters cost."""
        return f"if it needs less than {self.speedup:.3g} times as many steps" if self.speedup > 1 else "no"


def conditions(advice: Advice, entry: Entry, jitter: float, stragglers: Mapping[int, float]) -> Conditions:
    """The conditions on the data axis: a step without averaging, and the bytes that a rank exchanges of its part."""
    machine, mesh = advice.machine, entry.plan.mesh
    spread = Links(machine, mesh.pipeline, mesh.data, mesh.tensor).data.hosts > 1
    share = entry.memory.gradients * (mesh.data if entry.plan.zero >= 2 else 1)
    return Conditions(
        entry.step.seconds - entry.step.data,
        share,
        machine.alpha if spread else machine.local_alpha,
        machine.beta / machine.on_host if spread else machine.local_beta,
        machine.fold,
        jitter,
        stragglers,
    )


def compared(
    advice: Advice, entry: Entry, strategies: Sequence[Choice], jitter: float, stragglers: Mapping[int, float]
) -> tuple[Pace, list[Comparison]]:
    """All-reduces and other strategies on the data ranks of a plan.

    ValueError for a strategy that cannot be on so many ranks, and for a straggler that is none of them.
    """
    ranks = entry.plan.mesh.data
    given = conditions(advice, entry, jitter, stragglers)
    steps = max(10, min(100, STEPS // ranks))
    reference = pace(SYNCHRONOUS.pattern(ranks), ranks, given, steps)
    found = []
    for strategy in strategies:
        one = pace(strategy.pattern(ranks), ranks, given, steps)
        found.append(Comparison(strategy, one, one.steps_per_second / reference.steps_per_second))
    return reference, found
