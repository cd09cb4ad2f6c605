"""Replays: the newest transitions, drawn uniformly or by priority.

``sum_tree`` finds what to draw, ``storage`` keeps the transitions, ``replay`` has the two kinds of replay.
"""

from .replay import Prioritised, Replay, Sample, Uniform
from .storage import Storage
from .sum_tree import SumTree

__all__ = ["Prioritised", "Replay", "Sample", "Storage", "SumTree", "Uniform"]
