"""The options of ``python -m collectives rl``."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from .settings import ALGORITHMS, Settings

DESCRIPTION = """\
Learn to act in an environment of Gymnasium. dqn is one process. apex has a learner (rank 0), shards of a prioritised
replay (the next ranks) and actors (all others). gorila has bundles of an actor, a replay and a learner, and a parameter
server (the last ranks). A run ends when the mean return of greedy episodes reaches the environment's threshold, or
after max_steps environment steps."""
EPILOG = """\
examples:
  python -m collectives rl dqn --env CartPole-v1 --seed 0
  mpiexec -n 4 python -m collectives rl apex --env CartPole-v1 --json apex.json --picture apex.png
  mpiexec -n 4 python -m collectives rl gorila --env CartPole-v1 --set lr=1e-3 --set hidden=64,64
  mpiexec -n 4 python -m collectives rl apex --checkpoints out      saves; with --resume it goes on

exit status: 0; 2 after an error."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``rl`` to `parser`."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("algorithm", choices=ALGORITHMS)
    parser.add_argument("--env", default="CartPole-v1", metavar="NAME", help="environment (default: %(default)s)")
    parser.add_argument("--seed", type=_natural, default=0, metavar="N", help="seed of all randomness (default: 0)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"a setting; may be repeated: {', '.join(field.name for field in fields(Settings))}",
    )
    ranks = parser.add_argument_group("ranks")
    ranks.add_argument("--shards", type=int, default=1, metavar="N", help="apex: shards of the replay (default: 1)")
    ranks.add_argument("--servers", type=int, default=1, metavar="N", help="gorila: parameter servers (default: 1)")
    ranks.add_argument(
        "--lockstep",
        action="store_true",
        help="apex, gorila: ranks wait for each other: same seed, same ranks, same bits",
    )
    files = parser.add_argument_group("files")
    files.add_argument(
        "--json",
        metavar="FILE",
        help="write there: algorithm, ranks, env, seed, env_steps, updates, seconds, mean_return (of the greedy "
        "episodes at the end), solved, trials (the evaluations on the way), bytes (by path), counted_steps (in which "
        "they were sent), bytes_per_step",
    )
    files.add_argument("--picture", metavar="FILE", help="draw the evaluations, and the bytes by path (.png or .svg)")
    files.add_argument("--experience", metavar="FILE", help="fill the replay with what --record has written")
    files.add_argument("--record", metavar="FILE", help="write what the replay has at the end (.npz)")
    files.add_argument(
        "--checkpoints",
        metavar="DIR",
        help="save there after each evaluation; the newest is kept; without --resume there must be none yet",
    )
    files.add_argument("--resume", action="store_true", help="go on from the checkpoint in DIR; without any, begin")


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def given(texts: list[str]) -> dict[str, Any]:
    """The settings in the arguments of ``--set``. ValueError for what is no setting or no value of it."""
    known = {field.name: field.default for field in fields(Settings)}
    optional = {field.name for field in fields(Settings) if "None" in str(field.type)}
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise ValueError(f"--set {text}: expected NAME=VALUE with one of {', '.join(known)}")
        try:
            found[name] = None if value == "none" and name in optional else _value(value, known[name])
        except ValueError as error:
            raise ValueError(f"--set {text}: {error}") from None
    return found


def _value(text: str, like: Any) -> Any:
    """The value of `text`, of the type of `like`."""
    if isinstance(like, bool):
        if text not in ("true", "false"):
            raise ValueError("expected true or false")
        return text == "true"
    if isinstance(like, tuple):
        return tuple(int(part) for part in text.split(","))
    return type(like)(text)
