"""``Run``: the steps of one training, its records, checkpoints and end."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..agree import on_rank_0, role_of, together
from ..counts import count
from ..data.loader import Loader
from ..mesh import Mesh
from ..optim.schedules import get_lr, set_lr
from ..weights import check_weights as compare_weights
from .callbacks import Callback
from .decisions import Decisions
from .demand import to_ends_of_steps
from .elastic import Elastic
from .improvement import Improvement
from .keeping import Keeping
from .options import check_options, check_same, folder_of, leave_out_servers, ranks_of
from .records import Means, numbers
from .reports import Reports
from .states import OWN, RUN, Itself, replicas
from .strategies import Strategies


class Run:
    """Runs a training loop on all ranks: records what it logs, saves checkpoints, goes on from them. Collective.

    * `out`: folder for ``log.json`` and ``checkpoints/<name>/``, the same for all ranks. None (default): no files.
    * `comm`: the communicator (default: the world). Or `mesh`: the run is of one task on a `Mesh`, whose pipelines and
      tensor ranks count a sample once. Checkpoints have the whole model (see `WholeNet`), so any other mesh can go on;
      only the same one if ranks keep arrays of their own: with strategies that let them differ, compressed gradients,
      or parameters of 16 bits. On a mesh with several tasks, files are in ``out/task-<number>``.
    * `state`: the objects of the run by name, each with ``state_dict`` and ``load_state_dict``. "opt" is the optimizer
      whose rate `lr` sets and records have. The loader that `steps` gets must be among them if there are checkpoints.
      The strategies of all optimizers there are saved, too, and end with the steps (``finish`` and ``close``).
      They must be there when the run is made, so `distribute` comes before.
    * `name`: the run's name in the log. Runs of different names may share a folder.
    * `evaluate`: a collective function without arguments, called after each epoch. Its dict of numbers goes into the
      record of that epoch. Numbers are also those of NumPy, and arrays and tensors of one element.
    * `every`: steps between records (default 50). There is a record after each epoch, too. For a record, the logged
      values are averaged over the ranks. With a strategy in which ranks do not wait for each other in every step
      (``lockstep`` is False), they do so for records and checkpoints only. They then react to signals, and to
      `checkpoint_seconds`: after at most `every` steps.
    * `settings`: a dict that is kept in the log as it is.
    * `progress`: "bar", "lines", None for nothing, or "auto" (default): a bar on a terminal, else lines.
    * `checkpoint_every`, `checkpoint_seconds`: a checkpoint after so many steps, or at the first step after so many
      seconds. With either there is one at the end, too. Checkpoints are written while steps go on.
    * `keep`: how many of the newest checkpoints stay (default 2).
    * `best`: ``(metric, "max")`` or ``(metric, "min")``: a value of the records after epochs. There is a checkpoint
      after each epoch that is the best so far, and the best one stays.
    * `patience`: end after so many epochs without a new best; needs `best`.
    * `resume`: whether to go on from the newest checkpoint in `out` (default: True). A corrupt one is set aside with a
      warning, and the one before is used. With False, ValueError if there is any and the run has a `state`.
    * `lr`: the learning rate as a function of the samples of all ranks so far, set before each step. Those count that
      `drop_last` has left out of earlier epochs, so that an epoch is as many samples as the data set has.
    * `callbacks`: a list of `Callback`, of which rank 0's are called.
    * `check_weights`: steps between checks that the weights have the same bits on all ranks; see
      `train.check_weights`, also for its cost. By default there are none.
    * `elastic`: if ranks die, the others go on from the last commit in memory, and the loop does not notice; see
      docs/elastic.md. Needs Open MPI's ``mpiexec --with-ft ulfm``. `commit_every`: steps between commits (default 10).
      `replace_ranks`: start a new process for each dead rank.

    While `steps` runs, SIGTERM and SIGUSR1 on any rank make all ranks stop after the same step; then a checkpoint is
    written if there are `out` and `state`. Between the micro-batches of a step (``no_sync``) steps do not stop, and
    nothing is saved: that waits until no rank is within a step. If the last batch, or ``patience``, ends a run within
    one, its last checkpoint lacks what the micro-batches of that step have added up. ``stopped`` says why steps ended
    early: "SIGTERM", "SIGUSR1", "patience", or None. ``resumed`` is the step of the checkpoint from which this run goes
    on, or None. ``comm`` is the communicator; in an elastic run it is another one after a loss of ranks.

    `comm` may have servers (see `train.ParameterServer`), which `distribute` has set apart before the run is made. The
    run is then that of the ranks that train, and loaders in `state` are dealt to these; ``trains`` says whether this
    rank is one of them. If servers hand out samples, as asynchronous ones do, there is no other strategy, and any rank
    may use any sample, a rank gets as many samples of an epoch as it has time for.

    ``records`` is the list of records so far, the same on all ranks except for "seconds". A record is a dict with
    "epoch" (completed epochs), "step", "samples" (of all ranks), "seconds" (of training), "lr", the logged means and,
    after an epoch, the evaluation. Raises on all ranks: ValueError for bad arguments and checkpoints of another run,
    for `check_weights` of a strategy that lets weights differ, and for `elastic` where no rank outlives another one;
    ImportError for "bar" without tqdm, OSError if rank 0 cannot write to `out`, TypeError for what cannot be saved.
    """

    def __init__(
        self,
        out: str | Path | None = None,
        *,
        comm: Any = None,
        state: dict[str, Any] | None = None,
        name: str = "train",
        evaluate: Callable[[], dict[str, float]] | None = None,
        every: int = 50,
        settings: dict[str, Any] | None = None,
        progress: str | None = "auto",
        checkpoint_every: int | None = None,
        checkpoint_seconds: float | None = None,
        keep: int = 2,
        best: tuple[str, str] | None = None,
        patience: int | None = None,
        resume: bool = True,
        lr: Callable[[int], float] | None = None,
        callbacks: Sequence[Callback] = (),
        check_weights: int | None = None,
        elastic: bool = False,
        commit_every: int = 10,
        replace_ranks: bool = False,
        mesh: Mesh | None = None,
    ) -> None:
        self.comm, self._dealt, self._role = ranks_of(comm, mesh, elastic)
        self.state = dict(state or {})
        check_options(name, self.state, every, lr, elastic, replace_ranks, mesh)
        check_same(
            self.comm, out, self.state, name=name, every=every, checkpoint_every=checkpoint_every, keep=keep, best=best,
            checkpoint_seconds=checkpoint_seconds, patience=patience, resume=resume, check_weights=check_weights,
            elastic=elastic, commit_every=commit_every, replace_ranks=replace_ranks, evaluate=evaluate, lr=lr,
        )  # fmt: skip
        out = folder_of(out, mesh)
        self.trains = self._role is None or self._role.trains
        if not self.trains:  # nothing of the run is this rank's
            out, checkpoint_every, checkpoint_seconds, best, patience, callbacks = None, None, None, None, None, ()
        leave_out_servers(self.state, self._role, self.state.values())
        self.name, self.every, self.settings = name, every, dict(settings or {})
        self._evaluate, self._lr, self._strategies = evaluate, lr, Strategies(self.state)
        self._check_weights, self._replicas = check_weights, replicas(self.state, check_weights)
        self._reports = Reports(self.comm, name, out, settings=self.settings, callbacks=callbacks, mode=progress)
        self._improvement, self._means = Improvement(best, patience), Means()
        self._keeping = Keeping(
            None if out is None else Path(out) / "checkpoints" / re.sub(r"[^\w.-]", "_", name),
            self.comm, self.state, self, mesh, keep=keep, every=checkpoint_every, seconds=checkpoint_seconds,
            best=best is not None,
        )  # fmt: skip
        self._decisions = Decisions(self.comm, self._keeping)
        self.records: list[dict[str, Any]] = []
        self.step = self.samples = self._recorded = 0  # the last one is the step of the last record
        self.stopped: str | None = None
        self._batch, self._seconds, self._left = 0, 0.0, False  # samples of a batch; time before; whether it was left
        self._begin: float | None = None  # when steps began, while they run
        objects = {**self.state, RUN: Itself(self)}
        self._elastic = Elastic(self.comm, objects, every=commit_every, replace=replace_ranks) if elastic else None
        self.resumed: int | None = None
        if self._elastic is None or not self._elastic.joins:  # new ranks get the others' state, and write no files
            self._reports.prepare()
            self.resumed = self._keeping.resume(resume)

    def steps(self, data: Loader, epochs: int) -> Iterator[tuple[Any, ...]]:
        """Yield this rank's batches of `data`, from the position of `data` until the end of epoch `epochs`. Collective.

        After each epoch the network is evaluated and the log written; after the last one, ``finish`` of the strategies
        comes before that. Ends early by a signal or by `patience`; see ``stopped``. A loop that all ranks left by
        ``break`` can be entered again; that step is not counted. Raises on all ranks: ValueError unless `epochs` is
        at least 1, if an optimizer was distributed after the run was made, and for a loader that is not in the state,
        if the run saves it or is elastic; FloatingPointError if the mean of a logged value, or a weight to be saved, is
        not finite; what writing a checkpoint raised on any rank, at a later step.

        A rank that has served has no steps. At the end strategies are closed, and all ranks have the records. With
        servers, and with `PeerAsync`, no step can follow: it is a RuntimeError.
        """
        count("epochs", epochs)
        goes_back = self._keeping.saves or self._elastic is not None
        if goes_back and all(data is not thing for thing in self.state.values()):
            raise ValueError("a run that goes back needs the position in the data: put the loader into state")
        set_apart = self._role is None and role_of(self.comm) is not None
        if set_apart or not self._strategies.same_as(Strategies(self.state)):
            raise ValueError("make the run after distribute, which gives optimizers their strategies")
        leave_out_servers(self.state, self._role, [data])
        if self.trains:
            yield from self._guarded(data, epochs)
        self._close()

    def _guarded(self, data: Loader, epochs: int) -> Iterator[tuple[Any, ...]]:
        """All steps, with signals as flags."""
        rest = functools.partial(self._rest, data, epochs)
        self._begin = time.perf_counter()
        with self._decisions.signals:
            try:
                yield from rest() if self._elastic is None else self._elastic.steps(rest)
            except BaseException:  # also a break
                self._left = True
                self._decisions.abandon()
                self._keeping.settle()
                raise
            finally:
                self._seconds, self._begin = self.seconds, None

    def _close(self) -> None:
        """Let the servers go; then all ranks have what the run has found. Collective over all ranks."""
        self._strategies.close()
        if self._role is None:
            return
        found = (self.step, self.samples, self.seconds, self.records, self.stopped)
        self.step, self.samples, self._seconds, self.records, self.stopped = self._role.whole.bcast(found, root=0)

    def _rest(self, data: Loader, epochs: int) -> Iterator[tuple[Any, ...]]:
        """All steps from the current position on, and what comes after them. Collective."""
        self.stopped = "patience" if self._improvement.exhausted and data.epoch < epochs else None
        if self._left and self._deals(data):
            self._strategies.meet()
            data.meet(self.comm)
        self._left = False
        self._decisions.begin()
        with self._reports.during(self.comm, self.records, data, epochs):
            while self.stopped is None and data.epoch < epochs:
                yield from self._rest_of_epoch(data, epochs)
            self._end()

    def _rest_of_epoch(self, data: Loader, epochs: int) -> Iterator[tuple[Any, ...]]:
        self._set_rate(data)
        if self._deals(data):
            yield from self._on_demand(data)
        else:
            yield from self._alike(data)
        if self.stopped is None:
            self._end_epoch(data.epoch, last=data.epoch == epochs)
        if self.stopped is None:
            self._settle()

    def _deals(self, data: Loader) -> bool:
        """Whether ranks get the samples of `data` as they have time for them."""
        return self._strategies.hands_out and data.serves_any

    def _alike(self, data: Loader) -> Iterator[tuple[Any, ...]]:
        """The rest of an epoch, in which all ranks make the same steps, or up to an early end."""
        for batch in data:
            self._batch = len(batch[0])
            yield batch
            self._count_step()
            self._set_rate(data)
            if data.step < len(data):
                self._after_step(data)
                if self.stopped is not None:
                    return

    def _on_demand(self, data: Loader) -> Iterator[tuple[Any, ...]]:
        """The same, from one meeting of the ranks to the next; meanwhile each takes what it has time for.

        A step is one of all ranks together, by the samples of a batch.
        """
        epoch = data.epoch
        while data.epoch == epoch:
            to_record = max(1, self._recorded + self.every - self.step)  # `every` may be less than before a checkpoint
            begin, steps = data.step, min(to_record, self._keeping.steps_left(self.step))
            if self._decisions.waiting:
                batches = to_ends_of_steps(data, self._strategies, self.comm)
            else:
                batches = data.on_demand(steps, self._strategies.take)
            for batch in batches:
                self._batch = len(batch[0])
                yield batch
                self._means.samples += self._batch
                self._set_rate(data)
            made = (data.step if data.epoch == epoch else len(data)) - begin
            self.step += made
            self._reports.step(made)
            if data.epoch == epoch:
                self._after_step(data)
                if self.stopped is not None:
                    return

    def _after_step(self, data: Loader) -> None:
        """Do what is due after a step within an epoch."""
        due = self.step - self._recorded >= self.every
        if due or self._strategies.lockstep or self._keeping.counts(self.step) or self._decisions.waiting:
            self._strategies.meet()
            if due:
                self._reports.record(self._record(data.epoch))
            self._settle()

    def _count_step(self) -> None:
        """Count the step that the loop has made, and check its weights."""
        if self._elastic is not None:
            self._elastic.raise_failure()
        self.step += 1
        self._means.samples += self._batch
        self._reports.step()
        if self._check_weights is not None and self.step % self._check_weights == 0:
            for net in self._replicas:
                compare_weights(net, self.comm, self.step)

    def _set_rate(self, data: Loader) -> None:
        """Set the learning rate of the next step."""
        if self._lr is not None:
            rate = self._lr(data.epoch * data.samples + data.position)
            set_lr(self.state["opt"], rate if self._elastic is None else rate * self._elastic.rate)

    def _settle(self) -> None:
        """Do after a step what all ranks have agreed on."""
        commits = self._elastic is not None and self._elastic.commits
        self.stopped = self._decisions.settle(self.step, self._strategies, commits)
        if self.stopped is None and self._elastic is not None:
            self._elastic.end_step(self._decisions.between)

    def _end(self) -> None:
        """Steps have ended: save them, and wait until that is done. A signal may have come with the last step."""
        signal = self._decisions.end()
        self.stopped = self.stopped or signal
        self._keeping.end(self.step, self.stopped)

    def finish(self) -> None:
        """Wait until the checkpoints under way are complete. Collective; `steps` does so at its end.

        A program needs it if it leaves the loop by ``break``. Raises like `steps`.
        """
        self._keeping.finish()

    def log(self, **values: Any) -> None:
        """Note values of this step: numbers, or objects that ``float`` takes.

        Each value is a mean over this rank's samples of the step. All ranks must log the same names. A record has the
        means over all samples of all ranks since the record before.
        """
        self._means.add(values, self._batch)

    def _record(self, epoch: int) -> dict[str, Any]:
        """Make a record: the means, over all ranks, of the values logged since the last one. Collective."""
        samples, means = self._means.reduce(self._dealt)
        self._recorded = self.step
        self.samples += samples
        seconds = round(self.seconds, 6)
        record: dict[str, Any] = {"epoch": epoch, "step": self.step, "samples": self.samples, "seconds": seconds}
        if "opt" in self.state:
            record["lr"] = get_lr(self.state["opt"])
        for key, mean in means.items():
            record[key] = mean
            if not math.isfinite(mean):
                why = f"{key} is {mean} at step {self.step}; a smaller learning rate may help"
                raise FloatingPointError(f"{self.name}: {why}")
        self.records.append(record)
        return record

    def _end_epoch(self, epoch: int, last: bool) -> None:
        self._strategies.meet()
        record = self._record(epoch)
        if last:
            self._strategies.finish()
        if self._evaluate is not None:
            found = self._evaluate()
            record.update(together(self.comm, lambda: numbers(found)))
        better = on_rank_0(self.comm, lambda: self._improvement.judge(record))
        self._reports.epoch(self.records)
        self._improvement.note(better, self.step)
        if better is not None:
            self._keeping.want_best()
        if self._improvement.exhausted and not last:
            self.stopped = "patience"
            self._strategies.finish()

    def position(self) -> dict[str, Any]:
        """The states of the run itself, by name, for a checkpoint: that of all ranks, and this rank's own."""
        common = {
            "name": self.name, "step": self.step, "samples": self.samples, "recorded": self._recorded,
            "seconds": self.seconds, "records": list(self.records), "best": self._improvement.state_dict(),
        }  # fmt: skip
        return {RUN: common, OWN: self._means.state_dict()}

    def go_to(self, common: dict[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
        """Take a position: the state of all ranks, and those of single ranks that this rank takes over."""
        self.step, self.samples = int(common["step"]), int(common["samples"])
        self._recorded, self.records = int(common["recorded"]), list(common["records"])
        self._seconds = max(self.seconds, float(common["seconds"]))  # a run that goes back has needed its time
        if self._begin is not None:
            self._begin = time.perf_counter()
        self._improvement.load_state_dict(common["best"])
        self._means.load(own)

    def move(self, comm: Any) -> None:
        """Go on with the ranks of `comm`, after others were lost. Collective. What was under way is dropped."""
        self.comm, self._dealt = comm, comm
        self._decisions.move(comm)
        self._keeping.move(comm)

    @property
    def seconds(self) -> float:
        """Seconds in which steps ran, with those before a checkpoint from which the run goes on."""
        return self._seconds + (0.0 if self._begin is None else time.perf_counter() - self._begin)

    @property
    def best_checkpoint(self) -> int | None:
        """The step of the checkpoint that has the best value: later than that of `best`, if it had to wait."""
        return self._improvement.checkpoint

    def best_is_in(self, step: int) -> None:
        """Note that the checkpoint of `step` has the best value."""
        self._improvement.checkpoint = step

    @property
    def best(self) -> dict[str, Any] | None:
        """The best value so far with its step: ``{"value": ..., "step": ...}``; None without any."""
        return self._improvement.best
