"""What a pipeline has measured, beside what its schedule promises."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Report", "StepLoss"]


class StepLoss(float):
    """The loss of a step, the mean over ``samples`` samples; the same number on all stages."""

    samples: int

    def __new__(cls, value: float, samples: int) -> StepLoss:
        """A float that knows its number of samples."""
        made = super().__new__(cls, value)
        made.samples = samples
        return made

    def item(self) -> float:
        """The value as a plain float."""
        return float(self)


@dataclass(frozen=True)
class Report:
    """Figures of all stages since the last report; lists are by rank of the pipeline.

    * ``bubble``: the measured share of time in which a stage was idle, the mean over the stages. ``predicted`` is that
      of the schedule if all stages last equally long, and backward passes twice as long as forward passes.
    * ``busy``: seconds that each stage computed; ``seconds``: the time that the steps took, that of the slowest rank.
    * ``activation_bytes``: the most bytes that each stage kept for backward passes at once. ``activations``: the most
      micro-batches of which it kept something, added up over its chunks. ``promised`` is the schedule's bound.
    * ``versions``: the most versions of its weights that each stage held at once.
    """

    schedule: str
    bubble: float
    predicted: float
    busy: list[float]
    seconds: float
    activation_bytes: list[int]
    activations: list[int]
    promised: list[int]
    versions: list[int]

    def __str__(self) -> str:
        """A table: one line for the pipeline and one for each stage."""
        lines = [f"{self.schedule}: bubble {self.bubble:.1%}, by the formula {self.predicted:.1%}"]
        for stage, nbytes in enumerate(self.activation_bytes):
            lines.append(
                f"stage {stage}: busy {self.busy[stage]:.3f} of {self.seconds:.3f} s, activations of "
                f"{self.activations[stage]} micro-batches (at most {self.promised[stage]}), {nbytes} bytes"
            )
        return "\n".join(lines)
