"""Training strategies: how ranks combine gradients or parameters. One file for each strategy."""

from . import graphs
from .ad_psgd import ADPSGD
from .allreduce import AllReduce
from .base import Strategy
from .diloco import DiLoCo
from .easgd import EASGD
from .fedavg import FedAvg
from .local_sgd import LocalSGD
from .neighbor_averaging import NeighborAveraging
from .nocomm import NoComm
from .push_sum import PushSum

__all__ = [
    "ADPSGD",
    "EASGD",
    "AllReduce",
    "DiLoCo",
    "FedAvg",
    "LocalSGD",
    "NeighborAveraging",
    "NoComm",
    "PushSum",
    "Strategy",
    "graphs",
]
