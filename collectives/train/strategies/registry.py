"""The strategies by name, for command lines. A new strategy needs one line here."""

from __future__ import annotations

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

STRATEGIES: dict[str, type[Strategy]] = {
    "allreduce": AllReduce,
    "nocomm": NoComm,
    "parameter_server": ParameterServer,
    "async_parameter_server": AsyncParameterServer,
    "ssp": SSP,
    "local_sgd": LocalSGD,
    "diloco": DiLoCo,
    "fedavg": FedAvg,
    "easgd": EASGD,
    "async_easgd": AsyncEASGD,
    "neighbor_averaging": NeighborAveraging,
    "ad_psgd": ADPSGD,
    "push_sum": PushSum,
    "peer_async": PeerAsync,
}


def find(name: str) -> type[Strategy]:
    """The class of the strategy `name`. ValueError, which lists the names, if there is none."""
    if name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}; there are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
