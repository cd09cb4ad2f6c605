"""Compares the messages of `collectives` and of Gloo without MPI: dist.send and dist.recv between two ranks of a node.

    make build .venvs/torch/ready
    PYTHONPATH=$PWD:$PWD/benchmarks .venvs/torch/bin/torchrun --nproc-per-node 2 benchmarks/torch_messages.py
    ... benchmarks/torch_messages.py --sizes 8,1Mi --rounds 31
    ... benchmarks/torch_messages.py --check                               exit 1 when a target is missed

Both backends have a group of their own over the same processes. In every round the two take turns at each size, in an
order drawn for that round, with a batch of at least --batch ms. `ping-pong` is half the time of a message there and
back, by blocking calls. `window` is the time of a message of 16 that are under way at once (isend, irecv). A ratio is
our time divided by Gloo's. Ratios are taken round by round; shown are their median, and the 95 % confidence interval of
that median.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import _peers_report as report
import torch
import torch.distributed as dist

import collectives.torch  # noqa: F401  registers the backend

NAMES = ("collectives", "gloo")
WINDOW = 16
Call = Callable[[], None]


def ping_pong(nbytes: int, group: Any) -> Call:
    """A message there and back, whose data have been checked once."""
    tensor, rank = torch.full((nbytes,), 1 + dist.get_rank(), dtype=torch.uint8), dist.get_rank()

    def call() -> None:
        if rank == 0:
            dist.send(tensor, 1, group=group)
            dist.recv(tensor, 1, group=group)
        else:
            dist.recv(tensor, 0, group=group)
            dist.send(tensor, 0, group=group)

    call()
    if not tensor.eq(1).all():
        raise AssertionError(f"{nbytes} bytes: wrong data")
    return call


def window(nbytes: int, group: Any) -> Call:
    """Messages from rank 0 to rank 1, several at once."""
    tensors, rank = [torch.zeros(nbytes, dtype=torch.uint8) for _ in range(WINDOW)], dist.get_rank()

    def call() -> None:
        begin = dist.isend if rank == 0 else dist.irecv
        for work in [begin(tensor, 1 - rank, group=group) for tensor in tensors]:
            work.wait()

    return call


KINDS = {"ping-pong": (ping_pong, 2), "window": (window, WINDOW)}  # and the messages of a call


def batch(call: Call, count: int, group: Any) -> float:
    """Mean seconds of a call on this rank."""
    call()
    dist.barrier(group)
    begin = time.perf_counter()
    for _ in range(count):
        call()
    dist.barrier(group)
    return (time.perf_counter() - begin) / count


def agreed(count: float) -> int:
    """Rank 0's number of calls, at least one."""
    value = torch.tensor([max(1, round(count))])
    dist.broadcast(value, 0)
    return int(value.item())


def compare(calls: dict[str, Call], groups: dict[str, Any], rounds: int, least: float) -> dict[str, list[float]]:
    """The seconds of a call of both backends, by rounds; a batch takes at least ``least`` seconds."""
    counts, times = {}, {name: [] for name in calls}  # type: dict[str, int], dict[str, list[float]]
    for name, call in calls.items():
        counts[name] = agreed(least / batch(call, 3, groups[name]))
        counts[name] = agreed(least / batch(call, counts[name], groups[name]))
    for number in range(rounds):
        for name in random.Random(number).sample(list(calls), len(calls)):  # the same on both ranks
            times[name].append(batch(calls[name], counts[name], groups[name]))
    return times


def options(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = [8, 1 << 10, 16 << 10, 256 << 10, 4 << 20]
    parser.add_argument(
        "--sizes", type=lambda text: [report.parse_size(word) for word in text.split(",")], default=default,
        help="lengths in bytes: 8,16Ki,4Mi",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=15, help="rounds (%(default)s)")
    parser.add_argument("--batch", type=float, default=20.0, help="milliseconds of a batch, at least (%(default)s)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    return parser.parse_args(words)


def main() -> int:
    """Measure and print; 1 when a target is missed and --check is given."""
    args = options(None)
    torch.set_num_threads(1)
    dist.init_process_group("collectives")
    if dist.get_world_size() != 2:
        raise SystemExit("torch_messages.py: start it on 2 ranks")
    groups, goals = {"collectives": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}, []
    if dist.get_rank() == 0:
        print(f"{'':>18}{'ours':>12}{'gloo':>12}   ours/gloo [95 %], us, {args.rounds} rounds")
    for kind, (make, messages) in KINDS.items():
        for nbytes in args.sizes:
            calls = {name: make(nbytes, groups[name]) for name in NAMES}
            times = compare(calls, groups, args.rounds, args.batch / 1e3)
            ratio, what = report.ratio(times["collectives"], times["gloo"]), f"{kind} {report.size_name(nbytes)}"
            ours, gloo = (report.micro(statistics.median(times[name]) / messages) for name in NAMES)
            goals.append(report.Target(kind, f"{what}: ratio", ratio.median, 1.0))
            if dist.get_rank() == 0:
                print(f"{what:>18}{ours:>12}{gloo:>12}   {ratio}", flush=True)
    if dist.get_rank() == 0:
        print("", *goals, sep="\n")
    dist.destroy_process_group()
    return int(args.check and any(goal.verdict != "PASS" for goal in goals))


if __name__ == "__main__":
    sys.exit(main())
