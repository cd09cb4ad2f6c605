"""Who talks to whom: what the ranks of a strategy do between one step and the next, as data.

`Pattern` describes a strategy without running it. Pictures (``python -m collectives show --strategy``) and the
simulation of strategies (``python -m collectives simulate --strategy``) read it. Ranks and steps count from 0. The
share of an action is a part of the n bytes of all parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

GRADIENTS, PARAMETERS = "gradients", "parameters"


class Meet(NamedTuple):
    """Take part in an all-reduce of `what` over all ranks that train, and wait for its result."""

    what: str
    share: float = 1.0


class Send(NamedTuple):
    """Send `what` to `target`, which waits for it: its actions of this step have a `Receive`."""

    target: int
    what: str
    share: float = 1.0


class Receive(NamedTuple):
    """Wait for what `source` sends in the same step."""

    source: int


class Post(NamedTuple):
    """Send `what` to each of `targets`. Nobody waits for it: a target uses it when it is there."""

    targets: tuple[int, ...]
    what: str
    share: float = 1.0


class Ask(NamedTuple):
    """Send `what` to `server`, and wait for the parameters. The server answers when the pattern's staleness allows."""

    server: int
    what: str
    share: float = 1.0


Action = Meet | Send | Receive | Post | Ask


@dataclass(frozen=True)
class Pattern:
    """What a strategy's ranks do after the computation of each step.

    ``actions(rank, step)`` are those of a rank that trains. They begin together, and the rank goes on when all are
    done. ``servers`` are the ranks that have a part of the parameters each. If ``beside`` is False they do not train. A
    server answers the step c of a worker when no worker is more than ``staleness`` steps behind that; 0 is
    synchronous, infinity asynchronous.
    """

    actions: Callable[[int, int], Sequence[Action]]
    servers: tuple[int, ...] = ()
    beside: bool = False
    staleness: float = 0

    def workers(self, size: int) -> list[int]:
        """The ranks, of `size`, that train."""
        return [rank for rank in range(size) if self.beside or rank not in self.servers]


def apart() -> Pattern:
    """Ranks that send nothing."""
    return Pattern(lambda rank, step: ())


def together(what: str, when: Callable[[int], bool] = lambda step: True) -> Pattern:
    """All-reduces of `what` after those steps for which ``when(step)`` is true."""
    return Pattern(lambda rank, step: (Meet(what),) if when(step) else ())


def neighbours(targets: Callable[[int, int], Iterable[int]], sources: Callable[[int, int], Iterable[int]]) -> Pattern:
    """Parameters are sent along the links of a graph, and each rank waits for its neighbours'.

    ``targets(rank, step)`` are the ranks to which a rank sends, ``sources(rank, step)`` those that send to it.
    """
    return Pattern(
        lambda rank, step: (
            *(Send(target, PARAMETERS) for target in targets(rank, step)),
            *(Receive(source) for source in sources(rank, step)),
        )
    )


def central(
    servers: Sequence[int], staleness: float, *, beside: bool = False, what: str = GRADIENTS, every: int = 1
) -> Pattern:
    """Workers send `what` to servers that have equal parts of the parameters, after each `every`-th step."""
    questions = tuple(Ask(server, what, 1 / len(servers)) for server in servers)
    return Pattern(lambda rank, step: questions if (step + 1) % every == 0 else (), tuple(servers), beside, staleness)
