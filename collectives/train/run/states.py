"""The objects of a run by name: their states into a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ..agree import is_own, together
from ..checkpoint.reading import Checkpoint
from ..strategies import Strategy

RUN, OWN = "run", "run.rank"  # the run's own states: the same on all ranks, and of each rank
STRATEGY = ".strategy"


class Member(NamedTuple):
    """An object of a run: whether each rank saves its own state of it, and whether new ranks take that of another."""

    thing: Any
    per_rank: bool
    shared: bool


class Position(Protocol):
    """What a run tells of itself, and takes back."""

    comm: Any
    name: str

    @property
    def best(self) -> dict[str, Any] | None:
        """The best value so far with its step."""

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
        if _differs(strategy):
            raise ValueError(f"check_weights: {type(strategy).__name__} lets the weights of ranks differ")
    return [strategy.net for strategy in strategies]


def members(objects: Mapping[str, Any]) -> dict[str, Member]:
    """`objects` and the strategies of their optimizers, by name.

    What a strategy leaves different on every rank (parameters, the optimizer's state, the strategy itself) each rank
    saves for itself, as well as what has ``per_rank = True``; so does a rank that has a part of a model (see `Mesh`).
    """
    strategies = {key: s for key, thing in objects.items() if (s := getattr(thing, "strategy", None)) is not None}
    apart = [thing for key, s in strategies.items() if _differs(s) for thing in (objects[key], getattr(s, "net", None))]
    found = {}
    for key, thing in objects.items():
        differs = any(thing is other for other in apart)
        found[key] = Member(thing, differs or bool(getattr(thing, "per_rank", False)), differs)
    for key, strategy in strategies.items():
        found[key + STRATEGY] = Member(strategy, True, True)
    return found


def _differs(strategy: Strategy) -> bool:
    """Whether ranks of a run have other parameters than others."""
    return not strategy.replicated or getattr(strategy, "in_parts", False)


def states(objects: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """The states of `members` by name, and the names of those that every rank saves for itself."""
    found = members(objects)
    return {key: m.thing.state_dict() for key, m in found.items()}, {key for key, m in found.items() if m.per_rank}


def restore(objects: Mapping[str, Any], checkpoint: Checkpoint, comm: Any) -> None:
    """Load the states of a checkpoint into the `members`. Collective.

    With another number of ranks, a rank that the checkpoint does not know leaves an object with ``per_rank = True`` as
    it is; of what a strategy leaves different on every rank, it takes the state of rank (own rank mod saved ranks).
    On all ranks alike: ValueError if the checkpoint is of other objects, which is found out before anything is changed;
    and what ``load_state_dict`` raises.
    """
    found = members(objects)
    names = checkpoint.names - {RUN, OWN}
    if names != set(found):
        lacking, more = sorted(set(found) - names), sorted(names - set(found))
        raise ValueError(f"{checkpoint.folder} is of another run; states missing: {lacking}, unexpected: {more}")

    def read() -> dict[str, Any]:
        return {key: _read(checkpoint, key, member, comm.rank) for key, member in found.items()}

    loaded = together(comm, read)

    def load() -> None:
        for key, state in loaded.items():
            try:
                if state is not None:
                    found[key].thing.load_state_dict(state)
            except KeyError as error:
                raise ValueError(
                    f"{checkpoint.folder}: the state of {key} has no {error}; it is of other options"
                ) from error
            except RuntimeError as error:  # which torch raises for parameters of other names or shapes
                if not is_own(error):
                    raise
                raise ValueError(f"{checkpoint.folder}, {key}: {error}") from error

    together(comm, load)


def _read(checkpoint: Checkpoint, key: str, member: Member, rank: int) -> Any:
    """The state for this rank; None if there is none."""
    if checkpoint.per_rank(key) != member.per_rank:
        saved = "by every rank" if checkpoint.per_rank(key) else "once for all ranks"
        raise ValueError(f"{checkpoint.folder}: {key} was saved {saved}, unlike what this run does")
    if member.per_rank and rank >= checkpoint.ranks:
        if not member.shared:
            return None
        rank %= checkpoint.ranks
    return checkpoint.state(key, rank, tensors=_is_of_torch(member.thing))


def _is_of_torch(thing: Any) -> bool:
    """Whether `thing` is of one of torch's own classes, which take their state as tensors."""
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(thing).__mro__)
