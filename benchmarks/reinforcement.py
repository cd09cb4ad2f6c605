"""Reinforcement learning by several seeds: who solves an environment, after how many steps, with how many bytes.

    python benchmarks/reinforcement.py --check           dqn, apex and gorila on CartPole, 5 seeds; 1 beyond the limits
    python benchmarks/reinforcement.py --algorithms apex --env Acrobot-v1 --set max_steps=100000
    python benchmarks/reinforcement.py --actors 1:6      steps and updates per second of Ape-X, by its actors

Each run is `python -m collectives rl` under mpiexec, on --ranks ranks; dqn has one. `steps` are the environment steps
until the run ended, `return` the mean of 100 greedy episodes then. --actors runs Ape-X with one shard and no rate
limiter to speak of (ratio=1), for --steps steps; `fewest` and `most` are the steps of single actors.

--check: apex and gorila solve the environment with all seeds but one, dqn is only shown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from collectives.launch.usage import sizes

ALGORITHMS = ("dqn", "apex", "gorila")
LIMIT = 3600  # seconds of a run


def run(algorithm: str, ranks: int, options: list[str]) -> dict[str, Any]:
    """The result of one run. RuntimeError, with what it printed, if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        launcher = ["mpiexec", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
        command = [*launcher, sys.executable, "-m", "collectives", "rl", algorithm, *options, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def seeds(args: argparse.Namespace, more: list[str]) -> list[dict[str, Any]]:
    """Runs of all algorithms and seeds; prints a line for each."""
    print("algorithm  ranks  seed     steps   updates   seconds    return  bytes/step  solved", flush=True)
    results = []
    for algorithm in args.algorithms:
        for seed in range(args.seeds):
            found = run(algorithm, 1 if algorithm == "dqn" else args.ranks, [*more, "--seed", str(seed)])
            results.append(found)
            print(
                f"{algorithm:9} {found['ranks']:6} {seed:5} {found['env_steps']:9} {found['updates']:9} "
                f"{found['seconds']:9.1f} {found['mean_return']:9.1f} {found['bytes_per_step']:11.1f}  "
                f"{'yes' if found['solved'] else 'no'}",
                flush=True,
            )
    return results


def actors(args: argparse.Namespace, more: list[str]) -> list[dict[str, Any]]:
    """Runs of Ape-X with several numbers of actors; prints a line for each."""
    print("actors  steps/s  updates/s  fewest  most", flush=True)
    results = []
    whole = ["--set", f"max_steps={args.steps}", "--set", f"evaluate_every={args.steps}", "--set", "trials=1"]
    for count in args.actors:
        found = run("apex", 2 + count, [*whole, "--set", "episodes=1", "--set", "ratio=1", *more])
        results.append(found)
        taken, seconds = found["actor_steps"], found["trials"][0]["seconds"]
        print(
            f"{count:6} {found['env_steps'] / seconds:8.0f} {found['updates'] / seconds:10.0f} {min(taken):7} "
            f"{max(taken):5}",
            flush=True,
        )
    return results


def main() -> int:
    """Run, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=list(ALGORITHMS), metavar="A,B")
    parser.add_argument("--env", default="CartPole-v1", metavar="NAME")
    parser.add_argument("--ranks", type=int, default=4, metavar="N")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--actors", type=sizes, metavar="P", help="numbers of actors: 1:6, 1,2,4")
    parser.add_argument("--steps", type=int, default=20_000, metavar="N")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    more = ["--env", args.env, *(word for text in args.set for word in ("--set", text))]
    results = seeds(args, more) if args.actors is None else actors(args, more)
    if args.json is not None:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    failed = 0
    for algorithm in set(args.algorithms) - {"dqn"} if args.check else ():
        solved = sum(found["solved"] for found in results if found["algorithm"] == algorithm)
        print(f"{algorithm}: solved with {solved} of {args.seeds} seeds")
        failed += solved < args.seeds - 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
