"""Interleaved 1F1B: each stage has several chunks of the model, so that a pipeline fills in smaller steps."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from .instructions import Instruction, Kind, PipelineSchedule


class Interleaved1F1B(PipelineSchedule):
    """1F1B with v chunks a stage (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM", SC 2021, section 2.2.2).

    Hypothesis: to fill and to drain a pipeline takes as many computations of a chunk as there are stages, and those are
    v times shorter. Each activation crosses v times as many borders.
    Bubble: (K-1) / (vM+K-1) of the step, for K stages and M micro-batches, a multiple of K.
    Memory: at most (v-1)K + 2(K-1-i) + 1 activations of a chunk on stage i, and one version of the weights. With one
    chunk the schedule is 1F1B.
    """

    name = "interleaved_1f1b"
    interleaved = True
    bubble_formula = "(K-1)/(vM+K-1)"
    activations_formula = "min(vM, (v-1)K+2(K-1-i)+1)"

    def __init__(self, chunks: int = 2) -> None:
        super().__init__(chunks)

    def check(self, stages: int, micro_batches: int) -> None:
        """ValueError also if the micro-batches are not a multiple of the stages."""
        super().check(stages, micro_batches)
        if micro_batches % stages:
            raise ValueError(
                f"{self.name} needs a multiple of its {stages} stages as number of micro-batches, not {micro_batches}"
            )

    def instructions(self, stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
        """In rounds of K micro-batches: forward passes of these in each chunk in turn, backward passes likewise."""
        total, ahead = self.chunks * micro_batches, self._ahead(stage, stages)
        for number in range(total + ahead):
            if number < total:
                chunk, micro_batch = self._place(number, stages)
                yield Instruction(Kind.FORWARD, micro_batch, chunk)
            if number >= ahead:
                chunk, micro_batch = self._place(number - ahead, stages)
                yield Instruction(Kind.BACKWARD, micro_batch, self.chunks - 1 - chunk)
        yield Instruction(Kind.STEP, micro_batches - 1, version=1)

    def _ahead(self, stage: int, stages: int) -> int:
        """The number of forward passes to warm up."""
        after = stages - 1 - stage
        return after if self.chunks == 1 else (self.chunks - 1) * stages + 2 * after

    def _place(self, number: int, stages: int) -> tuple[int, int]:
        """The chunk, counted from where the direction begins, and the micro-batch of the pass ``number``."""
        rounds, within = divmod(number, stages * self.chunks)
        chunk, micro_batch = divmod(within, stages)
        return chunk, rounds * stages + micro_batch

    def bubble(self, stages: int, micro_batches: int) -> Fraction:
        """(K-1) / (vM+K-1)."""
        return Fraction(stages - 1, self.chunks * micro_batches + stages - 1)

    def activations(self, stage: int, stages: int, micro_batches: int) -> int:
        """(v-1)K + 2(K-1-i) + 1, or K-i if v is 1, or vM if that is less."""
        return min(self._ahead(stage, stages) + 1, self.chunks * micro_batches)
