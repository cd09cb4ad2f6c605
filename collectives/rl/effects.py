"""Which options and settings have an effect in a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from .options import add_arguments
from .settings import Settings, settings
from .tasks import Task

#: The only algorithms for which an option or a setting has an effect.
_ALGORITHMS = {
    "lockstep": ("apex", "gorila"),
    "clip": ("dqn", "apex"),
    **dict.fromkeys(("epsilon_first", "epsilon_last", "epsilon_steps"), ("dqn", "gorila")),
    **dict.fromkeys(("shards", "chunk", "fetch_every", "ahead", "envs", "epsilon_base", "epsilon_alpha"), ("apex",)),
    **dict.fromkeys(("servers", "oldest", "deviations"), ("gorila",)),
}


def check_effects(args: argparse.Namespace, numbers: Settings, chosen: Task) -> None:
    """Raise ValueError for an option or a setting that is not its default, and has no effect."""
    parser, usual = argparse.ArgumentParser(), settings(args.algorithm, args.env)
    add_arguments(parser)
    for name, where in _without_effect(args, numbers, chosen):
        if hasattr(usual, name):
            if getattr(numbers, name) != getattr(usual, name):
                raise ValueError(f"--set {name} has no effect {where}")
        elif getattr(args, name) != parser.get_default(name):
            raise ValueError(f"--{name} has no effect {where}")


def _without_effect(args: argparse.Namespace, numbers: Settings, chosen: Task) -> Iterator[tuple[str, str]]:
    """The options and settings that have no effect, each with where it has none."""
    for name, algorithms in _ALGORITHMS.items():
        if args.algorithm not in algorithms:
            yield name, f"with {args.algorithm}"
    if args.lockstep:
        yield "ahead", "with --lockstep"
        yield "oldest", "with --lockstep"
    if not numbers.prioritised:
        yield "alpha", "without --set prioritised=true"
        yield "beta", "without --set prioritised=true"
    if not chosen.form.stacked:
        yield "convolutions", f"on {chosen.name}, which has no frames"
    if not chosen.name.startswith("ALE/"):
        yield "side", f"on {chosen.name}, which is no game of ALE"
