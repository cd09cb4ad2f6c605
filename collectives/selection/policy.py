"""Which algorithm serves a call.

In this order: the one that the call names, that of ``COLLECTIVES_ALGORITHM``, that of the selection table, shared
memory if all ranks share a node, and that of the default rules. Rank 0 reads the variable and the table when a
communicator is made, and sends them to the other ranks.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from ..schedules import registry
from ..schedules.registry import PRIVATE_LENGTHS, Algorithm, ScheduleAlgorithm
from . import hierarchy
from .hosts import Link, between, nearest
from .model import Load, Model, load

__all__ = [
    "LOCAL", "ByMPI", "Choice", "Demand", "Limits", "ModelKey", "Rows", "Rules", "Tuned", "choose", "load_of",
    "segments_for",
]  # fmt: skip

#: Staging memory, in bytes, that one call may use; longer vectors are cut into more segments.
STAGING_LIMIT = 256 << 20

Rows = list[tuple[int | None, str, int | None]]
ModelKey = tuple[str, str, int | None]  # collective, algorithm, bytes of a segment
#: When the MPI library's own algorithm may serve a call. "chosen": if a selection table chooses it, the call names it,
#: or COLLECTIVES_ALGORITHM does; "named": in the two last cases; "never", since the call is this library's or torch's.
ByMPI = Literal["chosen", "named", "never"]
_KB, _MB = 1 << 10, 1 << 20
MOST_CHOICES = 10_000  # remembered for each communicator

#: For each collective rows of (longest vector in bytes or None, algorithm, bytes of a segment or None). The first row
#: that fits is used. The bytes of a vector are those of all blocks together. Collectives in PRIVATE_LENGTHS have
#: one row only, without segments, since the ranks know different numbers of bytes.
DEFAULT: dict[str, Rows] = {
    "allreduce": [(16 * _KB, "recursive_doubling", None), (None, "circulant", _MB)],
    "reduce": [(64 * _KB, "binomial", None), (None, "scatter_gather", _MB)],
    "bcast": [(64 * _KB, "binomial", None), (None, "scatter_allgather", _MB)],
    "allgather": [(64 * _KB, "bruck", None), (None, "circulant", None)],
    "allgatherv": [(None, "circulant", None)],
    "reduce_scatter": [(None, "circulant", None)],
    "reduce_scatter_block": [(None, "circulant", None)],
    "alltoall": [(4 * _KB, "bruck", None), (_MB, "linear", None), (None, "pairwise", None)],
    "alltoallv": [(None, "pairwise", None)],
    "gather": [(64 * _KB, "binomial", None), (None, "linear", None)],
    "gatherv": [(None, "linear", None)],
    "scatter": [(64 * _KB, "binomial", None), (None, "linear", None)],
    "scatterv": [(None, "linear", None)],
    "scan": [(256 * _KB, "recursive_doubling", None), (None, "linear", 256 * _KB)],
    "exscan": [(256 * _KB, "recursive_doubling", None), (None, "linear", 256 * _KB)],
    "barrier": [(None, "dissemination", None)],
}

#: Collectives that have algorithms of their own rather than those of another collective.
_BASES = sorted({registry.base(collective) for collective in DEFAULT})

#: The algorithm of each collective if all ranks share a node.
LOCAL = dict.fromkeys(DEFAULT, "shm")


class Limits(NamedTuple):
    """Limits between the schemes of the node-local engine, in bytes; coll_node_limits in C."""

    copy: int  #: messages up to this are copied in even from the heap: one synchronisation less
    read: int  #: messages up to this are read whole by every rank
    shortest: int  #: the shortest segment,
    segment: int  #: and the longest; powers of two
    stream: int  #: results of vectors of at least this length bypass the cache
    private: int  #: blocks of about this length or more are read in a process's private memory


#: Limits if each rank has a core (False), or if ranks outnumber cores, so that each wait costs a context switch (True).
NODE_LIMITS = {
    False: Limits(512, 4 * _KB, 16 * _KB, 256 * _KB, 8 * _MB, 1024 * _MB),
    True: Limits(4 * _KB, 16 * _KB, 256 * _KB, 256 * _KB, 8 * _MB, 256 * _KB),
}

#: ORDERED: algorithms for ops that do not commute. LINEAR: rows for deterministic=True.
ORDERED = {
    "allreduce": "recursive_doubling", "reduce": "binomial_in_order", "reduce_scatter": "linear",
    "reduce_scatter_block": "linear", "scan": "recursive_doubling", "exscan": "recursive_doubling",
}  # fmt: skip
LINEAR: dict[str, Rows] = {
    "allreduce": [(4 * _KB, "naive", None), (None, "linear", _MB)],
    "reduce": [(4 * _KB, "naive", None), (None, "linear", _MB)],
    "reduce_scatter": [(None, "linear", _MB)],
    "reduce_scatter_block": [(None, "linear", _MB)],
    "scan": [(None, "linear", 256 * _KB)],
    "exscan": [(None, "linear", 256 * _KB)],
}
#: For exact sums of float32 and float64: "linear" sends operands, others send accumulators (good for short vectors).
EXACT: dict[str, Rows] = {
    "allreduce": [(2 * _KB, "recursive_doubling", None), (None, "linear", _MB)],
    "reduce": [(2 * _KB, "binomial", None), (None, "linear", _MB)],
    "reduce_scatter": [(None, "linear", _MB)],
    "reduce_scatter_block": [(None, "linear", _MB)],
}


_ROUNDED = "it rounds the sums of the nodes, so the result would not be exact"


class Demand(NamedTuple):
    """What the choice of the algorithm of a call depends on, beside the rules.

    ``nbytes``: bytes of the vector; ``forced``: the algorithm that the call names; ``commutes``: whether the op does;
    ``linear``: only folds in rank order, element by element, will do; ``apart``: why the ranks do not share memory,
    None if they do; ``exact``: partial results are longer than operands; ``flat``: why the call cannot be hierarchical,
    None if only op and fold may prevent it; ``ruled``: False for a call that the library adds of its own accord, since
    what the program set for all-reduces, for example, is not meant for those.
    """

    collective: str
    nbytes: int
    forced: str | None = None
    commutes: bool = True
    linear: bool = False
    apart: str | None = None
    exact: bool = False
    mpi: ByMPI = "chosen"
    flat: str | None = hierarchy.NO_NODES
    ruled: bool = True


@dataclass(frozen=True)
class Tuned:
    """The entry of a selection table that serves a communicator (see :mod:`collectives.selection.table`).

    ``rows`` has the form of DEFAULT, for some of the collectives. ``source`` names the file and the entry.
    """

    rows: dict[str, Rows]
    source: str
    limits: Limits | None = None
    models: dict[ModelKey, Model] = field(default_factory=dict)


@dataclass
class Rules:
    """The rules of one communicator, equal on all ranks, and the choices made so far."""

    forced: dict[str, str] = field(default_factory=dict)
    tuned: Tuned | None = None
    choices: dict[Demand, Choice] = field(default_factory=dict, repr=False, compare=False)
    hosts: bytes | None = field(default=None, repr=False, compare=False)  # int32, each rank's; None: one host
    link: Link | None = field(default=None, repr=False, compare=False)  # between the hosts, as the ranks measured it
    lanes: int = field(default=1, repr=False, compare=False)  # ranks of the smallest node

    def node_limits(self, crowded: bool) -> Limits:
        """Limits of the node-local engine; ``crowded``: there are more ranks than cores."""
        return self.tuned.limits if self.tuned is not None and self.tuned.limits else NODE_LIMITS[crowded]

    def forced_for(self, collective: str) -> str | None:
        """The algorithm that ``COLLECTIVES_ALGORITHM`` names for ``collective``, or None.

        A name given for ``allgather``, for example, holds for ``allgatherv``, too, if that has the algorithm.
        """
        names = collective, registry.rules(collective), registry.base(collective)
        known = registry.algorithms(collective)
        return next((self.forced[name] for name in names if self.forced.get(name) in known), None)

    def local_reach(self) -> dict[str, int | None]:
        """For each collective that the node-local engine serves: the bytes up to which it does, None for any length."""
        reach = {name: self._longest_local(name) for name in (*LOCAL, *registry.EXCHANGES)}
        return {name: None if math.isinf(longest) else int(longest) for name, longest in reach.items() if longest >= 0}

    def _longest_local(self, collective: str) -> float:
        """Bytes up to which the node-local engine serves every call of ``collective``; -1 if it serves none."""
        forced, by, reach = self.forced_for(collective), registry.rules(collective), -1.0
        if forced is not None:
            return math.inf if forced == LOCAL[by] else -1
        for limit, name, _ in self.tuned.rows.get(by, []) if self.tuned is not None else []:
            if name != LOCAL[by] and not _must_be_named(name, collective):
                return reach
            reach = math.inf if limit is None else limit
        return math.inf

    def choose(self, demand: Demand) -> Choice:
        """The algorithm of a call, from those remembered; ValueError if one asked for by name cannot serve it."""
        choice = self.choices.get(demand)
        if choice is None:
            if len(self.choices) > MOST_CHOICES:
                self.choices.clear()
            choice = self.choices[demand] = choose(self, demand)
        return choice

    def expected(self, collective: str, choice: Choice, size: int, nbytes: int, depth: int) -> float | None:
        """Expected seconds of a call on ``size`` ranks; None if the selection table has no model of the choice."""
        models = self.tuned.models if self.tuned is not None else {}
        model = models.get((collective, choice.algorithm.name, choice.segment))
        if model is None:
            return None
        # The model was fitted to the load of the algorithm in its own order; the choice may have another order.
        plain = replace(choice, algorithm=registry.find(collective, choice.algorithm.name))
        return model.seconds(load_of(plain, size, nbytes, depth), nbytes)

    @staticmethod
    def from_environment() -> Rules:
        """The default rules, with the algorithms that ``COLLECTIVES_ALGORITHM`` names; ValueError for unknown names.

        The variable is ``ring`` (for all-reduce) or a list such as ``allreduce=ring,barrier=dissemination``.
        ``all=NAME`` means every collective that has an algorithm NAME; entries for one collective take precedence.
        """
        text = os.environ.get("COLLECTIVES_ALGORITHM", "")
        try:
            return Rules(forced=_named("".join(text.split())))
        except ValueError as e:
            raise ValueError(f"COLLECTIVES_ALGORITHM={text!r}: {e}") from None


def _named(text: str) -> dict[str, str]:
    """The algorithms by collective that ``text``, the value of ``COLLECTIVES_ALGORITHM``, names."""
    forced: dict[str, str] = {}
    every: dict[str, str] = {}
    given: set[str] = set()
    for part in filter(None, text.split(",")):
        collective, sign, name = part.rpartition("=")
        collective = collective if sign else "allreduce"
        if collective in given:
            raise ValueError(f"{collective!r} is named twice")
        given.add(collective)
        if collective == "all":
            named = {base: name for base in _BASES if name in registry.algorithms(base)}
            if not named:
                raise ValueError(f"no collective has an algorithm {name!r}; `python -m collectives list` shows all")
            every.update(named)
            continue
        registry.find(collective, name)
        forced[collective] = name
    return every | forced


@dataclass(frozen=True, eq=False)
class Choice:
    """An algorithm for a call, the bytes of a segment (None: one segment), and the reason as text."""

    algorithm: Algorithm
    segment: int | None
    why: str
    tuned: bool = False  # whether a selection table chose it

    def __str__(self) -> str:
        cut = f", segments of {self.segment} bytes" if self.segment else ""
        return f"{self.algorithm.name}{cut}: {self.why}"


def choose(rules: Rules, demand: Demand) -> Choice:
    """The algorithm of one call; ValueError when an algorithm asked for by name cannot serve the call."""
    choice = _chosen(rules, demand)
    return _placed(rules.hosts, choice) if rules.hosts and demand.commutes and not demand.linear else choice


def _chosen(rules: Rules, demand: Demand) -> Choice:
    """The algorithm of one call; which rank takes which of its positions is not chosen yet."""
    nbytes, forced = demand.nbytes, demand.forced
    registry.algorithms(demand.collective)  # raises ValueError for an unknown collective
    source, collective = "asked for in the call", registry.rules(demand.collective)
    by_rule = rules.forced_for(demand.collective) if demand.ruled else None
    if forced is None and by_rule is not None and not (demand.mpi == "never" and by_rule == "mpi"):
        forced, source = by_rule, "set by COLLECTIVES_ALGORITHM"
    if forced is not None:
        algorithm = registry.find(demand.collective, forced)
        _refuse(algorithm, demand)
        cut = isinstance(algorithm, ScheduleAlgorithm)
        return Choice(algorithm, _segment(rules, collective, forced, nbytes) if cut else None, source)
    if rules.tuned is not None and collective in rules.tuned.rows:
        choice = _row(rules.tuned.rows, collective, nbytes, f"tuned, {rules.tuned.source},", True)
        if choice is not None and _serves(choice.algorithm, demand):
            return choice
    if demand.apart is None:
        return Choice(registry.find(collective, LOCAL[collective]), None, "all ranks share a node")
    if demand.linear and collective in LINEAR:
        return _default(LINEAR, collective, nbytes, "deterministic: in rank order, by the default rule")
    if demand.exact and collective in EXACT:
        return _default(EXACT, collective, nbytes, "exact sums, by the default rule")
    if not demand.commutes and collective in ORDERED:
        return Choice(registry.find(collective, ORDERED[collective]), None, "the op does not commute")
    if demand.collective.startswith("neighbor"):
        return Choice(registry.find(collective, "linear"), None, "few ranks are neighbours")
    if demand.flat is None and hierarchy.by_default(collective, nbytes, rules.lanes):
        return Choice(registry.find(collective, hierarchy.NAME), None, "ranks share nodes, and there are several")
    found = between(rules.hosts, collective, nbytes, rules.link) if rules.hosts else None
    return Choice(*found) if found else _default(DEFAULT, collective, nbytes, "the default rule")


def _placed(hosts: bytes, choice: Choice) -> Choice:
    """The choice, with the ranks in the order in which the least leaves a host over its link."""
    if not isinstance(choice.algorithm, ScheduleAlgorithm):
        return choice
    algorithm, name = nearest(choice.algorithm, hosts)
    return replace(choice, algorithm=algorithm, why=f"{choice.why}, ranks {name}") if name else choice


def _default(table: dict[str, Rows], collective: str, nbytes: int, why: str) -> Choice:
    """The choice from ``table``, whose last row fits any length."""
    choice = _row(table, collective, nbytes, why)
    assert choice is not None
    return choice


def _row(table: dict[str, Rows], collective: str, nbytes: int, why: str, tuned: bool = False) -> Choice | None:
    """The choice from the first row that fits, or None."""
    for limit, name, segment in table[collective]:
        if limit is None or nbytes <= limit:
            longer = "for longer messages" if len(table[collective]) > 1 else "for any length"
            bound = longer if limit is None else f"up to {limit} bytes"
            return Choice(registry.find(collective, name), segment, f"{why} {bound}", tuned)
    return None


def _must_be_named(name: str, collective: str) -> bool:
    """Whether no table gives calls to the algorithm: of exchanges, MPI libraries deliver blocks in different orders."""
    return name == "mpi" and collective in registry.EXCHANGES


def _serves(algorithm: Algorithm, demand: Demand) -> bool:
    """Whether an algorithm of a selection table, measured with ordinary sums, can serve the call."""
    if algorithm.name == "shm":
        return demand.apart is None
    if algorithm.name == hierarchy.NAME and demand.flat is not None:
        return False
    if algorithm.name == "mpi" and demand.mpi != "chosen" or _must_be_named(algorithm.name, demand.collective):
        return False
    folds = (demand.commutes or algorithm.ordered) and (not demand.linear or algorithm.linear)
    return folds and not demand.exact


def _refuse(algorithm: Algorithm, demand: Demand) -> None:
    flat = demand.flat or (_ROUNDED if demand.exact else None)
    why = {"shm": demand.apart, hierarchy.NAME: flat}.get(algorithm.name)
    if why is not None:
        raise ValueError(f"algorithm {algorithm.name!r} cannot serve this call: {why}")
    if demand.linear and not algorithm.linear:
        raise ValueError(f"algorithm {algorithm.name!r} does not fold in rank order, which deterministic=True demands")
    if not demand.commutes and not algorithm.ordered:
        raise ValueError(f"algorithm {algorithm.name!r} changes the order of operands, and the op does not commute")


def _segment(rules: Rules, collective: str, name: str, nbytes: int) -> int | None:
    """Bytes of a segment of the algorithm ``name``: from the tuned row for ``nbytes``, else from the default rules."""
    for limit, tuned, segment in rules.tuned.rows.get(collective, []) if rules.tuned is not None else []:
        if tuned == name and (limit is None or nbytes <= limit):
            return segment
    known = [segment for _, n, segment in DEFAULT[collective] if n == name]
    return known[0] if known else None if collective in PRIVATE_LENGTHS else _MB


def load_of(choice: Choice, size: int, nbytes: int, depth: int) -> Load:
    """The load that the cost model charges for a call by ``choice``, with ``depth`` segments in flight."""
    schedule = isinstance(choice.algorithm, ScheduleAlgorithm)
    return load(choice.algorithm, size, nbytes, segments_for(choice, size, nbytes, depth) if schedule else 1)


def segments_for(choice: Choice, size: int, nbytes: int, depth: int, root: int = 0) -> int:
    """Number of segments of a vector of ``nbytes``, ``depth`` of them in flight: from the choice and the memory limit.

    Ranks with equal ``nbytes`` get equal numbers. It is 1 if the algorithm is not divisible.
    """
    assert isinstance(choice.algorithm, ScheduleAlgorithm)
    if not choice.algorithm.divisible(size):
        return 1
    parts = -(-nbytes // choice.segment) if choice.segment else 1
    return max(1, parts, math.ceil(nbytes * choice.algorithm.vectors(size, root) * depth / STAGING_LIMIT))
