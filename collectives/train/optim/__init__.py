"""Optimizers of NumPy's networks, and learning rates for all optimizers."""

from .schedules import get_lr, set_lr

__all__ = ["get_lr", "set_lr"]
