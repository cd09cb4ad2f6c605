"""Checks of what a run is given, before it begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..data.loader import Loader, left_to
from ..roles import Role
from ..strategies import Strategy


def check_options(state: dict[str, Any], every: int, lr: Any, elastic: bool, replace_ranks: bool) -> None:
    """ValueError for options that do not fit together."""
    if every < 1:
        raise ValueError(f"every must be at least 1, not {every}")
    if lr is not None and "opt" not in state:
        raise ValueError('lr needs state["opt"], the optimizer whose rate it sets')
    if replace_ranks and not elastic:
        raise ValueError("replace_ranks needs elastic=True")


def leave_out_servers(strategy: Strategy | None, role: Role, things: Iterable[Any]) -> None:
    """Deal the samples of loaders among `things` to the ranks that train. Collective over these."""
    if strategy is None:
        raise ValueError('with servers, state needs "opt": the run lets them go at its end')
    for data in things if role.trains else ():
        if isinstance(data, Loader):
            left_to(role.comm, data)
