"""Simulated times beside measured ones, on hosts whose links are slow: how far `simulate` can be trusted.

    python benchmarks/simulated.py --hosts 4,8 --rate 200mbit

makes hosts on this machine (tests/support/faults.py: network namespaces, needs root), and runs a job of one MPI there.
The job times point-to-point messages, from which the parameters of the model are fitted, and then every algorithm of a
collective. No time of a collective enters the fit. Every call is simulated as the library runs it: in the same order of
ranks, with the same segments. Each round measures all calls once, in an order drawn for that round; shown are medians
of the largest time over the ranks. Before each call every rank sends more than its link lets through at once, so that
the call meets the link's lasting rate.

A line shows measured and simulated milliseconds, and the error of the latter. `wins` marks the fastest algorithm of a
length and `predicted` the one that the simulation names, of equal ones that with the fewest changes of partner
(collectives/simulation/winner.py). With --check the exit code is 1 if the median error is above 15 %, or if a predicted
algorithm takes over 10 % longer than the fastest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))

from _peers_jobs import ENVIRONMENTS, ROOT, VARIABLES, last_words, python_of
from _peers_report import parse_size, size_name
from faults import Hosts

from collectives.files import write_json
from collectives.launch.usage import file_to_write
from collectives.runtime.mpi_context import DEPTH
from collectives.schedules import registry
from collectives.schedules.registry import ScheduleAlgorithm
from collectives.selection.policy import Choice, Demand, Rules, choose, segments_for
from collectives.simulation.network import Network, placed
from collectives.simulation.simulate import simulate
from collectives.simulation.winner import changes, winner

WORKER = Path(__file__).with_name("_simulated_worker.py")
FORWARDED = ("PYTHONPATH", *VARIABLES)
MOST_ERROR, MOST_LOSS = 0.15, 1.10


class Line(NamedTuple):
    """One call on one set of ranks: seconds measured and simulated. ``changes``: of rank 0, see winner.py."""

    hosts: int
    ranks: int
    collective: str
    algorithm: str
    nbytes: int
    measured: float
    simulated: float
    changes: int

    @property
    def error(self) -> float:
        """Relative error of the simulated time."""
        return self.simulated / self.measured - 1


# --- measurement --------------------------------------------------------------------------------------------------


def measured(args: argparse.Namespace, hosts: int, each: int) -> dict[str, Any]:
    """What the job found: see ``_simulated_worker.py``."""
    environment = {**os.environ, **VARIABLES, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as name, Hosts(hosts, args.rate) as rig:
        folder = Path(name)
        asked = {"each": each, "collectives": args.collectives, "sizes": args.sizes, "rounds": args.rounds}
        (folder / "asked").write_text(json.dumps(asked))
        launcher = [str(ENVIRONMENTS / args.mpi / "bin/mpiexec"), *rig.flags(args.mpi, folder, each, FORWARDED)]
        oversubscribe = ["--oversubscribe"] if args.mpi == "openmpi" else []
        program = [str(python_of(args.mpi)), str(WORKER), str(folder)]
        line = [*launcher, *oversubscribe, "-n", str(hosts * each), *program]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"the job failed: {last_words(done.stdout + done.stderr)}")
        found: dict[str, Any] = json.loads((folder / "found").read_text())
        return found


# --- simulation ---------------------------------------------------------------------------------------------------


def chosen(collective: str, name: str, hosts: np.ndarray, nbytes: int) -> Choice:
    """The call as the library makes it if ``name`` is asked for."""
    return choose(Rules(hosts=hosts.tobytes()), Demand(collective, nbytes, name, apart="they are on several hosts"))


def simulated(network: Network, collective: str, name: str, nbytes: int) -> tuple[float, int]:
    """Seconds of a call, with the segments that the library would use, and the changes of rank 0."""
    choice = chosen(collective, name, network.hosts, nbytes)
    assert isinstance(choice.algorithm, ScheduleAlgorithm)
    segments = segments_for(choice, network.size, nbytes, DEPTH)
    outcome = simulate(choice.algorithm, network, nbytes, segments=segments, in_flight=DEPTH)
    return outcome.seconds, changes(choice.algorithm, network.size)


def lines(found: Mapping[str, Any], hosts: int, each: int) -> list[Line]:
    """A line for each call of the job."""
    network = Network(placed(hosts * each, hosts), **found["network"])
    made = []
    for collective, name, nbytes, seconds in found["calls"]:
        here = statistics.median(seconds)
        made.append(
            Line(hosts, hosts * each, collective, name, nbytes, here, *simulated(network, collective, name, nbytes))
        )
    return made


# --- report -------------------------------------------------------------------------------------------------------


def show(network: Mapping[str, float], found: Sequence[Line]) -> list[float]:
    """Print one set of ranks; returns what each predicted algorithm takes, as a multiple of the fastest one's time."""
    rates = ", ".join(f"{name} {network[name] / 1e6:.4g} MB/s" for name in ("beta", "local_beta", "fold"))
    times = ", ".join(f"{name} {network[name] * 1e6:.3g} us" for name in ("alpha", "local_alpha", "overhead"))
    burst = f"burst {network['burst'] / 1e3:.4g} kB"
    print(f"{found[0].hosts} hosts, {found[0].ranks} ranks; fitted: {times}, {rates}, {burst}")
    print(f"{'collective':15} {'algorithm':22}{'bytes':>8}{'measured':>10}{'simulated':>11}{'error':>8}")
    losses = []
    for key in dict.fromkeys((line.collective, line.nbytes) for line in found):
        group = [line for line in found if (line.collective, line.nbytes) == key]
        fastest = min(group, key=lambda x: x.measured)
        named = group[winner([x.simulated for x in group], [x.changes for x in group])]
        losses.append(named.measured / fastest.measured)
        for line in group:
            mark = "  wins" * (line is fastest) + "  predicted" * (line is named)
            print(
                f"{line.collective:15} {line.algorithm:22}{size_name(line.nbytes):>8}{line.measured * 1e3:10.1f}"
                f"{line.simulated * 1e3:11.1f}{line.error:+8.1%}{mark}"
            )
    print(
        f"median error {median_error(found):.1%}; a predicted algorithm takes at most {max(losses):.2f} times the best"
    )
    return losses


def median_error(found: Sequence[Line]) -> float:
    """The median of the errors, without their signs."""
    return statistics.median(abs(line.error) for line in found)


def numbers(text: str) -> list[int]:
    """Numbers joined by commas."""
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    """The options; an error if this machine cannot have hosts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hosts", type=numbers, default=[4, 8], help="numbers of hosts (4,8)")
    add("--ranks-per-host", type=numbers, default=[1], help="numbers of ranks on each (1)")
    add("--rate", default="200mbit", help="of each link, as for tc (%(default)s)")
    add("--mpi", choices=("openmpi", "mpich", "impi"), default="openmpi", help="of .venvs (%(default)s)")
    add("--collectives", type=lambda text: text.split(","), default=["allreduce"], help="(allreduce)")
    add("--sizes", type=lambda text: [parse_size(part) for part in text.split(",")],
        default=[1 << k for k in range(19, 24)], help="bytes of the vector (512Ki,1Mi,2Mi,4Mi,8Mi)")  # fmt: skip
    add("--rounds", type=int, default=5, help="(%(default)s)")
    add("--json", type=file_to_write, metavar="FILE", help="write all that was measured and simulated")
    add("--check", action="store_true", help="exit 1 if the simulation is off")
    args = parser.parse_args()
    try:
        Hosts(max(args.hosts), args.rate)
    except RuntimeError as e:
        parser.error(str(e))
    for collective in args.collectives:
        registry.algorithms(collective)
    return args


def main() -> int:
    """Measure, simulate, print."""
    args = arguments()
    made: list[Line] = []
    losses: list[float] = []
    kept = []
    for hosts in args.hosts:
        for each in args.ranks_per_host:
            found = measured(args, hosts, each)
            here = lines(found, hosts, each)
            losses += show(found["network"], here)
            made += here
            kept.append({**found, "lines": [line._asdict() for line in here]})
    wrong = sum(loss > MOST_LOSS for loss in losses)
    print(
        f"all {len(made)} calls: median error {median_error(made):.1%}; the predicted algorithm is within 10 % of the "
        f"fastest in {len(losses) - wrong} of {len(losses)} cases"
    )
    if args.json:
        write_json(args.json, kept)
    return int(args.check and (wrong > 0 or median_error(made) > MOST_ERROR))


if __name__ == "__main__":
    raise SystemExit(main())
