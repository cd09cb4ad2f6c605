"""The ranks that together hold one model, for strategies that all-reduce over other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelRanks:
    """The ranks that hold the parts of one model: layers (pipeline), or parts of layers (tensor).

    ``comm`` is their communicator. ``duplicates`` has the names of this rank's parameters that are also on another rank
    of ``comm``, which counts them in norms.
    """

    comm: Any
    duplicates: frozenset[str] = frozenset()
