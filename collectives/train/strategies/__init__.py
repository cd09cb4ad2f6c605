"""Training strategies: how ranks combine gradients or parameters. One file for each strategy."""

from . import graphs
from .ad_psgd import ADPSGD
from .allreduce import AllReduce
from .async_easgd import AsyncEASGD
from .async_parameter_server import AsyncParameterServer
from .base import Strategy
from .diloco import DiLoCo
from .easgd import EASGD
from .fedavg import FedAvg
from .local_sgd import LocalSGD
from .neighbor_averaging import NeighborAveraging
from .nocomm import NoComm
from .parameter_server import ParameterServer
from .peer_async import PeerAsync
from .push_sum import PushSum
from .ssp import SSP

__all__ = [
    "ADPSGD",
    "EASGD",
    "SSP",
    "AllReduce",
    "AsyncEASGD",
    "AsyncParameterServer",
    "DiLoCo",
    "FedAvg",
    "LocalSGD",
    "NeighborAveraging",
    "NoComm",
    "ParameterServer",
    "PeerAsync",
    "PushSum",
    "Strategy",
    "graphs",
]
