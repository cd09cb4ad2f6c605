"""``python -m collectives.train.threads -n RANKS prog.py ...``: a program on ranks that are threads."""

import argparse

from .running import run_script

parser = argparse.ArgumentParser(
    prog="python -m collectives.train.threads",
    description="Run a training script on ranks that are threads of one process. Rank 0 is the main thread.",
)
parser.add_argument("-n", type=int, required=True, metavar="RANKS", help="number of ranks")
parser.add_argument(
    "--timeout", type=float, default=300.0, metavar="S", help="seconds that a rank waits for others; 0: for ever"
)
parser.add_argument("program", help="the script, and its arguments")
parser.add_argument("arguments", nargs=argparse.REMAINDER)

if __name__ == "__main__":
    given = parser.parse_args()
    if given.n < 1:
        parser.error(f"-n must be at least 1, not {given.n}")
    run_script(given.n, given.program, given.arguments, timeout=given.timeout or None)
