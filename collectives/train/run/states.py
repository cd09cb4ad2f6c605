"""The objects of a run by name: their states into a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..agree import together
from ..checkpoint.reading import Checkpoint

RUN, OWN = "run", "run.rank"  # the run's own states: the same on all ranks, and of each rank
STRATEGY = ".strategy"


class Member(NamedTuple):
    """An object of a run: whether each rank saves its own state of it, and whether new ranks take that of another."""

    thing: Any
    per_rank: bool
    shared: bool


def check(objects: Mapping[str, Any]) -> None:
    """Raise ValueError unless each of `objects` has a state and a name that is free."""
    for key, thing in objects.items():
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise ValueError(f"state[{key!r}] has no state_dict and load_state_dict")
        if key in (RUN, OWN) or key.endswith(STRATEGY):
            raise ValueError(f"state[{key!r}]: this name is the run's own; choose another")


def members(objects: Mapping[str, Any]) -> dict[str, Member]:
    """`objects` and the strategies of their optimizers, by name.

    What a strategy leaves different on every rank (parameters, the optimizer's state, the strategy itself) each rank
    saves for itself, as well as what has ``per_rank = True``.
    """
    strategies = {key: s for key, thing in objects.items() if (s := getattr(thing, "strategy", None)) is not None}
    apart = [
        thing for key, s in strategies.items() if not s.replicated for thing in (objects[key], getattr(s, "net", None))
    ]
    found = {}
    for key, thing in objects.items():
        differs = any(thing is other for other in apart)
        found[key] = Member(thing, differs or bool(getattr(thing, "per_rank", False)), differs)
    for key, strategy in strategies.items():
        found[key + STRATEGY] = Member(strategy, True, True)
    return found


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
            except (KeyError, RuntimeError) as error:  # which torch raises for parameters of other names or shapes
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
