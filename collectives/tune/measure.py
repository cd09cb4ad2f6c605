"""Measures calls as programs make them, under rules that allow one algorithm only; equal results on all ranks."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI

from ..arguments.calls import COLLECTIVES
from ..arguments.datatypes import DTYPE_CODES
from ..bench.programs import messages_of
from ..bench.timing import sample
from ..bench.workloads import Workload, usable_count
from ..communicator import Communicator, internal
from ..core import _core
from ..runtime.hierarchy import DEPTH
from ..schedules import registry
from ..schedules.registry import PRIVATE_LENGTHS, ScheduleAlgorithm
from ..selection import hierarchy, hosts
from ..selection.model import Load
from ..selection.policy import Choice, Demand, Limits, Rules, Tuned, choose, load_of
from .fit import Point
from .steady import Steady

__all__ = ["Bench", "Candidate"]

LEFT_OUT = "left out of this table"
SEGMENTS = (64 << 10, *sorted(filter(None, hosts.SEGMENTS)))  # those of the defaults, and a shorter one
BATCH = 2e-3  # seconds that one measurement takes if a call takes less
LONG_BATCH = 8e-3  # the same between nodes, so that a few calls after a delay of one rank do not decide the median
MOST_CALLS = 100
BURST = 384 << 10  # bytes that a network accepts at once above its lasting rate (sockets, rate limits of clouds, tc)
SHORT = 4096  # bytes; the bandwidth between nodes does not matter for shorter vectors
WARMUP = 2
QUICK = 9
WAITING = 0.3  # largest share of the time spent waiting until ranks are as far apart as before
SHORTEST_FOLD = 4096  # bytes; for shorter vectors the call takes longer than the folding

T = TypeVar("T")


class Candidate(NamedTuple):
    """An algorithm, and its segment in bytes (None: the whole vector is one segment)."""

    algorithm: str
    segment: int | None = None

    def __str__(self) -> str:
        return self.algorithm if self.segment is None else f"{self.algorithm}/{self.segment >> 10}K"


class Bench:
    """Measures calls on a communicator; all its methods are collective over the ranks of ``comm``.

    ``without``: algorithms that are left out. ``mpi``: collectives for which a table may name the MPI library's own:
    ``"none"``, ``"moves"`` (those that only move data) or ``"all"``.
    """

    def __init__(self, comm: Communicator, without: frozenset[str] = frozenset(), mpi: str = "moves"):
        self.comm, self.context, self.size = comm, internal.side_of(comm), comm.size
        self.plain = MPI.Intracomm(comm)
        self.without, self.mpi = without, mpi
        self.apart = LEFT_OUT if "shm" in without else self.context.apart
        self.flat = LEFT_OUT if hierarchy.NAME in without else self.context.nodes.obstacle
        self.limits: Limits | None = None
        self._own = self.context.rules
        self._rules: dict[Any, Rules] = {}
        self._work: tuple[Any, Workload] | None = None
        self._named: dict[Hashable, Rules] = {}
        self._known: dict[Any, dict[int, float]] = {}  # seconds of one call in the last measurement, by length
        self._burst = np.zeros((2, BURST), np.uint8)
        self.steady: Steady | None = None

    # What can be measured

    def lengths(self, collective: str, sizes: list[int]) -> list[int]:
        """The largest possible vector, in bytes, for each of ``sizes``; without zeros and duplicates."""
        if collective == "barrier":
            return [0]
        return sorted({length for length in (self._length(collective, n)[0] for n in sizes) if length > 0})

    def _length(self, collective: str, nbytes: int) -> tuple[int, int, str]:
        """Bytes of the vector, the count of the benchmark, and the dtype: float32 for reductions, else uint8."""
        kind = COLLECTIVES[collective]
        dtype = "float32" if kind.reduces else "uint8"
        blocks = messages_of(collective, self.size)
        itemsize = np.dtype(dtype).itemsize
        count = usable_count(collective, nbytes // itemsize // blocks, self.size)
        return count * itemsize * blocks, count, dtype

    def candidates(self, collective: str, nbytes: int) -> list[Candidate]:
        """All algorithms that could serve a call, the MPI library's own included; segments shorter than the vector."""
        found = []
        for name in registry.algorithms(collective):
            if name in self.without or {"shm": self.apart, hierarchy.NAME: self.flat}.get(name) is not None:
                continue
            algorithm = registry.find(collective, name)
            found.append(Candidate(name))
            if isinstance(algorithm, ScheduleAlgorithm) and collective not in (*PRIVATE_LENGTHS, "barrier"):
                cuts = SEGMENTS if algorithm.divisible(self.size) else ()
                found += [Candidate(name, segment) for segment in cuts if segment < nbytes]
        return found

    def may_choose(self, collective: str, candidate: Candidate) -> bool:
        """Whether a table of this run may name ``candidate``."""
        if candidate.algorithm in self.without:
            return False
        if candidate.algorithm != "mpi":
            return True
        moves = not COLLECTIVES[collective].reduces
        return self.mpi == "all" or (self.mpi == "moves" and moves)

    def default(self, collective: str, nbytes: int) -> Candidate:
        """The candidate that serves a call without a selection table."""
        return self._served(self._here(Rules()), collective, nbytes, self.apart, self.flat)

    def call(self, collective: str, candidate: Hashable, nbytes: int) -> tuple[Candidate, Limits | None]:
        """What :meth:`seconds` measures for ``candidate``: equal for two names of one and the same call."""
        rules = self._rules_of(collective, candidate)
        served = self._served(rules, collective, nbytes, self.context.apart, self.context.nodes.obstacle)
        return served, rules.node_limits(self.context.yield_at_once) if served.algorithm == "shm" else None

    def _served(self, rules: Rules, collective: str, nbytes: int, apart: str | None, flat: str | None) -> Candidate:
        """The candidate that serves a call under ``rules``; with a segment only if it cuts the vector."""
        choice = choose(rules, Demand(collective, nbytes, apart=apart, flat=flat))
        made = choice.algorithm
        divisible = isinstance(made, ScheduleAlgorithm) and made.divisible(self.size)
        cuts = divisible and choice.segment is not None and choice.segment < nbytes
        return Candidate(made.name, choice.segment if cuts else None)

    def load(self, collective: str, candidate: Candidate, nbytes: int) -> Load:
        """The load that the cost model charges for a call by ``candidate``."""
        choice = Choice(registry.find(collective, candidate.algorithm), candidate.segment, "")
        return load_of(choice, self.size, nbytes, DEPTH)

    # Times

    def name(self, name: Hashable, rules: Rules) -> None:
        """Define ``name`` as a candidate of :meth:`seconds` that stands for ``rules``; equal on all ranks."""
        self._named[name] = self._here(rules)

    def _here(self, rules: Rules) -> Rules:
        """``rules``, to which the layout and the link of the communicator are added."""
        known = self._own
        rules.hosts, rules.link, rules.lanes = known.hosts, known.link, known.lanes
        return rules

    def seconds(self, collective: str, candidate: Hashable, nbytes: int) -> float:
        """Median over a few calls of the seconds until the last rank has its result.

        ``candidate`` is a :class:`Candidate` or a name defined by :meth:`name`.
        """
        rules = self._rules_of(collective, candidate)
        work = self._workload(collective, nbytes)
        limited = nbytes >= SHORT and self.context.layout.nodes > 1
        batch = LONG_BATCH if limited else BATCH
        known = self._known.setdefault((collective, candidate), {})
        # A length that is new takes no longer than the next longer one. One call tells of a length without that.
        longer = min((length for length in known if length >= nbytes), default=None)
        calls = 1 if longer is None else int(np.clip(batch / known[longer], 1, MOST_CALLS))
        warmup = WARMUP if calls > 1 else 1
        internal.adopt_rules(self.comm, rules)

        def take() -> float:
            if limited:
                self._use_up_bursts()
            times = sample(self.comm, work.call(), calls, warmup)
            self.plain.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
            return max(float(np.median(times)), 1e-9)

        found = known[nbytes] = take() if self.steady is None else self.steady.measured(take)
        return found

    def _use_up_bursts(self) -> None:
        """Send as much as networks accept above their lasting rate; otherwise times depend on earlier traffic."""
        there, back = (self.comm.rank + 1) % self.size, (self.comm.rank - 1) % self.size
        self.plain.Sendrecv(self._burst[0], there, recvbuf=self._burst[1], source=back)

    def stay(self, seconds: float, apart: float | None = None) -> float:
        """From now on repeat measurements for which ranks of a node were not ``apart`` seconds apart (default: now's).

        ``seconds`` is the time for all later measurements; returns what remains of it after the longest waiting for
        ranks to return. See :class:`collectives.tune.steady.Steady`.
        """
        if self.apart is not None:
            return seconds
        self._beside = Communicator(self.plain)
        self.steady = Steady(self._distance, WAITING * seconds, apart)
        return (1 - WAITING) * seconds

    @property
    def strayed(self) -> int:
        """Number of measurements that were accepted although ranks were not as far apart as they should be."""
        return 0 if self.steady is None else self.steady.strayed

    def _distance(self) -> float:
        """Seconds of the shortest call, which depends mostly on the time for a flag to get from rank to rank."""
        times = sample(self._beside, self._beside.Barrier, MOST_CALLS, WARMUP)
        found = np.median(times, keepdims=True)
        self.plain.Allreduce(MPI.IN_PLACE, found, MPI.MAX)
        return max(float(found[0]), 1e-9)

    def _rules_of(self, collective: str, candidate: Hashable) -> Rules:
        if not isinstance(candidate, Candidate):
            return self._named[candidate]
        key = collective, candidate, self.limits
        if key not in self._rules:
            tuned = Tuned({collective: [(None, *candidate)]}, "a measurement", self.limits)
            self._rules[key] = self._here(Rules(tuned=tuned))
        return self._rules[key]

    def _workload(self, collective: str, nbytes: int) -> Workload:
        _, count, dtype = self._length(collective, nbytes)
        key = collective, count
        if self._work is None or self._work[0] != key:
            self._work = None  # freed first, so that memory for one is enough
            self._work = key, Workload(self.comm, collective, count, dtype=dtype)
        return self._work[1]

    def folds(self, sizes: list[int]) -> list[Point]:
        """Times of folding float32 vectors on all ranks at once, without communication and the cost of the call."""
        found, empty = [], math.inf
        for nbytes in sizes:
            left, right = np.ones((2, max(1, nbytes // 4)), np.float32)
            dtype, op = DTYPE_CODES["float32"], _core.OPS.index("sum")
            fold = functools.partial(_core.reduce2, dtype, op, left, left, right)
            times = sample(self.comm, fold, QUICK, 1)
            self.plain.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
            empty = min(empty, float(np.median(times)))
            if nbytes >= SHORTEST_FOLD:
                found.append(Point(nbytes, Load(0, 0, nbytes), max(float(np.median(times)) - empty, 1e-9)))
        return found

    # Agreement

    def agreed(self, value: Any) -> Any:
        """Rank 0's value on all ranks."""
        return self.plain.bcast(value, 0)

    def by_first(self, make: Callable[[], T]) -> T:
        """What ``make`` returns on rank 0, on all ranks; no other rank calls it."""
        found: T = self.agreed(make() if self.comm.rank == 0 else None)
        return found

    def now(self) -> float:
        """Seconds on rank 0's clock, which stops while measurements are repeated or ranks waited for."""
        return float(self.agreed(time.monotonic() - (self.steady.lost if self.steady is not None else 0.0)))

    def over(self, deadline: float) -> bool:
        """Whether :meth:`now` is after ``deadline``."""
        return self.now() > deadline

    def done(self) -> None:
        """Restore the communicator's own rules and free the memory."""
        if self.steady is not None:
            self._beside.Free()
        internal.adopt_rules(self.comm, self._own)
        self._work = None
