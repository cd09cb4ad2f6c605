"""The job of ``python -m collectives train``: one training, and the control beside it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from ...drawing import require_matplotlib
from ..agree import on_rank_0
from ..distribute import distribute
from ..models.loss import CrossEntropyLoss
from ..models.nn import Sequential
from ..run.evaluate import evaluate
from ..run.plot import draw_curves
from ..run.records import read_log
from ..run.run import Run
from ..strategies import NoComm, Strategy
from ..weights import same_bits
from .choice import chosen
from .command import Say, run_command
from .result import check_json, values, write_json
from .task import Task
from .traffic import Traffic, counted

STOPPED = 75  # exit status: EX_TEMPFAIL of sysexits.h, "try again later"


class Result(NamedTuple):
    """The result of one training: the run, the network, and what this rank has handed over."""

    run: Run
    net: Sequential
    traffic: Traffic

    @property
    def accuracy(self) -> dict[str, float]:
        """The last record, which has the accuracy if training has ended."""
        return self.run.records[-1] if self.run.records else {}


def _train(name: str, label: str, strategy: Strategy, task: Task, args: argparse.Namespace, comm: Any) -> Result:
    """Train one network with `strategy`, from scratch or from a checkpoint."""
    loader = task.loader(comm, task.batch, args.seed)
    net, opt = task.network(args.seed)
    traffic = Traffic()
    net, opt = distribute(net, opt, strategy, comm=counted(comm, traffic))

    def test() -> dict[str, float]:
        return evaluate(net, task.data.x_test, task.data.y_test, comm=comm, replicated=strategy.replicated)

    plain = {key: value for key, value in vars(args).items() if isinstance(value, str | int | float | None)}
    run = Run(
        args.out,
        comm=comm,
        state={"net": net, "opt": opt, "data": loader, "traffic": traffic},
        name=name,
        evaluate=test,
        settings={"label": label, "strategy": str(args.choice), **plain},
        progress=args.progress,
        lr=task.rate(strategy.batches(comm.size)),
        checkpoint_every=args.checkpoint_every,
        keep=args.keep,
        resume=args.resume,
    )
    if run.resumed is not None and comm.rank == 0:
        print(f"{name}: goes on from the checkpoint of step {run.resumed}", flush=True)
    loss_fn = CrossEntropyLoss()
    for x, y in run.steps(loader, epochs=args.epochs):
        opt.zero_grad()
        loss = loss_fn(net(x), y)
        loss.backward()
        opt.step()
        run.log(loss=loss)
    return Result(run, net, traffic)


def _prepared(args: argparse.Namespace, comm: Any) -> Strategy:
    """The strategy, after all options that need no data have been checked, and the files prepared."""
    args.choice = chosen(args)
    args.choice.check(comm.size)
    if args.out is None and (args.resume or args.checkpoint_every):
        raise ValueError("--resume and --checkpoint-every need a folder: --out DIR")
    on_rank_0(comm, lambda: _prepare_files(args))
    strategy: Strategy = args.choice.make()
    return strategy


def _prepare_files(args: argparse.Namespace) -> None:
    check_json(args.json)
    if args.out is not None:
        require_matplotlib()  # now, not after the training
        if not args.resume:
            (Path(args.out) / "log.json").unlink(missing_ok=True)


def _job(args: argparse.Namespace, comm: Any, say: Say) -> int:
    strategy = _prepared(args, comm)
    task = Task(args, comm, say)
    p, name = comm.size, args.choice.name
    ranks = "1 rank" if p == 1 else f"{p} ranks"
    say(f"{task.model}, {args.dtype}, {ranks}, global batch {task.batch}")
    main_run = _train(name, f"{args.choice}, {ranks}", strategy, task, args, comm)
    _write_json(args, main_run, comm)
    if main_run.run.stopped is not None:
        return _stopped(args, main_run.run, say)
    identical = "the same bits" if same_bits(main_run.net, comm) else "NOT the same bits"
    control = None
    if not args.no_control and p > 1 and name != "nocomm":
        control = _train("control", f"control: {ranks}, no communication", NoComm(), task, args, comm)
        if control.run.stopped is not None:
            return _stopped(args, control.run, say)

    accuracy = main_run.accuracy["accuracy"]
    say(f"\n{args.choice}, {ranks}: test accuracy {accuracy:.4f} in {main_run.run.seconds:.1f} s")
    say(f"the weights of all ranks are {identical}")
    if control is not None:
        mean, low, high = (control.accuracy[key] for key in ("accuracy", "accuracy_min", "accuracy_max"))
        say(f"control without communication: test accuracy {mean:.4f} (ranks from {low:.4f} to {high:.4f})")
    if args.out is not None:
        on_rank_0(comm, lambda: _draw(args, task, ranks))
        say(f"wrote {Path(args.out) / 'log.json'} and {Path(args.out) / 'curve.png'}")
    return 0


def _stopped(args: argparse.Namespace, run: Run, say: Say) -> int:
    saved = "the same command with --resume goes on" if args.out is not None else "without --out nothing is saved"
    say(f"{run.name}: stopped by {run.stopped} after step {run.step}; {saved}")
    return STOPPED


def _write_json(args: argparse.Namespace, result: Result, comm: Any) -> None:
    """Write the file of ``--json``. Collective."""
    run = result.run
    found = {**result.accuracy, "seconds": run.seconds, "steps": run.step, "samples": run.samples}
    written = values(args.choice.name, args.seed, found, result.traffic, result.net, comm, run.stopped)
    if args.json is not None:
        on_rank_0(comm, lambda: write_json(args.json, written))


def _draw(args: argparse.Namespace, task: Task, ranks: str) -> None:
    title = f"{task.data.name}: {task.model} on {ranks}, {args.shard} shards, global batch {task.batch}"
    draw_curves(read_log(Path(args.out) / "log.json"), Path(args.out) / "curve.png", title)


def main(args: argparse.Namespace, comm: Any = None) -> int:
    """Run ``train`` with parsed `args` on `comm` (default: the world). Collective.

    Returns the exit status: 0; 2 after an error that all ranks raise and rank 0 prints; 75 if a signal stopped it.
    """
    return run_command("train", _job, args, comm)
