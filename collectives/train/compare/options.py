"""The options of ``python -m collectives compare``."""

from __future__ import annotations

import argparse

from ..cli.choice import choices
from ..cli.options import add_task
from ..cli.values import number, stragglers

DESCRIPTION = """\
Train with several strategies on the same data, with the same seeds, and beside them one process alone. A table has
accuracy, time, bytes, scaling efficiency and the time to a given accuracy; a picture has loss and accuracy against
time, samples and bytes. Computation is emulated by sleeping, so that ranks need no cores of their own."""
EPILOG = """\
examples:
  mpiexec -n 4 python -m collectives compare --strategies allreduce,local_sgd:every=4,push_sum --out out
  mpiexec -n 4 python -m collectives compare --strategies allreduce,ad_psgd --straggler 1x4 --seeds 5 --json found.json
  mpiexec -n 4 python -m collectives compare --strategies all --seeds 5 --model mlp --check
  mpiexec -n 4 python -m collectives compare --strategies allreduce,peer_async,ssp --option beside=true \\
      --shard shuffled --model mlp --step 0.03 --straggler 1x4 --check

Ranks that wait for each other in each step make equally many steps. With other strategies a rank makes as many as it
can, until all ranks together have used the samples of --epochs.

exit status: 0; 1 if --check finds a limit missed; 2 after an error."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``compare`` to `parser`."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    group = parser.add_argument_group("strategies")
    group.add_argument(
        "--strategies", type=choices, required=True, metavar="NAME[:OPTION=VALUE]...,...",
        help="the strategies, which 'train --list' names: allreduce,local_sgd:every=8; or all",
    )  # fmt: skip
    group.add_argument(
        "--option", action="append", default=[], metavar="OPTION=VALUE", help="for all strategies that have it"
    )
    group.add_argument(
        "--seeds", type=number(int, 1), default=1, metavar="N", help="trainings with seeds from --seed on (%(default)s)"
    )
    group.add_argument(
        "--target", type=number(float, 0), default=0.9, metavar="X", help="accuracy that is timed (%(default)s)"
    )
    group.add_argument(
        "--check", action="store_true",
        help="exit 1 if a strategy's accuracy is more than 0.01 (EASGD: 0.04) below that of allreduce, or that of "
        "nocomm not below 0.5; with --straggler or --jitter also if the pace misses its limit: 0.8 of the ideal one "
        "where nobody waits; with a bound on staleness about that of allreduce with a straggler, without one at least "
        "half of what not waiting would gain",
    )  # fmt: skip
    _add_pace(parser.add_argument_group("computation"))
    add_task(parser)
    files = parser.add_argument_group("files")
    files.add_argument("--out", metavar="DIR", help="write compare.png and compare.json there")
    files.add_argument("--json", metavar="FILE", help="write all results there")


def _add_pace(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--step", type=number(float, 0), default=0.01, metavar="SECONDS",
        help="a rank sleeps so long for its part of a batch, besides what the network really takes; for more or fewer "
        "samples in proportion (%(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--straggler", type=stragglers, default={}, metavar="RANKxFACTOR", help="slower ranks: 1x4, or 1x4,2x1.5"
    )
    group.add_argument(
        "--jitter", type=number(float, 0), default=0.0, metavar="SECONDS",
        help="mean of a random part of each step, exponentially distributed (%(default)s)",
    )  # fmt: skip
