"""On what is trained: ranks with memory and speed, hosts, and the links between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..simulation.network import Network

__all__ = ["MACHINES", "Machine"]


@dataclass(frozen=True)
class Machine:
    """``ranks`` ranks, ``per_host`` of them on each host, in blocks. Times in seconds, rates in bytes per second.

    ``memory`` is that of a rank in bytes, ``flops`` the operations per second that it reaches in its passes,
    ``update_rate`` the rate at which its optimizer goes through weights, gradients and states. ``alpha`` and ``beta``
    are the latency between hosts and the rate of a host's port each way, which its ranks share; ``local_alpha`` and
    ``local_beta`` the same between two ranks of a host; ``fold`` the rate at which a rank adds up what arrives. These
    five are those of ``python -m collectives simulate``. ``overhead`` are the seconds that each pass of a micro-batch
    through a stage takes beside its operations: of the program, and of the start of kernels.
    """

    ranks: int
    memory: float
    flops: float
    per_host: int = 8
    alpha: float = Network.alpha
    beta: float = Network.beta
    local_alpha: float = Network.local_alpha
    local_beta: float = Network.local_beta
    fold: float = Network.fold
    update_rate: float = math.inf
    overhead: float = 0.0

    def __post_init__(self) -> None:
        for name in ("ranks", "per_host"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, not {getattr(self, name)}")
        for name in ("memory", "flops", "beta", "local_beta", "fold", "update_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a number above 0, not {getattr(self, name)}")
        for name in ("alpha", "local_alpha", "overhead"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected 0 or more, not {getattr(self, name)}")

    @property
    def on_host(self) -> int:
        """The ranks that share a host's port."""
        return min(self.ranks, self.per_host)


#: Kinds of machines by name: all of `Machine` but the number of ranks. Rates of links and memory are the makers' own.
#: Of the operations, half of the makers' figure for 16 bits: Narayanan et al. 2021, table 1, measured 44 to 52 %.
MACHINES: dict[str, dict[str, float]] = {
    "dgx-a100": {
        "memory": 80e9, "flops": 156e12, "per_host": 8, "alpha": 5e-6, "beta": 200e9, "local_alpha": 2e-6,
        "local_beta": 300e9, "fold": 1e12, "update_rate": 2e12,
    },
    "dgx-h100": {
        "memory": 80e9, "flops": 495e12, "per_host": 8, "alpha": 5e-6, "beta": 400e9, "local_alpha": 2e-6,
        "local_beta": 450e9, "fold": 1.5e12, "update_rate": 3.3e12,
    },
    "cpu": {
        "memory": 16e9, "flops": 50e9, "per_host": 1, "alpha": 2e-6, "beta": 12e9, "local_alpha": 0.5e-6,
        "local_beta": 10e9, "fold": 20e9, "update_rate": 10e9,
    },
}  # fmt: skip
