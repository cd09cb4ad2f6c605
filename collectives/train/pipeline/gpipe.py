"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from .instructions import Instruction, Kind, PipelineSchedule


class GPipe(PipelineSchedule):
    """All forward passes, all backward passes, a step (Huang et al., "GPipe", NeurIPS 2019, section 2.3).

    Hypothesis: idle time shrinks with the number of micro-batches alone, and recomputation pays for the memory.
    Bubble: (K-1) / (M+K-1) of the step, for K stages and M micro-batches.
    Memory: M activations on every stage, and one version of the weights.
    Backward passes run in the order of the micro-batches, so that the first gradient that arrives is used first.
    """

    name = "gpipe"
    bubble_formula = "(K-1)/(M+K-1)"
    activations_formula = "M"

    def instructions(self, stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
        """Forward passes 0 to M-1, backward passes 0 to M-1, a step."""
        for kind in (Kind.FORWARD, Kind.BACKWARD):
            for micro_batch in range(micro_batches):
                yield Instruction(kind, micro_batch)
        yield Instruction(Kind.STEP, micro_batches - 1, version=1)

    def bubble(self, stages: int, micro_batches: int) -> Fraction:
        """(K-1) / (M+K-1)."""
        return Fraction(stages - 1, micro_batches + stages - 1)

    def activations(self, stage: int, stages: int, micro_batches: int) -> int:
        """M."""
        return micro_batches
