"""Checks of what a run is given, before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..agree import communicator, role_of, same_as_rank_0
from ..counts import count
from ..data.loader import Loader, left_to
from ..mesh import Mesh
from ..roles import Role
from .states import check, check_whole


def check_same(comm: Any, out: Any, state: Mapping[str, Any], **given: Any) -> None:
    """ValueError on all ranks unless what a run is given is the same on all of them.

    Folders may have other names, and functions may be others.
    """
    told = {key: "a function" if callable(value) else value for key, value in given.items()}
    mine = {**told, "state": sorted(state), "out": None if out is None else "a folder"}
    same_as_rank_0(comm, mine, "Run")


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


def folder_of(out: str | Path | None, mesh: Mesh | None) -> str | Path | None:
    """The folder of a run within `out`: on a mesh with several tasks one for each, since each writes files."""
    if out is None or mesh is None or mesh.shape["tasks"] == 1:
        return out
    return Path(out) / f"task-{mesh.place['tasks']}"


def check_options(
    name: str, state: dict[str, Any], every: int, lr: Any, elastic: bool, replace_ranks: bool, mesh: Mesh | None
) -> None:
    """ValueError for options that do not fit together, for a name that is no folder's, and for a bad `state`."""
    check(state)
    if not isinstance(name, str) or name in ("", ".", ".."):
        raise ValueError(f"name must be a text other than '', '.' and '..', not {name!r}")
    if mesh is None:
        check_whole(state)
    count("every", every)
    if lr is not None and "opt" not in state:
        raise ValueError('lr needs state["opt"], the optimizer whose rate it sets')
    if replace_ranks and not elastic:
        raise ValueError("replace_ranks needs elastic=True")
    local = [key for key, thing in state.items() if isinstance(thing, Loader) and thing.placement == "local"]
    if replace_ranks and local:
        raise ValueError(f'replace_ranks: state["{local[0]}"] has placement="local", and a new rank has no samples')


def leave_out_servers(state: Mapping[str, Any], role: Role | None, things: Iterable[Any]) -> None:
    """Deal the samples of loaders among `things` to the ranks that train, if there are servers. Collective over these
    ranks."""
    if role is None:
        return
    if getattr(state.get("opt"), "strategy", None) is None:
        raise ValueError('with servers, state needs "opt": the run lets them go at its end')
    for data in things if role.trains else ():
        if isinstance(data, Loader):
            left_to(role.comm, data)
