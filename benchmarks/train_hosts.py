"""Steps of `train` between hosts with slow links: how much of the communication the computation hides.

    sudo python benchmarks/train_hosts.py --check          two hosts, links of 200 Mbit/s; exit 1 beyond the limits
    sudo python benchmarks/train_hosts.py --mpis openmpi,mpich --ratio 2 --rounds 15

The hosts are network namespaces of this machine (tests/support/faults.py). Each has one rank, which computes with one
thread. The network has equal layers, which is the worst case for overlap: the gradients of the last layers come as late
as they can. The batch is chosen so that a step without communication takes --ratio times as long as the all-reduces of
a step. Contestants: `train` (train.AllReduce), `ddp` (DistributedDataParallel on the backend `collectives`), and `gloo`
(the same on Gloo, with torch's buckets and with buckets of 1 MiB). All must end with the same parameters.

In every round they take turns, in an order drawn for that round, with `compute` (a step without communication) and
`communicate` (the all-reduces of a step without computation). A turn is --steps steps, and the links rest before it.
`exposed` is (step - compute) / communicate. Shown are medians and minima over the rounds; ratios are taken round by
round, with the 95 % confidence intervals of their medians, and once more of the minima.

No step can hide all: a link rests until the first bucket is complete. With --ratio 1, in which a third of the
computation is the forward pass, that is 0.33 and the share of the first bucket.

--check: `exposed` of train is at most 0.5 (median), and train takes less time than both of gloo.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _peers_report as report
from hosts import BURST, MPIS, Hosts, job, per_second
from jobs import torch_for

from collectives.files import write_json
from collectives.launch.usage import file_to_write
from collectives.system import machine

WORKER = Path(__file__).with_name("_train_hosts_worker.py")
OTHERS = ("ddp", "gloo", "gloo, 1 MiB")
EXPOSED = 0.5  # the most of the communication that a step of train may show
SIMILAR = 1.25  # the most by which computation over communication may miss --ratio


@dataclass(frozen=True)
class Result:
    """What the job of one MPI measured: seconds of a step in each round, by contestant."""

    mpi: str
    nbytes: int
    buckets: int
    batch: int
    times: dict[str, list[float]]

    def exposed(self, name: str) -> report.Ratio:
        """The part of the communication that is not hidden: median and interval."""
        rows = zip(self.times[name], self.times["compute"], strict=True)
        return report.ratio([step - compute for step, compute in rows], self.times["communicate"])

    def exposed_at_best(self, name: str) -> float:
        """The same of the minima."""
        step, compute, communicate = (min(self.times[key]) for key in (name, "compute", "communicate"))
        return (step - compute) / communicate

    def lines(self, rate: float) -> list[str]:
        """The table."""
        bound = max(0.0, self.nbytes - BURST) / rate
        found = [
            f"{self.mpi}: {self.nbytes} bytes in {self.buckets} buckets, at least {1e3 * bound:.0f} ms on the link; "
            f"batch {self.batch} on each rank; ms",
            f"{'':12}{'median':>9}{'minimum':>9}",
        ]
        for name, values in self.times.items():
            row = f"{name:12}{1e3 * statistics.median(values):9.1f}{1e3 * min(values):9.1f}"
            if name in ("train", *OTHERS):
                row += f"   exposed {self.exposed(name)}, of minima {self.exposed_at_best(name):.2f}"
            if name in OTHERS:
                least = min(self.times["train"]) / min(values)
                row += f"   train/{name} {report.ratio(self.times['train'], values)}, of minima {least:.2f}"
            found.append(row)
        return found

    def beyond(self, ratio: float) -> list[str]:
        """What is beyond the limits, as sentences."""
        times, found = self.times, []
        compared = report.ratio(times["compute"], times["communicate"]).median / ratio
        if not 1 / SIMILAR <= compared <= SIMILAR:
            found.append(f"{self.mpi}: computation over communication is {ratio * compared:.2f}, not about {ratio}")
        if (exposed := self.exposed("train")).median > EXPOSED:
            found.append(f"{self.mpi}: train shows {exposed} of the communication, limit {EXPOSED}")
        for name in ("gloo", "gloo, 1 MiB"):
            if (compared_with := report.ratio(times["train"], times[name])).median >= 1:
                found.append(f"{self.mpi}: train/{name} {compared_with}, limit 1")
        return found


def measure(mpi: str, hosts: Hosts, args: argparse.Namespace) -> Result:
    """What one job measured."""
    told = {name: getattr(args, name) for name in ("layers", "width", "rounds", "steps", "ratio")}
    told["rest"] = 2 * BURST / per_second(args.rate)
    env = {**torch_for(mpi), "GLOO_SOCKET_IFNAME": "eth0"}
    (record,) = job(mpi, hosts, [1, 1], WORKER, told, args.limit, env)
    return Result(mpi, **record)


def options() -> argparse.Namespace:
    """The arguments, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpis", default="openmpi", help=f"of {', '.join(MPIS)} (%(default)s)")
    parser.add_argument("--rate", default="200mbit", help="of each link, each way (%(default)s)")
    parser.add_argument("--layers", type=int, default=8, help="of the network (%(default)s)")
    parser.add_argument("--width", type=int, default=512, help="units of a layer (%(default)s)")
    parser.add_argument("--ratio", type=float, default=1.0, help="computation / communication (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contestant (%(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="steps of a turn (%(default)s)")
    parser.add_argument("--limit", type=int, default=290, help="seconds that a job may take (%(default)s)")
    parser.add_argument("--json", type=file_to_write, help="file for all that was found")
    parser.add_argument("--check", action="store_true", help="exit 1 beyond the limits")
    args = parser.parse_args()
    if unknown := set(args.mpis.split(",")) - set(MPIS):
        parser.error(f"--mpis: {', '.join(sorted(unknown))}: known are {', '.join(MPIS)}")
    if min(args.layers, args.width, args.rounds, args.steps) < 1 or args.ratio <= 0:
        parser.error("--layers, --width, --rounds, --steps, --ratio: positive numbers")
    try:
        args.per_second = per_second(args.rate)
    except ValueError as e:
        parser.error(str(e))
    return args


def main() -> int:
    """Measure and print; 1 with --check if something is beyond the limits, 77 if there can be no hosts here."""
    args = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the hosts are removed on the way out
    found: list[Result] = []
    try:
        made = Hosts(2, args.rate)
    except RuntimeError as e:
        print(f"skipped: {e}")
        return 77
    with made as hosts:
        for mpi in args.mpis.split(","):
            found.append(measure(mpi, hosts, args))
            print(*found[-1].lines(args.per_second), sep="\n", flush=True)
    beyond = [sentence for result in found for sentence in result.beyond(args.ratio)]
    print(*(beyond or ["nothing is beyond the limits"]), sep="\n")
    if args.json:
        results: dict[str, Any] = {result.mpi: vars(result) for result in found}
        write_json(args.json, {"machine": machine.describe(), "results": results})
    return int(args.check and bool(beyond))


if __name__ == "__main__":
    sys.exit(main())
