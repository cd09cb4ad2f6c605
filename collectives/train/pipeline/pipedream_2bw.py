"""PipeDream-2BW: 1F1B without a flush, with gradients summed over a batch and two versions of the weights."""

from __future__ import annotations

from collections.abc import Iterator

from .instructions import Instruction, Kind
from .one_f_one_b import OneFOneB


class PipeDream2BW(OneFOneB):
    """1F1B with double-buffered weights (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML
    2021, section 3.1).

    Hypothesis: a batch of at least K micro-batches between steps makes two versions of the weights enough, on every
    stage, and all stages use the same version for one micro-batch.
    Bubble: it fills and drains once in a stream, (K-1) / (M+K-1) of the stream's time for K stages and M micro-batches.
    Memory: at most K-i activations on stage i, counted from 0, and two versions of the weights.
    Staleness: one step, on all stages: w(t+1) = w(t) - lr * gradient(w(t-1)).

    ``accumulate`` is the number of micro-batches in a batch, at least K (default: K).
    """

    name = "pipedream_2bw"
    flushless = True
    versions_formula = "2"
    staleness_formula = "1"

    def __init__(self, chunks: int = 1, accumulate: int | None = None) -> None:
        super().__init__(chunks)
        self.accumulate = accumulate

    def check(self, stages: int, micro_batches: int) -> None:
        """ValueError also if a batch is smaller than the stages, or the micro-batches are not whole batches."""
        super().check(stages, micro_batches)
        batch = self._batch(stages)
        if batch < stages:
            raise ValueError(f"{self.name} accumulates at least as many micro-batches as stages, {stages}, not {batch}")
        if micro_batches % batch:
            raise ValueError(
                f"{self.name} needs a multiple of the {batch} micro-batches that it accumulates, not {micro_batches}"
            )

    def instructions(self, stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
        """The order of 1F1B, with a step after the backward passes of each batch."""
        batch = self._batch(stages)
        for kind, micro_batch in self.order(stage, stages, micro_batches):
            yield Instruction(kind, micro_batch, version=max(micro_batch // batch - 1, 0))
            if kind is Kind.BACKWARD and (micro_batch + 1) % batch == 0:
                yield Instruction(Kind.STEP, micro_batch, version=micro_batch // batch + 1)

    def _batch(self, stages: int) -> int:
        return stages if self.accumulate is None else self.accumulate

    def versions(self, stage: int, stages: int) -> int:
        """2."""
        return 2

    def staleness(self, stage: int, stages: int) -> int:
        """1."""
        return 1
