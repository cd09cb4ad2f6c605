"""Layers cut apart over the ranks of a tensor axis (Shoeybi et al. 2019, sec. 3). torch has its own in ``torch``."""

from .cuts import Cut
from .layers import ColumnParallelLinear, RowParallelLinear
from .networks import cut_linear
from .replicas import replicate
from .states import cuts_of, load_whole_optimizer_state, load_whole_state, whole_optimizer_state, whole_state

__all__ = [
    "ColumnParallelLinear",
    "Cut",
    "RowParallelLinear",
    "cut_linear",
    "cuts_of",
    "load_whole_optimizer_state",
    "load_whole_state",
    "replicate",
    "whole_optimizer_state",
    "whole_state",
]
