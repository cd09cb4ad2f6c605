"""Reinforcement learning: what is learnt from, kept, and drawn; how actors explore, and what learners compute.

`transitions` has steps of an environment, `replay/` keeps them, `exploration` and `targets` are plain functions.
"""

from .exploration import annealed, apex_epsilon
from .replay import Prioritised, Replay, Sample, SumTree, Uniform
from .targets import double_q, huber
from .transitions import Form, NStep, Transitions

__all__ = [
    "Form",
    "NStep",
    "Prioritised",
    "Replay",
    "Sample",
    "SumTree",
    "Transitions",
    "Uniform",
    "annealed",
    "apex_epsilon",
    "double_q",
    "huber",
]
