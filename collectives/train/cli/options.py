"""The options of ``python -m collectives train``."""

from __future__ import annotations

import argparse
from typing import Any

from ..data.loader import SHARDS
from ..models.classifiers import MODELS
from ..optim.schedules import RULES
from ..run.progress import MODES
from .choice import add_choice, listing
from .plan import add_mesh
from .values import number

DESCRIPTION = """\
Train a classifier on all ranks of an MPI job. Each rank computes the gradient of its part of the global batch; the
strategy says what ranks exchange, and when. By default gradients are all-reduced bucket by bucket while the backward
pass goes on. Every rank holds only some of the labels; the control, the same ranks without communication, shows what
that means."""
EPILOG = """\
examples:
  mpiexec -n 4 python -m collectives train                      scikit-learn's digits, in seconds
  mpiexec -n 4 python -m collectives train --out out            the same, with out/log.json and out/curve.png
  mpiexec -n 2 python -m collectives train --data images.npz --shard shuffled --epochs 5
  mpiexec -n 4 python -m collectives train --strategy allreduce --option clip_norm=1 --option shard=1
  mpiexec -n 4 python -m collectives train --out out --checkpoint-every 100   saves; with --resume it goes on
  mpiexec -n 4 python -m collectives train --mesh data=2,pipeline=2 --pipeline 1f1b --micro-batches 8

exit status: 0; 2 after an error; 75 if SIGTERM or SIGUSR1 stopped the training before its end."""


class _List(argparse.Action):
    """Prints the strategies, and ends the program, as ``--help`` does."""

    def __call__(self, parser: argparse.ArgumentParser, *args: Any) -> None:
        print(listing())
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``train`` to `parser`."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_task(parser)
    _add_strategy(parser.add_argument_group("strategy"))
    add_mesh(parser.add_argument_group("mesh"))
    parser.add_argument(
        "--progress",
        choices=MODES,
        default="auto",
        help="a bar, or about ten lines; auto (default): a bar if standard error is a terminal, which mpiexec may hide",
    )
    _add_files(parser.add_argument_group("files"))


def add_task(parser: argparse.ArgumentParser) -> None:
    """Add the options of a `Task`: of data, model and optimizer."""
    _add_data(parser.add_argument_group("data"))
    _add_model(parser.add_argument_group("model and optimizer"))


def _add_files(files: argparse._ArgumentGroup) -> None:
    files.add_argument("--out", metavar="DIR", help="write log.json, curve.png and checkpoints/ there")
    files.add_argument(
        "--checkpoint-every",
        type=number(int, 1),
        metavar="N",
        help="save a checkpoint every N steps, and at the end; SIGTERM and SIGUSR1 save one and stop in any case",
    )
    files.add_argument(
        "--keep", type=number(int, 1), default=2, metavar="N", help="keep the N newest checkpoints (default: 2)"
    )
    files.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint in DIR; without any, begin"
    )
    files.add_argument(
        "--json",
        metavar="FILE",
        help="write there: strategy, ranks, seed, accuracy, seconds, steps, samples, bytes_sent (for each rank, the "
        "bytes of the vectors that it gave to collectives or messages), weights_sha256 (of rank 0's parameters), "
        "stopped (by which signal); with --mesh also mesh, pipeline, micro_batches, bubble (measured and by the "
        "schedule's formula) and activation_bytes (the most that each stage held) of rank 0's pipeline; with several "
        "tasks, all that for each in the list tasks",
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
        type=number(int, 1),
        metavar="N",
        help="samples per step of all ranks together (default: 32 per rank)",
    )
    data.add_argument(
        "--epochs", type=number(int, 1), default=30, metavar="N", help="passes over the data (default: %(default)s)"
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
        type=number(float, 0, strict=True),
        default=0.02,
        metavar="X",
        help="learning rate of one rank, before scaling (default: %(default)s)",
    )
    model.add_argument(
        "--scale-lr",
        choices=RULES,
        default="linear",
        help="multiply the learning rate by the number of ranks whose gradients the strategy averages (linear, "
        "default), by its root (sqrt), or not (none)",
    )
    model.add_argument(
        "--warmup",
        type=number(float, 0),
        default=3.0,
        metavar="EPOCHS",
        help="epochs in which the rate grows from --lr to the scaled one (default: %(default)s)",
    )
    model.add_argument(
        "--momentum", type=number(float, 0), default=0.9, metavar="X", help="momentum, below 1 (default: %(default)s)"
    )
    model.add_argument(
        "--weight-decay", type=number(float, 0), default=1e-4, metavar="X", help="weight decay (default: %(default)s)"
    )
    model.add_argument(
        "--seed", type=number(int, 0), default=0, metavar="N", help="same seed, same ranks: same bits (default: 0)"
    )


def _add_strategy(group: argparse._ArgumentGroup) -> None:
    add_choice(group, default="allreduce")
    group.add_argument("--list", action=_List, nargs=0, help="print all strategies with their options, and end")
    group.add_argument("--no-control", action="store_true", help="leave out the control without communication")
