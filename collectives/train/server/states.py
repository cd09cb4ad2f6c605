"""States of servers, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checkpoint import Shard as Leaf


def wholes(states: Sequence[Any]) -> Any:
    """One state of those of all servers. The parts in their `Leaf`s become whole arrays.

    Of numbers it has the largest: servers that have dropped more late gradients than others have made fewer steps.
    """
    first = states[0]
    if isinstance(first, Leaf):
        return np.concatenate([part.array for part in sorted(states, key=lambda part: part.start)])
    if isinstance(first, Mapping):
        return {key: wholes([state[key] for state in states]) for key in first}
    if isinstance(first, list | tuple):
        return [wholes(items) for items in zip(*states, strict=True)]
    if isinstance(first, int | float) or getattr(first, "shape", None) == ():
        return max(states)
    return first
