"""The options of ``python -m collectives train``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from ..data.loader import SHARDS
from ..models.classifiers import MODELS
from ..optim.schedules import RULES
from ..run.progress import MODES
from ..strategies import AllReduce, NoComm, Strategy

DESCRIPTION = """\
Train a classifier on all ranks of an MPI job, by synchronous data-parallel SGD: each rank computes the gradient of its
part of the global batch, and the gradients are all-reduced bucket by bucket while the backward pass goes on. By default
every rank holds only some of the labels; the control, the same ranks without communication, shows what that means."""
EPILOG = """\
examples:
  mpiexec -n 4 python -m collectives train                      scikit-learn's digits, in seconds
  mpiexec -n 4 python -m collectives train --out out            the same, with out/log.json and out/curve.png
  mpiexec -n 2 python -m collectives train --data images.npz --shard shuffled --epochs 5
  mpiexec -n 4 python -m collectives train --out out --checkpoint-every 100   saves; with --resume it goes on

exit status: 0; 2 after an error; 75 if SIGTERM or SIGUSR1 stopped the training before its end."""


def _allreduce(args: argparse.Namespace) -> Strategy:
    return AllReduce(args.average == "mean", max(1, round(args.bucket_kib * 1024)), args.algorithm)


#: Makers of strategies by the names that the option takes.
STRATEGIES: dict[str, Callable[[argparse.Namespace], Strategy]] = {
    "allreduce": _allreduce,
    "nocomm": lambda args: NoComm(),
}
#: What runs are called where people read of them.
NAMES = {"allreduce": "all-reduce", "nocomm": "no communication"}


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
    _add_files(parser.add_argument_group("files"))


def _add_files(files: argparse._ArgumentGroup) -> None:
    files.add_argument("--out", metavar="DIR", help="write log.json, curve.png and checkpoints/ there")
    files.add_argument(
        "--checkpoint-every",
        type=_number(int, 1),
        metavar="N",
        help="save a checkpoint every N steps, and at the end; SIGTERM and SIGUSR1 save one and stop in any case",
    )
    files.add_argument(
        "--keep", type=_number(int, 1), default=2, metavar="N", help="keep the N newest checkpoints (default: 2)"
    )
    files.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint in DIR; without any, begin"
    )
    files.add_argument(
        "--json",
        metavar="FILE",
        help="write there: strategy, ranks, seed, accuracy, seconds, steps, samples, bytes_sent (for each rank, the "
        "bytes of the vectors that it gave to collectives or messages), weights_sha256 (of rank 0's parameters), "
        "stopped (by which signal)",
    )


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
        "--strategy", choices=sorted(STRATEGIES), default="allreduce", help="how ranks train together: %(default)s"
    )
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
