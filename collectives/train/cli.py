"""``python -m collectives train``: data-parallel training on real data, with a control that does not communicate."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..drawing import require_matplotlib
from .agree import communicator, on_rank_0, same_bits
from .blas_threads import limit_threads
from .data.datasets import Dataset, load
from .data.loader import SHARDS, Loader
from .distribute import distribute
from .models.classifiers import MODELS
from .models.loss import CrossEntropyLoss
from .models.nn import Sequential
from .optim.schedules import RULES, Warmup, scaled, set_lr
from .optim.sgd import SGD
from .run.evaluate import evaluate
from .run.plot import draw_curves
from .run.progress import MODES
from .run.records import read_log
from .run.run import Run
from .strategies import AllReduce, NoComm, Strategy

DESCRIPTION = """\
Train a classifier on all ranks of an MPI job, by synchronous data-parallel SGD: each rank computes the gradient of its
part of the global batch, and the gradients are all-reduced bucket by bucket while the backward pass goes on. By default
every rank holds only some of the labels; the control, the same ranks without communication, shows what that means."""
EPILOG = """\
examples:
  mpiexec -n 4 python -m collectives train                      scikit-learn's digits, in seconds
  mpiexec -n 4 python -m collectives train --out out            the same, with out/log.json and out/curve.png
  mpiexec -n 2 python -m collectives train --data images.npz --shard shuffled --epochs 5"""


def _number(kind: type, low: float, strict: bool = False) -> Any:
    """An argparse type: a finite number of `kind`, at least (or above) `low`."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {'an integer' if kind is int else 'a number'}") from None
        if not math.isfinite(value) or value < low or (strict and value == low):
            raise argparse.ArgumentTypeError(f"{text} is not {'above' if strict else 'at least'} {low:g}")
        return value

    return parse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``train`` to `parser`."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_data(parser.add_argument_group("data"))
    _add_model(parser.add_argument_group("model and optimizer"))
    _add_communication(parser.add_argument_group("communication"))
    parser.add_argument(
        "--progress",
        choices=MODES,
        default="auto",
        help="a bar, or about ten lines; auto (default): a bar if standard error is a terminal, which mpiexec may hide",
    )
    parser.add_argument("--out", metavar="DIR", help="write log.json and curve.png there")


def _add_data(data: argparse._ArgumentGroup) -> None:
    data.add_argument(
        "--data",
        metavar="FILE.npz",
        help="arrays x, y (a fixed fifth of each label is kept for testing) or x_train, y_train, x_test, y_test; x of "
        "shape (samples, ...), y integer labels from 0; default: scikit-learn's digits",
    )
    data.add_argument(
        "--shard",
        choices=SHARDS,
        default="sorted",
        help="sorted (default): each rank holds a part of the samples sorted by label; strided: every p-th sample; "
        "shuffled: all samples are dealt anew each epoch, global batches do not depend on the number of ranks",
    )
    data.add_argument(
        "--batch",
        type=_number(int, 1),
        metavar="N",
        help="samples per step of all ranks together (default: 32 per rank)",
    )
    data.add_argument(
        "--epochs", type=_number(int, 1), default=30, metavar="N", help="passes over the data (default: %(default)s)"
    )


def _add_model(model: argparse._ArgumentGroup) -> None:
    model.add_argument(
        "--model", choices=sorted(MODELS), help="network (default: cnn for images, mlp for other samples)"
    )
    model.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        default="float32",
        help="type of data and weights (default: %(default)s)",
    )
    model.add_argument(
        "--lr",
        type=_number(float, 0, strict=True),
        default=0.02,
        metavar="X",
        help="learning rate of one rank, before scaling (default: %(default)s)",
    )
    model.add_argument(
        "--scale-lr",
        choices=RULES,
        default="linear",
        help="multiply the learning rate by the number of ranks (linear, default), its root (sqrt), or not (none)",
    )
    model.add_argument(
        "--warmup",
        type=_number(float, 0),
        default=3.0,
        metavar="EPOCHS",
        help="epochs in which the rate grows from --lr to the scaled one (default: %(default)s)",
    )
    model.add_argument(
        "--momentum", type=_number(float, 0), default=0.9, metavar="X", help="momentum, below 1 (default: %(default)s)"
    )
    model.add_argument(
        "--weight-decay", type=_number(float, 0), default=1e-4, metavar="X", help="weight decay (default: %(default)s)"
    )
    model.add_argument(
        "--seed", type=_number(int, 0), default=0, metavar="N", help="same seed, same ranks: same bits (default: 0)"
    )


def _add_communication(comm: argparse._ArgumentGroup) -> None:
    comm.add_argument(
        "--average",
        choices=("mean", "sum"),
        default="mean",
        help="combine gradients to the mean over all samples (default), or add the ranks' means",
    )
    comm.add_argument("--algorithm", metavar="NAME", help="all-reduce algorithm (default: the communicator chooses)")
    comm.add_argument(
        "--bucket-kib",
        type=_number(float, 0, strict=True),
        default=32.0,
        metavar="KIB",
        help="size of the buckets gradients are fused into (default: %(default)g)",
    )
    comm.add_argument("--no-control", action="store_true", help="leave out the control without communication")


class Result(NamedTuple):
    """The result of one training: the last record (with the accuracy), seconds, and the network."""

    accuracy: dict[str, float]
    seconds: float
    net: Sequential


def _train(name: str, label: str, strategy: Strategy, data: Dataset, args: argparse.Namespace, comm: Any) -> Result:
    """Train one network from scratch with `strategy`."""
    loader = Loader((data.x_train, data.y_train), args.batch, seed=args.seed, comm=comm, shard=args.shard)
    rng = np.random.default_rng(args.seed)
    net = MODELS[args.model](data.x_train.shape[1:], data.classes, rng=rng, dtype=args.dtype)
    rate = scaled(args.lr, comm.size, args.scale_lr) if strategy.replicated else args.lr
    schedule = Warmup(rate, args.warmup * loader.samples, args.lr)
    opt = SGD(net.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    net, opt = distribute(net, opt, strategy, comm=comm)

    def test() -> dict[str, float]:
        return evaluate(net, data.x_test, data.y_test, comm=comm, replicated=strategy.replicated)

    state = {"net": net, "opt": opt, "data": loader}
    plain = {key: value for key, value in vars(args).items() if isinstance(value, str | int | float | None)}
    settings = {"label": label, **plain}
    run = Run(args.out, comm=comm, state=state, name=name, evaluate=test, settings=settings, progress=args.progress)
    loss_fn = CrossEntropyLoss()
    begin = time.perf_counter()
    for x, y in run.steps(loader, epochs=args.epochs):
        set_lr(opt, schedule(run.step * args.batch))
        opt.zero_grad()
        loss = loss_fn(net(x), y)
        loss.backward()
        opt.step()
        run.log(loss=loss)
    return Result(run.records[-1], time.perf_counter() - begin, net)


def _labels(data: Dataset, args: argparse.Namespace, comm: Any) -> str:
    """Which labels each of the first eight ranks holds, as text on rank 0. Collective."""
    loader = Loader((data.y_train,), args.batch, seed=args.seed, comm=comm, shard=args.shard)
    mine = np.unique(data.y_train[loader.indices(0)]).tolist()
    every = comm.gather(mine[:12], root=0) or []
    shown = [f"rank {r}: {' '.join(map(str, labels))}" for r, labels in enumerate(every[:8])]
    return "; ".join(shown) + ("; ..." if comm.size > 8 else "")


def _job(args: argparse.Namespace, comm: Any) -> None:
    def say(text: str) -> None:
        if comm.rank == 0:
            print(text, flush=True)

    if args.momentum >= 1:
        raise ValueError(f"--momentum must be below 1, not {args.momentum}")
    hint = limit_threads(comm)
    if hint is not None:
        say(hint)
    args.batch = args.batch or 32 * comm.size
    if args.out is not None:
        on_rank_0(comm, lambda: _start_log(Path(args.out)))
    data = load(args.data, comm, args.dtype)
    p = comm.size
    ranks = "1 rank" if p == 1 else f"{p} ranks"
    say(f"{data.name}: {len(data.y_train)} training and {len(data.y_test)} test samples, {data.classes} classes")
    args.model = args.model or ("cnn" if data.x_train.ndim == 4 else "mlp")
    labels = _labels(data, args, comm)
    if args.shard == "sorted" and p > 1:
        say(f"samples sorted by label and split: {labels}")
    say(f"{args.model}, {args.dtype}, {ranks}, global batch {args.batch}")

    strategy = AllReduce(args.average == "mean", max(1, round(args.bucket_kib * 1024)), args.algorithm)
    main_run = _train("all-reduce", f"all-reduce, {ranks}", strategy, data, args, comm)
    identical = "the same bits" if same_bits(main_run.net, comm) else "NOT the same bits"
    control = None
    if not args.no_control and p > 1:
        control = _train("control", f"control: {ranks}, no communication", NoComm(), data, args, comm)

    accuracy = main_run.accuracy["accuracy"]
    say(f"\nall-reduce, {ranks}: test accuracy {accuracy:.4f} in {main_run.seconds:.1f} s")
    say(f"the weights of all ranks are {identical}")
    if control is not None:
        mean, low, high = (control.accuracy[key] for key in ("accuracy", "accuracy_min", "accuracy_max"))
        say(f"control without communication: test accuracy {mean:.4f} (ranks from {low:.4f} to {high:.4f})")
    if args.out is not None:
        on_rank_0(comm, lambda: _draw(args, data, ranks))
        say(f"wrote {Path(args.out) / 'log.json'} and {Path(args.out) / 'curve.png'}")


def _start_log(out: Path) -> None:
    require_matplotlib()  # now, not after the training
    (out / "log.json").unlink(missing_ok=True)


def _draw(args: argparse.Namespace, data: Dataset, ranks: str) -> None:
    title = f"{data.name}: {args.model} on {ranks}, {args.shard} shards, global batch {args.batch}"
    draw_curves(read_log(Path(args.out) / "log.json"), Path(args.out) / "curve.png", title)


def main(args: argparse.Namespace, comm: Any = None) -> int:
    """Run ``train`` with parsed `args` on `comm` (default: the world). Collective.

    Returns the exit status: 0, or 2 after an error that all ranks raise and rank 0 prints.
    """
    comm = communicator(comm)
    try:
        _job(args, comm)
    except (ValueError, OSError, ImportError, FloatingPointError) as error:
        if comm.rank == 0:
            print(f"train: error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0
