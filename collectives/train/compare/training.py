"""One training of a comparison. Nothing but the strategy makes ranks wait, and evaluation is not part of its time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..agree import communicator, role_of
from ..cli.choice import Choice
from ..cli.result import values
from ..cli.task import Task
from ..data.loader import Loader
from ..distribute import distribute
from ..models.loss import CrossEntropyLoss
from ..models.nn import Array, Sequential
from ..optim.schedules import set_lr
from ..run.evaluate import evaluate
from ..strategies import Strategy
from ..traffic import Traffic, counted
from .pace import Pace
from .tally import Tally

Values = dict[str, Any]


class Snapshot(NamedTuple):
    """Where a rank is: ``seconds`` since the beginning, and its own steps, samples and bytes.

    ``loss`` is the sum of the losses of all its samples. ``parameters`` are copies of the network's.
    """

    seconds: float
    steps: int
    samples: int
    bytes: int
    loss: float
    parameters: list[Array]


def train(
    task: Task, choice: Choice, seed: int, epochs: int, batch: int, pace: Pace, comm: Any, factor: float | None = None
) -> Values:  # fmt: skip
    """Train a network for `epochs` epochs, `batch` samples a step of all ranks. Collective over `comm`.

    The learning rate is multiplied by the scaling rule for `factor` (default: `Strategy.batches`).
    All ranks get the values of ``train --json``, and with them "options", the texts of the strategy's options, and
    "records": one for each epoch, with "seconds", "samples" of all ranks, "bytes" of a rank, "loss" and "accuracy".
    "steps" and "bytes" are means over the ranks that train. "accuracy" is the mean of the ranks' own networks.
    """
    strategy, traffic = choice.make(), Traffic()
    net, opt = task.network(seed)
    distribute(net, opt, strategy, comm=counted(comm, traffic))
    found: Values = {}
    role = role_of(comm)
    if role is None or role.trains:
        course = Course(strategy, net, traffic, communicator(comm))
        loader, sleeper = task.loader(course.comm, batch, seed), pace.of(comm.rank, seed)
        rate = task.rate(strategy.batches(comm.size) if factor is None else factor)
        course.run(loader, epochs, sleeper.sleep, rate)
        found = course.found(task)
    strategy.close()
    made = values(choice.name, seed, found, traffic, net, comm)
    result: Values = comm.bcast({**made, "options": choice.texts, "records": found.get("records")}, root=0)
    return result


class Course:
    """The steps of the ranks of `comm`, which all train, and a snapshot after each epoch.

    Where ranks do not wait for each other in each step, an epoch ends when all together have used so many samples.
    """

    def __init__(self, strategy: Strategy, net: Sequential, traffic: Traffic, comm: Any) -> None:
        self.comm = comm
        self._strategy, self._net, self._traffic = strategy, net, traffic
        self._snapshots: list[Snapshot] = []
        self._steps = self._samples = 0
        self._loss = 0.0

    def run(
        self, loader: Loader, epochs: int, sleep: Callable[[int], None], rate: Callable[[float], float]
    ) -> None:  # fmt: skip
        """Train for `epochs` epochs; each step begins with ``sleep(samples)``. Collective."""
        opt, loss_fn = self._strategy.opt, CrossEntropyLoss()
        tally = None if self._strategy.lockstep else Tally(self.comm, epochs * loader.samples)
        self.comm.Barrier()
        begin = time.perf_counter()
        for x, y in itertools.chain.from_iterable(itertools.repeat(loader)):
            set_lr(opt, rate(self._samples * self.comm.size))
            sleep(len(x))
            opt.zero_grad()
            loss = loss_fn(self._net(x), y)
            loss.backward()
            opt.step()
            self._steps, self._samples = self._steps + 1, self._samples + len(x)
            self._loss += float(loss) * len(x)
            done = self._steps // len(loader) if tally is None else tally.add(len(x)) // loader.samples
            self._note(min(done, epochs - 1), begin)
            if done >= epochs:
                break
        self._strategy.finish()
        self._note(epochs, begin)

    def _note(self, epochs: int, begin: float) -> None:
        """Take snapshots until there is one for each of so many epochs."""
        while len(self._snapshots) < epochs:
            seconds, copies = time.perf_counter() - begin, [p.data.copy() for p in self._net.parameters()]
            self._snapshots.append(
                Snapshot(seconds, self._steps, self._samples, self._traffic.bytes, self._loss, copies)
            )

    def found(self, task: Task) -> Values:
        """What all ranks together have found, the same on all of them. Collective. The network keeps its parameters."""
        every = self.comm.allgather([snapshot._replace(parameters=[]) for snapshot in self._snapshots])
        records: list[Values] = []
        before, seen = 0.0, 0
        for snapshot, *ranks in zip(self._snapshots, *every, strict=True):
            for parameter, data in zip(self._net.parameters(), snapshot.parameters, strict=True):
                parameter.data[...] = data
            samples, loss = sum(one.samples for one in ranks), sum(one.loss for one in ranks)
            accuracy = evaluate(
                self._net, task.data.x_test, task.data.y_test, comm=self.comm, replicated=self._strategy.replicated
            )
            records.append(
                {
                    "seconds": max(one.seconds for one in ranks),
                    "samples": samples,
                    "bytes": sum(one.bytes for one in ranks) / len(ranks),
                    "loss": (loss - before) / (samples - seen) if samples > seen else records[-1]["loss"],
                    **accuracy,
                }
            )
            before, seen = loss, samples
        last = records[-1]
        steps = sum(snapshots[-1].steps for snapshots in every) / len(every)
        totals = {key: last[key] for key in ("accuracy", "seconds", "samples")}
        return {**totals, "steps": steps, "records": records}
