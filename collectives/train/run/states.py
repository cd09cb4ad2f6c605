"""The objects of a run by name: their states into a checkpoint, and back."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ..agree import is_own, together
from ..checkpoint.reading import Checkpoint
from ..flat.adapt import Adaptable, is_torch
from ..mesh import Mesh, named
from ..models.nn import Sequential
from ..optim.base import Optimizer
from ..random_streams import Random, TorchRandom
from ..strategies import Strategy
from ..tensor import cuts_of
from ..tensors import loaded as torch_loaded
from ..weights import not_finite
from ..whole import WholeNet, WholeOptimizer

RUN, OWN = "run", "run.rank"  # the run's own states: the same on all ranks, and of each rank
STRATEGY = ".strategy"


class Member(NamedTuple):
    """An object of a run: whether each rank saves its own state of it, and whether new ranks take that of another.

    On a mesh `thing` is the `WholeNet` or the `WholeOptimizer` of the object, if it can be.
    """

    thing: Any
    per_rank: bool
    shared: bool


class Position(Protocol):
    """What a run tells of itself, and takes back."""

    comm: Any
    name: str

    @property
    def best_checkpoint(self) -> int | None:
        """The step of the checkpoint that has the best value so far."""

    def best_is_in(self, step: int) -> None:
        """Note that this is the checkpoint of `step`."""

    def position(self) -> dict[str, Any]:
        """The run's own states by name: `RUN` of all ranks, `OWN` of this rank."""

    def go_to(self, common: dict[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
        """Take the state of all ranks, and those of single ranks that this rank takes over."""

    def move(self, comm: Any) -> None:
        """Go on with the ranks of `comm`."""


@dataclass(frozen=True)
class Place:
    """Where a run is: its own state of all ranks, and that of each rank. It is never changed: commits need no copy."""

    common: dict[str, Any]
    own: list[Mapping[str, Any]]


class Itself:
    """A run as one of its objects, whose state any number of ranks can load. Its methods are collective.

    The state has what every rank had, so that nothing of a rank that dies is lost: rank 0 takes over all of it.
    """

    def __init__(self, run: Position) -> None:
        self._run = run

    def redeal(self, comm: Any) -> None:
        """Go on with the ranks of `comm`."""
        self._run.move(comm)

    def state_dict(self) -> dict[str, Any]:
        """The position of the run."""
        position = self._run.position()
        return {"place": Place(position[RUN], self._run.comm.allgather(position[OWN]))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position."""
        place: Place = state["place"]
        self._run.go_to(place.common, place.own if self._run.comm.rank == 0 else [])


def check(objects: Mapping[str, Any]) -> None:
    """Raise ValueError unless each of `objects` has a state and a name that is free."""
    for key, thing in objects.items():
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise ValueError(f"state[{key!r}] has no state_dict and load_state_dict")
        if key in (RUN, OWN) or key.endswith(STRATEGY):
            raise ValueError(f"state[{key!r}]: this name is the run's own; choose another")


def check_whole(objects: Mapping[str, Any]) -> None:
    """Raise ValueError if one of `objects` is a part of a model, or its optimizer, and other ranks have the rest."""
    for key, thing in objects.items():
        strategy = getattr(thing, "strategy", None)
        if getattr(strategy, "in_parts", False) or _is_part(thing) or _is_part(getattr(strategy, "net", None)):
            raise ValueError(
                f"state[{key!r}] is of a part of a model, and other ranks have the rest: Run needs mesh=, not comm"
            )


def _is_part(net: Any) -> bool:
    """Whether `net` is a network of which other ranks have other stages, or other pieces of its layers."""
    if isinstance(net, Adaptable) and net.comm.size > 1:
        return True
    return is_network(net) and any(len(cut.sizes) > 1 for cut in cuts_of(net).values())


def replicas(objects: Mapping[str, Any], every: int | None) -> list[Any]:
    """The networks whose weights are to be equal on all ranks, and to be compared after `every` steps; none for None.

    ValueError for `every` below 1, without a strategy, and for a strategy that lets weights differ.
    """
    if every is None:
        return []
    strategies = [s for thing in objects.values() if (s := getattr(thing, "strategy", None)) is not None]
    if every < 1 or not strategies:
        raise ValueError("check_weights is a number of steps, at least 1, and needs an optimizer with a strategy")
    for strategy in strategies:
        if not strategy.replicated or strategy.in_parts:
            raise ValueError(f"check_weights: {type(strategy).__name__} lets the weights of ranks differ")
    return [strategy.net for strategy in strategies]


def members(objects: Mapping[str, Any], mesh: Mesh | None = None) -> dict[str, Member]:
    """`objects` and the strategies of their optimizers, by name. With a `mesh` collective over ``mesh.comm``.

    What a strategy leaves different on every rank (parameters, the optimizer's state, the strategy itself) each rank
    saves for itself, as well as what has ``per_rank = True``. Other networks and optimizers are saved on a mesh as
    those of the whole model. ValueError for an optimizer of parts of a model whose state cannot be saved.
    """
    strategies = {key: s for key, thing in objects.items() if (s := getattr(thing, "strategy", None)) is not None}
    parts = mesh is not None and mesh.in_parts
    own = [(key, s) for key, s in strategies.items() if not s.replicated or (parts and s.flat)]
    apart = [thing for key, s in own for thing in (objects[key], getattr(s, "net", None))]
    differs = {key: any(thing is other for other in apart) for key, thing in objects.items()}
    things = dict(objects)
    if mesh is not None:
        for key in sorted(objects):  # in one order on all ranks
            if mesh.in_parts:
                _check_optimizer(key, objects[key])
            if not differs[key]:
                things[key] = _whole(objects[key], mesh)
    found = {}
    for key, thing in objects.items():
        found[key] = Member(things[key], differs[key] or bool(getattr(thing, "per_rank", False)), differs[key])
    for key, strategy in strategies.items():
        found[key + STRATEGY] = Member(strategy, True, True)
    return found


def _check_optimizer(key: str, thing: Any) -> None:
    """ValueError for an optimizer of a part of a model that has no state which a checkpoint could have."""
    strategy = getattr(thing, "strategy", None)
    if strategy is None and (isinstance(thing, Optimizer) or hasattr(thing, "param_groups")):
        raise ValueError(f"state[{key!r}] is an optimizer of a part of a model: call distribute(..., mesh=mesh) before")
    if getattr(strategy, "shard", 0):
        raise ValueError(f"state[{key!r}] has shards of a part of a model, which have no checkpoints: leave out shard")


def _whole(thing: Any, mesh: Mesh) -> Any:
    """A network or an optimizer as one of the whole model; anything else as it is."""
    strategy = getattr(thing, "strategy", None)
    if strategy is not None:
        return thing if strategy.flat or getattr(strategy, "shard", 0) else WholeOptimizer(thing, strategy.net, mesh)
    return WholeNet(thing, mesh) if is_network(thing) else thing


def is_network(thing: Any) -> bool:
    """Whether `thing` is one of the networks that `distribute` takes."""
    return isinstance(thing, Adaptable | Sequential) or is_torch(thing)


def states(found: Mapping[str, Member]) -> tuple[dict[str, Any], set[str]]:
    """The states of `members` by name, and the names of those that every rank saves for itself."""
    return {key: m.thing.state_dict() for key, m in found.items()}, {key for key, m in found.items() if m.per_rank}


def check_finite(objects: Mapping[str, Any], rank: int, step: int) -> None:
    """FloatingPointError if a network among `objects` has trainable weights that are infinite or NaN."""
    for key, thing in objects.items():
        name = not_finite(thing) if is_network(thing) else None
        if name is not None:
            raise FloatingPointError(
                f"{key}/{name} of rank {rank} is not finite after step {step}, so that no checkpoint of it is saved; a "
                "smaller learning rate may help"
            )


Axes = Mapping[str, int]  # the lengths of the axes of a mesh, in one task


def axes_of(mesh: Mesh | None, ranks: int) -> Axes:
    """The axes of a run with so many ranks, all of them data ranks without a mesh; servers are no ranks of a run."""
    if mesh is None:
        return {"data": ranks}
    axes = {axis: n for axis, n in mesh.shape.items() if axis != "tasks"}
    return {**axes, "data": ranks // (axes["pipeline"] * axes["tensor"])}


def inherited(saved: Axes, mine: Axes, rank: int) -> list[int]:
    """The ranks of a checkpoint whose `OWN` states `rank` takes over: of the ranks with the same samples one counts.

    With another number of data ranks nothing may be lost: the first one takes over what all had added up.
    """
    if saved == mine:
        return [rank]
    tensor, data = saved.get("tensor", 1), rank // mine.get("tensor", 1) % mine["data"]
    if saved["data"] == mine["data"]:
        return [data * tensor]
    return [of_data * tensor for of_data in range(saved["data"])] if data == 0 else []


def counterpart(saved: Axes, mine: Axes, rank: int) -> int | None:
    """The rank of a checkpoint that was at the place of `rank`: `rank` takes its states of objects with ``per_rank``.

    None if there were fewer data ranks. Stages that are new take the state of the first one. If the number of tensor
    ranks has changed, all take that of the first one: they may need to draw the same numbers.
    """
    before, of_tensor = divmod(rank, mine.get("tensor", 1))
    stage, of_data = divmod(before, mine["data"])
    if of_data >= saved["data"]:
        return None
    if stage >= saved.get("pipeline", 1):
        stage = 0
    if saved.get("tensor", 1) != mine.get("tensor", 1):
        of_tensor = 0
    return (stage * saved["data"] + of_data) * saved.get("tensor", 1) + of_tensor


def in_parts(axes: Axes) -> bool:
    """Whether ranks hold parts of a model that others lack."""
    return axes.get("pipeline", 1) * axes.get("tensor", 1) > 1


def _has_arrays(state: Any) -> bool:
    """Whether there is an array in a state that is more than one number."""
    if isinstance(state, Mapping):
        return any(map(_has_arrays, state.values()))
    if isinstance(state, list | tuple):
        return any(map(_has_arrays, state))
    return len(getattr(state, "shape", ())) > 0


def take(member: Member, state: Any, of_another: bool) -> None:
    """Load a state; `of_another`: no rank with this number was saved, so if ranks save their own it is another's."""
    member.thing.load_state_dict(state)
    if of_another and member.per_rank and isinstance(member.thing, Strategy):
        member.thing.forget_own()


def restore(found: Mapping[str, Member], checkpoint: Checkpoint, comm: Any, saved: Axes, mine: Axes) -> None:
    """Load the states of a checkpoint into the `members`. Collective.

    `saved` and `mine` are the axes of the checkpoint and of the run. If they differ, an object with ``per_rank = True``
    takes the state of the rank that was at its place (see `counterpart`). It stays as it is if there was none, or if
    that has the random numbers of another stream. Of what a strategy leaves different on every rank, a rank takes the
    state of rank (own rank mod saved ranks). If ranks hold other parts of a model than before, arrays that are a
    rank's own fit nowhere.
    On all ranks alike: ValueError if the checkpoint is of other objects or has such arrays, which is found out before
    anything is changed; and what ``load_state_dict`` raises. Objects are loaded one after the other, and strategies
    last: their loads may be collective, so that no rank may begin one after another rank's error.
    """
    moved = saved != mine and (in_parts(saved) or in_parts(mine))
    names = checkpoint.names - {RUN, OWN}
    if names != set(found):
        lacking, more = sorted(set(found) - names), sorted(names - set(found))
        raise ValueError(f"{checkpoint.folder} is of another run; states missing: {lacking}, unexpected: {more}")

    def read() -> dict[str, Any]:
        place = counterpart(saved, mine, comm.rank)
        loaded = {key: _read(checkpoint, key, member, comm.rank, place) for key, member in found.items()}
        for key in loaded if moved else ():
            if found[key].shared and _has_arrays(loaded[key]):
                raise ValueError(
                    f"{checkpoint.folder} is of a mesh of {named(saved)}, this run of a mesh of {named(mine)}: {key} "
                    "has arrays of each rank's own, and goes on on the same mesh only"
                )
            if saved != mine and not _is_own_stream(found[key].thing, loaded[key]):
                loaded[key] = None
        return loaded

    loaded = together(comm, read)

    def load(key: str) -> None:
        try:
            if loaded[key] is not None:
                take(found[key], loaded[key], comm.rank >= checkpoint.ranks)
        except KeyError as error:
            why = f"the state of {key} has no {error}; it is of other options"
            raise ValueError(f"{checkpoint.folder}: {why}") from error
        except RuntimeError as error:  # which torch raises for parameters of other names or shapes
            if not is_own(error):
                raise
            raise ValueError(f"{checkpoint.folder}, {key}: {error}") from error

    for key in sorted(loaded, key=lambda key: (key.endswith(STRATEGY), key)):
        together(comm, functools.partial(load, key))


def _read(checkpoint: Checkpoint, key: str, member: Member, rank: int, place: int | None) -> Any:
    """The state for this rank; None if there is none. `place`: the rank that was at the place of this one."""
    if checkpoint.per_rank(key) != member.per_rank:
        saved = "by every rank" if checkpoint.per_rank(key) else "once for all ranks"
        raise ValueError(f"{checkpoint.folder}: {key} was saved {saved}, unlike what this run does")
    if member.shared or not member.per_rank:
        place = rank % checkpoint.ranks
    elif place is None:
        return None
    with_torch = torch_loaded() is not None  # as in a program that has saved tensors
    return checkpoint.state(key, place, tensors=with_torch)


def _is_own_stream(thing: Any, state: Any) -> bool:
    """Whether a state, if it is one of random numbers, is of the stream of this rank and stage."""
    if not isinstance(thing, Random | TorchRandom) or not isinstance(state, Mapping):
        return True
    return all(state.get(key, getattr(thing, key)) == getattr(thing, key) for key in ("rank", "stage"))
