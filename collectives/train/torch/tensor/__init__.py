"""torch's layers cut apart over the ranks of a tensor axis (Shoeybi et al. 2019; Korthikanti et al. 2022)."""

from .attention import ParallelAttention, ParallelMLP
from .dropout import ParallelDropout
from .linear import ColumnParallelLinear, RowParallelLinear
from .norms import ParallelLayerNorm, ParallelRMSNorm
from .pairs import paired
from .vocabulary import ParallelCrossEntropy, ParallelEmbedding

__all__ = [
    "ColumnParallelLinear",
    "ParallelAttention",
    "ParallelCrossEntropy",
    "ParallelDropout",
    "ParallelEmbedding",
    "ParallelLayerNorm",
    "ParallelMLP",
    "ParallelRMSNorm",
    "RowParallelLinear",
    "paired",
]
