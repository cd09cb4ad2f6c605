"""The job of ``python -m collectives train``: one training, or one for each task, and the control beside it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ...drawing import require_matplotlib
from ..agree import on_rank_0, raise_on_all
from ..checkpoint.folder import Folder
from ..mesh import Mesh
from ..models.nn import Sequential
from ..run.options import folder_of
from ..run.plot import draw_curves
from ..run.records import read_log
from ..run.run import Run
from ..strategies import NoComm, Strategy
from ..traffic import Traffic, counted
from .choice import chosen
from .command import ERRORS, Say, run_command
from .part import Part
from .plan import Plan
from .result import check_json, of_mesh, values, write_json
from .task import Task

STOPPED = 75  # exit status: EX_TEMPFAIL of sysexits.h, "try again later"
T = TypeVar("T")


class Result(NamedTuple):
    """The result of one training: the run, its steps, whether ranks have the same bits, and the values of ``--json``,
    whole on rank 0 of its ranks."""

    run: Run
    net: Sequential
    identical: bool
    values: dict[str, Any]
    pipeline: str | None

    @property
    def accuracy(self) -> dict[str, float]:
        """The last record, which has the accuracy if training has ended."""
        return self.run.records[-1] if self.run.records else {}


class Job:
    """What all trainings of a command have in common, on one rank."""

    def __init__(self, args: argparse.Namespace, comm: Any, say: Say) -> None:
        self.args, self.comm, self.say = args, comm, say
        self.plan: Plan = args.plan
        self.mesh = Mesh(comm, **self.plan.shape)
        self.task = Task(args, comm, say, self.mesh.data)
        self.plan.check_batches(len(self.task.data.y_train), self.task.batch)
        self.number, self.tasks = self.mesh.place["tasks"], self.plan.shape["tasks"]
        self.out = folder_of(args.out, self.mesh)
        p = comm.size
        self.ranks = "1 rank" if p == 1 else f"{p} ranks"
        if args.mesh is not None:
            self.ranks += f" ({self.plan})"

    def each(self, work: Callable[[], T]) -> T:
        """The result of ``work()`` for this rank's task. An error of one task is raised on the ranks of all."""
        if self.tasks == 1:
            return work()
        mine = None
        try:
            result = work()
        except ERRORS as error:
            mine = error
        raise_on_all(self.comm, mine)
        return result

    def train(self, name: str, label: str, strategy: Strategy) -> Result:
        """Train the network of this rank's task with `strategy`, from scratch or from a checkpoint."""
        args, mesh, seed = self.args, self.mesh, self.args.seed + self.number
        name = name if self.tasks == 1 else f"{name}-{self.number}"
        traffic = Traffic()
        part = Part(self.task, self.plan, seed, strategy, Mesh(counted(self.comm, traffic), **self.plan.shape), mesh)
        plain = {key: value for key, value in vars(args).items() if isinstance(value, str | int | float | None)}
        every = args.checkpoint_every
        run = Run(
            args.out,
            mesh=mesh,
            state={"net": part.net, "opt": part.opt, "data": part.loader, "traffic": traffic},
            name=name,
            evaluate=part.test,
            settings={**plain, "label": label, "strategy": str(args.choice), "mesh": str(self.plan), "seed": seed},
            progress=args.progress,
            lr=part.rate,
            checkpoint_every=None if every is None else math.ceil(every / part.each),
            keep=args.keep,
            resume=args.resume,
        )
        if run.resumed is not None and mesh.comm.rank == 0:
            print(f"{name}: goes on from the checkpoint of step {run.resumed * part.each}", flush=True)
        for x, y in run.steps(part.loader, epochs=args.epochs):
            run.log(loss=part.step(x, y))
        return self._result(run, part, traffic, run.step * part.each, seed)

    def _result(self, run: Run, part: Part, traffic: Traffic, steps: int, seed: int) -> Result:
        part.gather()
        found = {**(run.records[-1] if run.records else {})}
        found |= {"seconds": run.seconds, "steps": steps, "samples": run.samples}
        written = values(self.args.choice.name, seed, found, traffic, part.whole, self.mesh.comm, run.stopped)
        report = part.report()
        if self.args.mesh is not None:
            written |= of_mesh(self.plan, report)
        made = Result(run, part.whole, part.same_bits(), written, None if report is None else str(report))
        part.free()
        return made


def _prepared(args: argparse.Namespace, comm: Any) -> Strategy:
    """The strategy, after all options that need no data have been checked, and the files prepared."""
    args.choice = chosen(args)
    args.plan = Plan.of(args, comm.size)
    args.choice.check(args.plan.shape["data"])
    strategy: Strategy = args.choice.make()
    args.plan.check(strategy, args.choice.name)
    if args.out is None and (args.resume or args.checkpoint_every):
        raise ValueError("--resume and --checkpoint-every need a folder: --out DIR")
    if args.out is not None and args.plan.splits and getattr(strategy, "shard", 0):
        raise ValueError("with parts of a network, checkpoints of shards are not supported: leave out --out, or shard")
    on_rank_0(comm, lambda: _prepare_files(args))
    return strategy


def _prepare_files(args: argparse.Namespace) -> None:
    check_json(args.json)
    if args.out is not None:
        require_matplotlib()  # now, not after the training
        folders = Path(args.out), *Path(args.out).glob("task-*")
        if not args.resume:
            _refuse_checkpoints(folders)  # before the log of their run is removed, and not first by the control
            for folder in folders:
                (folder / "log.json").unlink(missing_ok=True)


def _refuse_checkpoints(folders: Sequence[Path]) -> None:
    """ValueError if any of `folders` has checkpoints."""
    for folder in folders:
        if any(Folder(saved).steps() for saved in folder.glob("checkpoints/*")):
            raise ValueError(
                f"{folder} has checkpoints of an earlier run: go on from there with --resume, or give another folder"
            )


def _job(args: argparse.Namespace, comm: Any, say: Say) -> int:
    strategy = _prepared(args, comm)
    job = Job(args, comm, say)
    choice, ranks = args.choice, job.ranks
    say(f"{job.task.model}, {args.dtype}, {ranks}, global batch {job.task.batch}")
    found = job.each(lambda: job.train(choice.name, f"{choice}, {ranks}", strategy))
    _write_json(job, found)
    stopped = _stopped(job, found)
    control = None
    if not stopped and not args.no_control and job.plan.shape["data"] > 1 and choice.name != "nocomm":
        label = f"control: {ranks}, no communication"
        control = job.each(lambda: job.train("control", label, NoComm()))
        stopped = _stopped(job, control)
    if stopped:
        return STOPPED
    _tell(job, found, control)
    if args.out is not None:
        job.each(lambda: on_rank_0(job.mesh.comm, lambda: _draw(job)))
        folder = args.out if job.tasks == 1 else Path(args.out) / "task-*"
        say(f"wrote {Path(folder) / 'log.json'} and {Path(folder) / 'curve.png'}")
    return 0


def _stopped(job: Job, result: Result) -> bool:
    """Whether a signal has stopped any task; rank 0 of each tells it. Collective."""
    run = result.run
    if run.stopped is not None and job.mesh.comm.rank == 0:
        saved = "the same command with --resume goes on" if job.out is not None else "without --out nothing is saved"
        print(f"{run.name}: stopped by {run.stopped} after step {result.values['steps']}; {saved}", flush=True)
    return any(job.comm.allgather(run.stopped is not None))


def _write_json(job: Job, result: Result) -> None:
    """Write the file of ``--json``. Collective."""
    found = job.mesh.tasks.gather(result.values, root=0)  # on rank 0 of all, by task
    path = job.args.json
    if path is not None:
        on_rank_0(job.comm, lambda: write_json(path, found[0] if job.tasks == 1 else _joined(found)))


def _joined(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The values of all tasks: what they have in common, and each one's."""
    common = {key: found[0][key] for key in ("strategy", "mesh", "pipeline", "micro_batches")}
    return {**common, "ranks": sum(one["ranks"] for one in found), "tasks": found}


def _tell(job: Job, found: Result, control: Result | None) -> None:
    """Say what each task has found. Collective."""
    for number, lines in enumerate(job.mesh.tasks.gather(_lines(job, found, control), root=0) or ()):
        job.say("\n" + ("" if job.tasks == 1 else f"task {number}: ") + "\n".join(lines))


def _lines(job: Job, found: Result, control: Result | None) -> list[str]:
    identical = "the same bits" if found.identical else "NOT the same bits"
    lines = [
        f"{job.args.choice}, {job.ranks}: test accuracy {found.accuracy['accuracy']:.4f} in {found.run.seconds:.1f} s",
        f"the weights of all {'data ranks' if job.plan.splits else 'ranks'} are {identical}",
    ]
    if found.pipeline is not None:
        lines.append(found.pipeline)
    if control is not None:
        mean, low, high = (control.accuracy[key] for key in ("accuracy", "accuracy_min", "accuracy_max"))
        lines.append(f"control without communication: test accuracy {mean:.4f} (ranks from {low:.4f} to {high:.4f})")
    return lines


def _draw(job: Job) -> None:
    assert job.out is not None
    task, folder = job.task, Path(job.out)
    title = f"{task.data.name}: {task.model} on {job.ranks}, {job.args.shard} shards, global batch {task.batch}"
    draw_curves(read_log(folder / "log.json"), folder / "curve.png", title)


def main(args: argparse.Namespace, comm: Any = None) -> int:
    """Run ``train`` with parsed `args` on `comm` (default: the world). Collective.

    Returns the exit status: 0; 2 after an error that all ranks raise and rank 0 prints; 75 if a signal stopped it.
    """
    return run_command("train", _job, args, comm)
