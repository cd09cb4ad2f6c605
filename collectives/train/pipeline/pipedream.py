"""PipeDream: 1F1B without a flush. Each micro-batch is a step, and old weights are stashed."""

from __future__ import annotations

from collections.abc import Iterator

from .instructions import Instruction, Kind
from .one_f_one_b import OneFOneB


class PipeDream(OneFOneB):
    """1F1B with weight stashing (Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training",
    SOSP 2019, sections 3.2 and 3.3).

    Hypothesis: gradients of slightly older weights train as well, if each is computed forward and backward with the
    same weights; then the pipeline needs no flush.
    Bubble: it fills and drains once in a stream, (K-1) / (M+K-1) of the stream's time for K stages and M micro-batches.
    Memory: at most K-i activations and K-i versions of the weights on stage i, counted from 0.
    Staleness: the gradient on stage i is that of weights which are K-1-i steps old. Stages use different versions for
    one micro-batch (the paper's vertical sync, which avoids that, is not used).
    """

    name = "pipedream"
    flushless = True
    versions_formula = "K-i"
    staleness_formula = "K-1-i"

    def instructions(self, stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
        """K-1-i forward passes with the first weights; then by turns a forward pass, a backward pass and a step."""
        ahead = stages - 1 - stage
        for kind, micro_batch in self.order(stage, stages, micro_batches):
            yield Instruction(kind, micro_batch, version=max(micro_batch - ahead, 0))
            if kind is Kind.BACKWARD:
                yield Instruction(Kind.STEP, micro_batch, version=micro_batch + 1)

    def versions(self, stage: int, stages: int) -> int:
        """K-i."""
        return stages - stage

    def staleness(self, stage: int, stages: int) -> int:
        """K-1-i."""
        return stages - 1 - stage
