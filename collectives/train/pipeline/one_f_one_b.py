"""1F1B: as soon as a stage can, it runs a backward pass after each forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from .instructions import Instruction, Kind, PipelineSchedule


class OneFOneB(PipelineSchedule):
    """One forward, one backward pass by turns, with a flush (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN
    Training", ICML 2021, section 3.2, there "PipeDream-Flush").

    Hypothesis: GPipe's idle time is the price of the flush, but its memory is not: activations need to be held for no
    more micro-batches than there are stages downstream.
    Bubble: (K-1) / (M+K-1) of the step, for K stages and M micro-batches, as with GPipe.
    Memory: at most K-i activations on stage i, counted from 0, and one version of the weights.
    """

    name = "1f1b"
    bubble_formula = "(K-1)/(M+K-1)"
    activations_formula = "min(K-i, M)"

    def instructions(self, stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
        """K-1-i forward passes to warm up, then a forward and a backward pass by turns, the other backward passes."""
        for kind, micro_batch in self.order(stage, stages, micro_batches):
            yield Instruction(kind, micro_batch)
        yield Instruction(Kind.STEP, micro_batches - 1, version=1)

    def order(self, stage: int, stages: int, micro_batches: int) -> Iterator[tuple[Kind, int]]:
        """The passes of a stage in order, each with its micro-batch; schedules without a flush have it, too."""
        ahead = stages - 1 - stage
        for number in range(micro_batches + ahead):
            if number < micro_batches:
                yield Kind.FORWARD, number
            if number >= ahead:
                yield Kind.BACKWARD, number - ahead

    def bubble(self, stages: int, micro_batches: int) -> Fraction:
        """(K-1) / (M+K-1)."""
        return Fraction(stages - 1, micro_batches + stages - 1)

    def activations(self, stage: int, stages: int, micro_batches: int) -> int:
        """K-i, or M if that is less."""
        return min(stages - stage, micro_batches)
