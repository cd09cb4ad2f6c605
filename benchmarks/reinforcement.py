"""Reinforcement learning by several seeds: who solves an environment, after how many steps, with how many bytes.

    python benchmarks/reinforcement.py --check           dqn, apex and gorila on CartPole, 5 seeds; 1 beyond the limits
    python benchmarks/reinforcement.py --check --algorithms apex --env Acrobot-v1
    python benchmarks/reinforcement.py --check --algorithms apex --env ALE/Pong-v5 --seeds 1
    python benchmarks/reinforcement.py --check --actors 1:6      Ape-X's pace, by its actors

Each run is `python -m collectives rl` under mpiexec, on --ranks ranks; dqn has one. `steps` are the environment steps
until the run ended, `return` the mean of the greedy episodes then. As many episodes of random actions come before. A
step of a game of ALE is 4 frames. --actors runs Ape-X with one shard and no rate limiter to speak of (ratio=1), for
--steps steps; `fewest` and `most` are the steps of single actors. What the runs print comes on stderr.

--check: apex and gorila solve the environment, for all seeds but one, within the steps that the settings of the
environment allow. Without a threshold for "solved", the mean return must be above the best episode of random actions.
With --actors, no actor takes fewer than half as many steps as another one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from collectives import rl, train
from collectives.files import write_json
from collectives.launch.usage import file_to_write, sizes
from collectives.rl.options import given

ALGORITHMS = ("dqn", "apex", "gorila")
LIMIT = 4 * 3600  # seconds of a run
SHARE = 0.5  # the least steps of an actor, as a share of those of another one


def run(algorithm: str, ranks: int, options: list[str]) -> dict[str, Any]:
    """The result of one run. RuntimeError, with what it printed, if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        mpiexec = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        launcher = [str(mpiexec), "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
        command = [*launcher, sys.executable, "-m", "collectives", "rl", algorithm, *options, "--json", str(path)]
        done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def random_returns(env: str, sets: list[str]) -> list[float]:
    """The returns of random actions, in as many episodes as there are at the end of a run."""
    numbers = rl.settings("apex", env, **given(sets))
    task = rl.task(env, actions=numbers.actions, side=numbers.side)
    nobody: Any = None  # is asked for values
    actor = rl.Actor(task, nobody, train.Random(0, "random", 0), 1, 1.0, lambda steps: 1.0)
    while len(actor.returns) < numbers.episodes:
        actor.play(100)
    actor.close()
    return actor.returns[: numbers.episodes]


def seeds(args: argparse.Namespace, more: list[str]) -> list[dict[str, Any]]:
    """Runs of all algorithms and seeds; prints a line for each."""
    print("algorithm  ranks  seed     steps   updates   seconds  steps/s    return  bytes/step  solved", flush=True)
    results = []
    for algorithm in args.algorithms:
        for seed in range(args.seeds):
            options = [*more, "--seed", str(seed)]
            if args.checkpoints is not None:
                options += ["--checkpoints", f"{args.checkpoints}/{algorithm}-{seed}", "--resume"]
            found = run(algorithm, 1 if algorithm == "dqn" else args.ranks, options)
            results.append(found)
            print(
                f"{algorithm:9} {found['ranks']:6} {seed:5} {found['env_steps']:9} {found['updates']:9} "
                f"{found['seconds']:9.1f} {found['env_steps'] / found['seconds']:8.0f} {found['mean_return']:9.1f} "
                f"{found['bytes_per_step']:11.1f}  {'yes' if found['solved'] else 'no'}",
                flush=True,
            )
    return results


def unmet_seeds(args: argparse.Namespace, results: list[dict[str, Any]], best: float) -> int:
    """How many algorithms miss what --check wants; prints what each reaches."""
    solvable, unmet = rl.task(args.env).threshold is not None, 0
    for algorithm in args.algorithms:
        mine = [found for found in results if found["algorithm"] == algorithm]
        good = sum(found["solved"] if solvable else found["mean_return"] > best for found in mine)
        print(f"{algorithm}: {'solved' if solvable else 'above random'} with {good} of {len(mine)} seeds")
        unmet += algorithm != "dqn" and good < max(1, len(mine) - 1)
    return unmet


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


def unmet_actors(results: list[dict[str, Any]]) -> int:
    """How many runs starved an actor."""
    return sum(min(found["actor_steps"]) < SHARE * max(found["actor_steps"]) for found in results)


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
    parser.add_argument("--checkpoints", metavar="DIR", help="runs save there, and go on from there if they were ended")
    parser.add_argument("--json", type=file_to_write, metavar="FILE")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    more = ["--env", args.env, *(word for text in args.set for word in ("--set", text))]
    if args.actors is None:
        random = random_returns(args.env, args.set)
        print(
            f"{args.env}; random actions, {len(random)} episodes: mean {np.mean(random):.1f}, best {max(random):.1f}",
            flush=True,
        )
        results = seeds(args, more)
        unmet = unmet_seeds(args, results, max(random))
    else:
        results = actors(args, more)
        unmet = unmet_actors(results)
    if args.json is not None:
        write_json(args.json, results)
    return int(args.check and unmet > 0)


if __name__ == "__main__":
    sys.exit(main())
