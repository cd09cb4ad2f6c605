"""ZB-H1: the backward pass is split, and gradients of weights fill the time in which a stage would wait."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from .instructions import Instruction, Kind, PipelineSchedule


class ZeroBubble(PipelineSchedule):
    """ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.2).

    Hypothesis: only gradients of inputs are waited for. Gradients of weights may come later, as long as no stage holds
    more activations than the first stage of 1F1B does.
    Bubble: (K-1) (F+I-W) for K stages; if forward pass and both parts of the backward pass last equally long,
    (K-1) / (3M+K-1) of the step with M >= K micro-batches.
    Memory: at most K activations on every stage, and one version of the weights. An activation counts until the
    gradients of the weights are computed from it.
    """

    name = "zero_bubble"
    split = True
    bubble_formula = "(K-1)/(3M+K-1)"
    activations_formula = "min(K, M)"

    def instructions(self, stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
        """The order of 1F1B, where gradients of weights are ``stage`` micro-batches later than those of inputs."""
        ahead, delay = stages - 1 - stage, stage
        for number in range(micro_batches + ahead + delay):
            if number < micro_batches:
                yield Instruction(Kind.FORWARD, number)
            if ahead <= number < micro_batches + ahead:
                yield Instruction(Kind.BACKWARD_INPUT, number - ahead)
            if number >= ahead + delay:
                yield Instruction(Kind.BACKWARD_WEIGHT, number - ahead - delay)
        yield Instruction(Kind.STEP, micro_batches - 1, version=1)

    def bubble(self, stages: int, micro_batches: int) -> Fraction:
        """(K-1) / (3M+K-1). With M < K there are too few gradients to fill the time: 2K-1-M takes the place of K-1."""
        idle = 2 * stages - 1 - min(stages, micro_batches)
        return Fraction(idle, 3 * micro_batches + idle)

    def activations(self, stage: int, stages: int, micro_batches: int) -> int:
        """K, or M if that is less."""
        return min(stages, micro_batches)
