"""Simulation of training strategies: how fast steps go on when ranks differ, wait for each other, or do not.

The ranks of a `Pattern` compute and talk in a queue of events (Fujimoto, "Parallel and Distributed Simulation Systems",
2000, sec. 2.2). Every rank has a host of its own, with a port out and a port in, each of which passes whole messages in
the order in which they come. Talk begins when the computation of a step has ended: overlap is not modelled.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..schedules import registry
from ..schedules.registry import ScheduleAlgorithm
from ..train.strategies.pattern import Action, Ask, Meet, Pattern, Post, Receive, Send
from .network import Network, placed
from .simulate import simulate

__all__ = ["Conditions", "Pace", "pace"]

ALLREDUCES = ("recursive_doubling", "ring", "circulant")  # of which the fastest is taken


@dataclass(frozen=True)
class Conditions:
    """Times in seconds, rates in bytes per second.

    ``step`` is the time of a rank's computation in a step. It is longer by a random part, which is distributed
    exponentially with a mean of ``jitter * step``. The computation of rank r takes ``stragglers[r]`` times as long.
    ``nbytes`` are those of all parameters. ``alpha`` is the latency of a message, ``beta`` the rate of a rank's ports,
    ``fold`` that at which a server uses what it is sent. ``seed`` is that of the random parts.
    """

    step: float = 0.1
    nbytes: float = 1 << 20
    alpha: float = 2e-6
    beta: float = 12e9
    fold: float = 20e9
    jitter: float = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("step", "beta", "fold"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a finite number above 0, not {getattr(self, name)}")
        for name in ("nbytes", "alpha", "jitter", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected 0 or more, not {getattr(self, name)}")
        for rank, factor in self.stragglers.items():
            if not 0 < factor < math.inf:
                raise ValueError(f"straggler {rank}x{factor}: expected a finite factor above 0")


class Pace(NamedTuple):
    """How training goes on. ``steps_per_second`` counts the steps of all ranks; a step is the batch of one rank.

    ``waiting`` is the share of their time in which ranks that train do not compute. ``gap`` is the largest number of
    steps by which a rank that goes on is ahead of the slowest one, as servers see it if there are any. ``lag`` is the
    mean number of steps by other ranks that come into effect between the beginning of a step and its own effect; 0 if
    ranks wait for each other.
    ``busiest`` is the largest share of its time for which a server's port, or its processor, is in use, None without
    servers.
    """

    steps_per_second: float
    waiting: float
    gap: int
    lag: float
    busiest: float | None


def pace(pattern: Pattern, size: int, conditions: Conditions, steps: int) -> Pace:
    """Simulate ``size`` ranks until one of them has made ``steps`` steps.

    ValueError if no rank trains, for a server that is no rank, for a straggler that does not train, and for ranks that
    wait for each other for ever.
    """
    workers = pattern.workers(size)
    if not workers or any(not 0 <= server < size for server in pattern.servers):
        raise ValueError(f"{len(pattern.servers)} servers on {size} ranks leave no rank to train")
    for rank in conditions.stragglers:
        if rank not in workers:
            raise ValueError(f"straggler {rank}: the ranks that train are {workers[0]} to {workers[-1]}")
    return _Job(pattern, size, workers, conditions, steps).run()


class _Line:
    """Something that serves one after the other: a port, or a processor."""

    def __init__(self) -> None:
        self._free = 0.0  # when all that has come is served
        self._work = 0.0  # seconds that all that takes

    def take(self, now: float, seconds: float) -> float:
        """Serve for `seconds`, as soon as that is possible; returns the end."""
        self._free = max(self._free, now) + seconds
        self._work += seconds
        return self._free

    def used(self, now: float) -> float:
        """The share of the time up to `now` for which it has served."""
        return (self._work - max(0.0, self._free - now)) / now


class _Progress:
    """How many steps each rank has done, the slowest and the fastest of them, and all together."""

    def __init__(self, ranks: list[int]) -> None:
        self.done = dict.fromkeys(ranks, 0)
        self.slowest = self.fastest = self.total = 0
        self._ranks_at = Counter({0: len(ranks)})

    def advance(self, rank: int) -> int:
        """`rank` has done a step; returns its number of steps."""
        done = self.done[rank] = self.done[rank] + 1
        self.total += 1
        self.fastest = max(self.fastest, done)
        self._ranks_at[done - 1] -= 1
        self._ranks_at[done] += 1
        while not self._ranks_at[self.slowest]:
            del self._ranks_at[self.slowest]
            self.slowest += 1
        return done


class _Job:
    """All ranks, the events to come, and what was measured."""

    def __init__(self, pattern: Pattern, size: int, workers: list[int], conditions: Conditions, steps: int) -> None:
        self.pattern, self.conditions, self._steps = pattern, conditions, steps
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._out, self._in = [_Line() for _ in range(size)], [_Line() for _ in range(size)]
        self.progress = _Progress(workers)
        self.workers = {rank: _Worker(self, rank) for rank in workers}
        self.servers = {rank: _Server(self, workers) for rank in pattern.servers}
        self._met: list[_Worker] = []
        self.waited, self.gap, self.lags, self.lagging = 0.0, 0, 0, 0
        self._random = np.random.default_rng(conditions.seed)
        self._drawn: list[float] = []

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call `call` at `time`."""
        heapq.heappush(self._due, (time, next(self._serial), call))

    def run(self) -> Pace:
        """Run until one rank has made all its steps, and to the end of that moment."""
        for worker in self.workers.values():
            worker.begin()
        while self.progress.fastest < self._steps or (self._due and self._due[0][0] == self.now):
            if not self._due:
                raise ValueError("ranks wait for each other, and no message is under way")
            self.now, _, call = heapq.heappop(self._due)
            if not math.isfinite(self.now):
                raise ValueError("the times are too long for a number")
            call()
        return self._measured()

    def _measured(self) -> Pace:
        lines = [[self._out[rank], self._in[rank], server.processor] for rank, server in self.servers.items()]
        return Pace(
            self.progress.total / self.now,
            self.waited / (len(self.workers) * self.now),
            self.gap,
            self.lags / self.lagging if self.lagging else 0.0,
            max((line.used(self.now) for three in lines for line in three), default=None),
        )

    def computation(self, rank: int) -> float:
        """The seconds of the next computation of `rank`."""
        factor = self.conditions.step * self.conditions.stragglers.get(rank, 1.0)
        if not self.conditions.jitter:
            return factor
        if not self._drawn:
            self._drawn = self._random.exponential(self.conditions.jitter, 4096).tolist()
        return factor * (1 + self._drawn.pop())

    def send(self, source: int, target: int, share: float, then: Callable[[], None]) -> float:
        """Send a message, after whose arrival ``then()`` is called; returns when it has left."""
        if source == target:
            self.at(self.now, then)
            return self.now
        seconds = share * self.conditions.nbytes / self.conditions.beta
        left = self._out[source].take(self.now, seconds)

        def come() -> None:
            self.at(self._in[target].take(self.now, seconds), then)

        self.at(left - seconds + self.conditions.alpha, come)
        return left

    def post(self, source: int, post: Post, then: Callable[[], None]) -> float:
        """Send messages that nobody waits for; ``then()`` is called when the last has arrived. Returns when they have
        left. Ports in are not modelled: nothing but the lag depends on them."""
        seconds = len(post.targets) * post.share * self.conditions.nbytes / self.conditions.beta
        left = self._out[source].take(self.now, seconds)
        self.at(left + self.conditions.alpha, then)
        return left

    def meet(self, worker: _Worker, share: float) -> None:
        """`worker` takes part in an all-reduce of all workers."""
        self._met.append(worker)
        if len(self._met) == len(self.workers):
            met, self._met = self._met, []

            def end() -> None:
                for one in met:
                    one.arrived()

            self.at(self.now + _allreduce(len(met), share * self.conditions.nbytes, self.conditions), end)

    def note_lag(self, lag: int) -> None:
        """A step comes into effect, and others' did meanwhile."""
        self.lags += lag
        self.lagging += 1


class _Worker:
    """A rank that trains. It computes a step, then does the actions of that step, and waits until all are done."""

    def __init__(self, job: _Job, rank: int) -> None:
        self._job, self.rank = job, rank
        self._left = 0.0  # when all that this rank has sent has left its port
        self._computed = 0.0  # when the computation of the step ended
        self._others = 0  # the steps of other ranks when the step began
        self._missing = 0  # what the step waits for
        self._mail: set[tuple[int, int]] = set()  # (source, step) that have arrived, and are not waited for yet
        self._expected: set[tuple[int, int]] = set()

    @property
    def step(self) -> int:
        """The number of the step under way."""
        return self._job.progress.done[self.rank]

    @property
    def others(self) -> int:
        """The steps that other ranks have done."""
        return self._job.progress.total - self.step

    def begin(self) -> None:
        """Begin a step."""
        job = self._job
        if not job.servers:
            job.gap = max(job.gap, self.step - job.progress.slowest)
        self._others = self.others
        self._computed = job.now + job.computation(self.rank)
        job.at(max(self._computed, self._left), self._talk)

    def _talk(self) -> None:
        actions = self._job.pattern.actions(self.rank, self.step)
        self._missing = 1 + sum(isinstance(action, Meet | Receive | Ask) for action in actions)
        for action in actions:
            self._do(action)
        self.arrived()

    def _do(self, action: Action) -> None:
        job, rank, step = self._job, self.rank, self.step
        if isinstance(action, Meet):
            job.meet(self, action.share)
        elif isinstance(action, Send):
            target = job.workers[action.target]
            self._left = job.send(rank, action.target, action.share, lambda: target.deliver(rank, step))
        elif isinstance(action, Receive):
            self._expect(action.source, step)
        elif isinstance(action, Post):
            others = self._others
            self._left = job.post(rank, action, lambda: job.note_lag(self.others - others))
        else:
            server, share = job.servers[action.server], action.share

            def answer() -> None:
                job.send(action.server, rank, share, self.arrived)

            self._left = job.send(rank, action.server, share, lambda: server.take(rank, share, answer))

    def _expect(self, source: int, step: int) -> None:
        if (source, step) in self._mail:
            self._mail.remove((source, step))
            self.arrived()
        else:
            self._expected.add((source, step))

    def deliver(self, source: int, step: int) -> None:
        """A message of `source` has arrived."""
        if (source, step) in self._expected:
            self._expected.remove((source, step))
            self.arrived()
        else:
            self._mail.add((source, step))

    def arrived(self) -> None:
        """One of the things that the step waits for is there; after the last, the next step begins."""
        self._missing -= 1
        if not self._missing:
            self._job.waited += self._job.now - self._computed
            self._job.progress.advance(self.rank)
            self._job.at(self._job.now, self.begin)  # after others that go on at the same time


class _Server:
    """A part of the parameters. It uses what workers send, in the order in which it comes, and answers."""

    def __init__(self, job: _Job, workers: list[int]) -> None:
        self._job, self._progress = job, _Progress(workers)
        self.processor = _Line()
        self._read = dict.fromkeys(workers, 0)  # the updates that a worker's parameters have
        self._waiting: defaultdict[int, list[tuple[int, Callable[[], None]]]] = defaultdict(list)  # by number of steps

    def take(self, worker: int, share: float, answer: Callable[[], None]) -> None:
        """What `worker` sent has arrived."""
        job = self._job
        end = self.processor.take(job.now, share * job.conditions.nbytes / job.conditions.fold)
        job.at(end, lambda: self._use(worker, answer))

    def _use(self, worker: int, answer: Callable[[], None]) -> None:
        staleness = self._job.pattern.staleness
        if staleness:
            self._job.note_lag(self._progress.total - self._read[worker])
        self._waiting[self._progress.advance(worker)].append((worker, answer))
        slowest = self._progress.slowest
        for steps in [steps for steps in self._waiting if steps <= slowest + staleness]:
            self._job.gap = max(self._job.gap, steps - slowest)
            for other, reply in self._waiting.pop(steps):
                self._read[other] = self._progress.total
                reply()


@functools.cache
def _seconds(size: int, nbytes: int, alpha: float, beta: float, fold: float) -> float:
    network = Network(placed(size, size), alpha=alpha, beta=beta, fold=fold, overhead=0.0, rendezvous=math.inf)
    algorithms = [registry.find("allreduce", name) for name in ALLREDUCES]
    return min(simulate(a, network, nbytes).seconds for a in algorithms if isinstance(a, ScheduleAlgorithm))


def _allreduce(size: int, nbytes: float, conditions: Conditions) -> float:
    """The seconds of an all-reduce: those of the fastest of ALLREDUCES, simulated."""
    if size == 1:
        return 0.0
    return _seconds(size, math.ceil(nbytes), conditions.alpha, conditions.beta, conditions.fold)
