"""The learning rate of any optimizer, and the samples that it may depend on."""

from __future__ import annotations

from typing import Any


def set_rate(opt: Any, rate: float) -> None:
    """Set the learning rate of all parameters: of torch's ``param_groups``, or the attribute ``lr``."""
    if hasattr(opt, "param_groups"):
        for group in opt.param_groups:
            group["lr"] = rate
    else:
        opt.lr = rate


def rate_of(opt: Any) -> float | None:
    """The learning rate of the optimizer (of torch's, that of its first group); None if it has none."""
    if hasattr(opt, "param_groups"):
        return float(opt.param_groups[0]["lr"])
    return float(opt.lr) if hasattr(opt, "lr") else None


def samples_before(data: Any) -> int:
    """The samples that all ranks together have had of a loader before its next step."""
    position = getattr(data, "position", None)
    if position is None:
        position = min(data.step * data.batch, data.samples)
    return int(data.epoch * data.samples + position)
