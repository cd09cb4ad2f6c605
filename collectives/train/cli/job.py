"""The job of ``python -m collectives train``: one training, and the control beside it."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...drawing import require_matplotlib
from ...files import obstacle, replacing
from ..agree import communicator, on_rank_0
from ..blas_threads import limit_threads
from ..data.datasets import Dataset, load
from ..data.loader import Loader
from ..distribute import distribute
from ..models.classifiers import MODELS
from ..models.loss import CrossEntropyLoss
from ..models.nn import Sequential
from ..optim.schedules import Warmup, scaled
from ..optim.sgd import SGD
from ..run.evaluate import evaluate
from ..run.plot import draw_curves
from ..run.records import read_log
from ..run.run import Run
from ..strategies import NoComm, Strategy
from ..weights import same_bits
from .options import NAMES, STRATEGIES
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


def _train(name: str, label: str, strategy: Strategy, data: Dataset, args: argparse.Namespace, comm: Any) -> Result:
    """Train one network with `strategy`, from scratch or from a checkpoint."""
    loader = Loader((data.x_train, data.y_train), args.batch, seed=args.seed, comm=comm, shard=args.shard)
    rng = np.random.default_rng(args.seed)
    net = MODELS[args.model](data.x_train.shape[1:], data.classes, rng=rng, dtype=args.dtype)
    rate = scaled(args.lr, comm.size, args.scale_lr) if strategy.replicated else args.lr
    opt = SGD(net.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    traffic = Traffic()
    net, opt = distribute(net, opt, strategy, comm=counted(comm, traffic))

    def test() -> dict[str, float]:
        return evaluate(net, data.x_test, data.y_test, comm=comm, replicated=strategy.replicated)

    plain = {key: value for key, value in vars(args).items() if isinstance(value, str | int | float | None)}
    run = Run(
        args.out,
        comm=comm,
        state={"net": net, "opt": opt, "data": loader, "traffic": traffic},
        name=name,
        evaluate=test,
        settings={"label": label, **plain},
        progress=args.progress,
        lr=Warmup(rate, args.warmup * loader.samples, args.lr),
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


def _labels(data: Dataset, args: argparse.Namespace, comm: Any) -> str:
    """Which labels each of the first eight ranks holds, as text on rank 0. Collective."""
    loader = Loader((data.y_train,), args.batch, seed=args.seed, comm=comm, shard=args.shard)
    mine = np.unique(data.y_train[loader.indices(0)]).tolist()
    every = comm.gather(mine[:12], root=0) or []
    shown = [f"rank {r}: {' '.join(map(str, labels))}" for r, labels in enumerate(every[:8])]
    return "; ".join(shown) + ("; ..." if comm.size > 8 else "")


def _prepared(args: argparse.Namespace, comm: Any, say: Any) -> Dataset:
    """The data, after the options have been checked and the files prepared."""
    if args.momentum >= 1:
        raise ValueError(f"--momentum must be below 1, not {args.momentum}")
    if args.out is None and (args.resume or args.checkpoint_every):
        raise ValueError("--resume and --checkpoint-every need a folder: --out DIR")
    on_rank_0(comm, lambda: _prepare_files(args))
    hint = limit_threads(comm)
    if hint is not None:
        say(hint)
    args.batch = args.batch or 32 * comm.size
    data = load(args.data, comm, args.dtype)
    say(f"{data.name}: {len(data.y_train)} training and {len(data.y_test)} test samples, {data.classes} classes")
    args.model = args.model or ("cnn" if data.x_train.ndim == 4 else "mlp")
    labels = _labels(data, args, comm)
    if args.shard == "sorted" and comm.size > 1:
        say(f"samples sorted by label and split: {labels}")
    return data


def _prepare_files(args: argparse.Namespace) -> None:
    if args.json is not None and (why := obstacle(args.json)) is not None:
        raise OSError(f"cannot write {args.json}: {why}")
    if args.out is not None:
        require_matplotlib()  # now, not after the training
        if not args.resume:
            (Path(args.out) / "log.json").unlink(missing_ok=True)


def _job(args: argparse.Namespace, comm: Any) -> int:
    def say(text: str) -> None:
        if comm.rank == 0:
            print(text, flush=True)

    data = _prepared(args, comm, say)
    p, kind = comm.size, NAMES[args.strategy]
    ranks = "1 rank" if p == 1 else f"{p} ranks"
    say(f"{args.model}, {args.dtype}, {ranks}, global batch {args.batch}")
    main_run = _train(kind, f"{kind}, {ranks}", STRATEGIES[args.strategy](args), data, args, comm)
    _write_json(args, main_run, comm)
    if main_run.run.stopped is not None:
        return _stopped(args, main_run.run, say)
    identical = "the same bits" if same_bits(main_run.net, comm) else "NOT the same bits"
    control = None
    if not args.no_control and p > 1 and args.strategy != "nocomm":
        control = _train("control", f"control: {ranks}, no communication", NoComm(), data, args, comm)
        if control.run.stopped is not None:
            return _stopped(args, control.run, say)

    accuracy = main_run.accuracy["accuracy"]
    say(f"\n{kind}, {ranks}: test accuracy {accuracy:.4f} in {main_run.run.seconds:.1f} s")
    say(f"the weights of all ranks are {identical}")
    if control is not None:
        mean, low, high = (control.accuracy[key] for key in ("accuracy", "accuracy_min", "accuracy_max"))
        say(f"control without communication: test accuracy {mean:.4f} (ranks from {low:.4f} to {high:.4f})")
    if args.out is not None:
        on_rank_0(comm, lambda: _draw(args, data, ranks))
        say(f"wrote {Path(args.out) / 'log.json'} and {Path(args.out) / 'curve.png'}")
    return 0


def _stopped(args: argparse.Namespace, run: Run, say: Any) -> int:
    saved = "the same command with --resume goes on" if args.out is not None else "without --out nothing is saved"
    say(f"{run.name}: stopped by {run.stopped} after step {run.step}; {saved}")
    return STOPPED


def _write_json(args: argparse.Namespace, result: Result, comm: Any) -> None:
    """Write the file of ``--json``. Collective."""
    sent = comm.gather(result.traffic.bytes, root=0)
    if args.json is None:
        return
    digest = hashlib.sha256()
    for parameter in result.net.parameters():
        digest.update(parameter.data.tobytes())
    values = {
        "strategy": args.strategy,
        "ranks": comm.size,
        "seed": args.seed,
        "accuracy": result.accuracy.get("accuracy"),
        "seconds": result.run.seconds,
        "steps": result.run.step,
        "samples": result.run.samples,
        "bytes_sent": sent,
        "weights_sha256": digest.hexdigest(),
        "stopped": result.run.stopped,
    }

    def write() -> None:
        with replacing(args.json) as file:
            file.write(json.dumps(values, indent=1) + "\n")

    on_rank_0(comm, write)


def _draw(args: argparse.Namespace, data: Dataset, ranks: str) -> None:
    title = f"{data.name}: {args.model} on {ranks}, {args.shard} shards, global batch {args.batch}"
    draw_curves(read_log(Path(args.out) / "log.json"), Path(args.out) / "curve.png", title)


def main(args: argparse.Namespace, comm: Any = None) -> int:
    """Run ``train`` with parsed `args` on `comm` (default: the world). Collective.

    Returns the exit status: 0; 2 after an error that all ranks raise and rank 0 prints; 75 if a signal stopped it.
    """
    comm = communicator(comm)
    try:
        return _job(args, comm)
    except (ValueError, OSError, ImportError, FloatingPointError) as error:
        if comm.rank == 0:
            print(f"train: error: {error}", file=sys.stderr, flush=True)
        return 2
