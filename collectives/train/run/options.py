"""Checks of what a run is given, before it begins."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from ..agree import communicator, role_of
from ..data.loader import Loader, left_to
from ..mesh import Mesh, named
from ..roles import Role
from ..strategies import Strategy

COMPARED = (
    "name", "every", "keep", "checkpoint_every", "checkpoint_seconds", "best", "patience", "resume", "check_weights",
    "elastic", "commit_every",
)  # fmt: skip


def compared(given: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal on all ranks, of the arguments of a run. The folder may be named differently."""
    return {**{name: given[name] for name in COMPARED}, "out": None if given["out"] is None else "a folder"}


def ranks_of(comm: Any, mesh: Mesh | None, elastic: bool) -> tuple[Any, Any, Role | None]:
    """The communicator of a run, that of the ranks whose samples differ, and this rank's role.

    TypeError for `comm` and `mesh`, ValueError for a mesh that is to lose ranks.
    """
    if mesh is None:
        role, comm = role_of(comm), communicator(comm)
        return comm, comm, role
    if comm is not None:
        raise TypeError("Run takes comm or mesh, not both")
    if elastic:
        raise ValueError("training on a mesh cannot go on without some of its ranks: elastic needs comm, not mesh")
    return communicator(mesh.comm), communicator(mesh.data), role_of(mesh.comm)


def parts_of(mesh: Mesh | None) -> dict[str, Any]:
    """What a checkpoint says of a mesh whose ranks hold parts of a model: ``{"mesh": {axis: length}}``, else nothing.

    The tasks are not among the axes: each has checkpoints of its own.
    """
    axes = {} if mesh is None else {axis: length for axis, length in mesh.shape.items() if axis != "tasks"}
    return {"mesh": axes} if axes.get("pipeline", 1) * axes.get("tensor", 1) > 1 else {}


def check_parts(folder: Any, saved: Mapping[str, Any] | None, mine: Mapping[str, Any] | None) -> None:
    """ValueError for a checkpoint in `folder` of parts that this run does not have. Axes are those of `parts_of`."""
    if saved != mine:
        was, now = ("whole models" if axes is None else f"a mesh of {named(axes)}" for axes in (saved, mine))
        raise ValueError(f"{folder} is of {was}, this run of {now}: the parts of a model go on on the same mesh only")


def check_options(
    name: str, state: dict[str, Any], every: int, lr: Any, elastic: bool, replace_ranks: bool, mesh: Mesh | None
) -> None:
    """ValueError for options that do not fit together, and for a name that is no folder's."""
    if not isinstance(name, str) or name in ("", ".", ".."):
        raise ValueError(f"name must be a text other than '', '.' and '..', not {name!r}")
    if mesh is None and getattr(getattr(state.get("opt"), "strategy", None), "in_parts", False):
        raise ValueError('state["opt"] is of a mesh whose ranks hold parts of a model: Run needs mesh=, not comm')
    at_least_1("every", every)
    if lr is not None and "opt" not in state:
        raise ValueError('lr needs state["opt"], the optimizer whose rate it sets')
    if replace_ranks and not elastic:
        raise ValueError("replace_ranks needs elastic=True")


def at_least_1(name: str, value: Any) -> None:
    """TypeError unless `value` is an integer, ValueError if it is below 1."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


def leave_out_servers(strategy: Strategy | None, role: Role, things: Iterable[Any]) -> None:
    """Deal the samples of loaders among `things` to the ranks that train. Collective over these."""
    if strategy is None:
        raise ValueError('with servers, state needs "opt": the run lets them go at its end')
    for data in things if role.trains else ():
        if isinstance(data, Loader):
            left_to(role.comm, data)
