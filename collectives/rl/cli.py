"""``python -m collectives rl``: the job, and its result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .. import train
from ..files import unwritable, write_json
from ..train.agree import on_rank_0, together
from .apex.player import ApeX
from .course import Course, follow
from .dqn import DQN
from .effects import check_effects
from .experience import joined, read_experience, write_experience
from .gorila import Gorila
from .options import add_arguments, given
from .picture import check_picture, draw
from .saving import Checkpoints, prepare, saved
from .settings import Settings, settings
from .tasks import Task, task
from .transitions import Transitions

__all__ = ["add_arguments", "main"]

FAILED = 2  # exit status
ERRORS = (ValueError, OSError, ImportError)
Say = Callable[[str], None]


class NotSaved(Exception):
    """A checkpoint could not be written, as all ranks that train know."""


def main(args: argparse.Namespace, comm: Any = None) -> int:
    """Run ``rl`` with parsed `args` on `comm` (default: the world). Collective. Returns the exit status, 0 or 2."""
    comm = train.communicator(comm)

    def say(text: str) -> None:
        if comm.rank == 0:
            print(text, flush=True)

    try:
        _check(args, comm)
        numbers, chosen, recorded = together(comm, lambda: _prepared(args))
        player = _player(args, chosen, numbers, comm)
    except ERRORS as error:
        return _failed(str(error), comm)
    course = problem = None
    if player.trains:
        try:
            kept = _filled(args, player, recorded, numbers, comm, say)
        except ERRORS as error:  # on all ranks that train
            problem = str(error)
        else:
            try:
                course = follow(player, chosen, numbers, args.seed, say, lambda: _save(player, kept, comm))
            except (NotSaved, FloatingPointError) as error:  # others may be one rank's
                problem = str(error)
    player.close()
    ranks, comm = comm.size, comm if player.everyone is None else player.everyone
    problem = next((text for text in comm.allgather(problem) if text is not None), None)
    if problem is not None:
        return _failed(problem, comm)
    found, seen = _result(args, player, course, ranks), _seen(args, player, comm)
    try:
        on_rank_0(comm, lambda: _report(args, found, seen, say))
    except ERRORS as error:
        return _failed(str(error), comm)
    return 0


def _failed(text: str, comm: Any) -> int:
    if comm.rank == 0:
        print(f"rl: error: {text}", file=sys.stderr, flush=True)
    return FAILED


def _check(args: argparse.Namespace, comm: Any) -> None:
    """Raise on all ranks what can be known to be wrong before the run."""
    if args.algorithm == "dqn" and comm.size > 1:
        raise ValueError("dqn is one process: start it without mpiexec, or on one rank")
    if args.resume and args.checkpoints is None:
        raise ValueError("--resume needs a folder: --checkpoints DIR")
    on_rank_0(comm, lambda: _check_files(args))


def _check_files(args: argparse.Namespace) -> None:
    """Raise for files that cannot be written, and for a folder with checkpoints that the run does not go on from."""
    if (why := unwritable([args.json, args.picture, args.record])) is not None:
        raise OSError(why)
    if args.checkpoints is not None and not args.resume and saved(args.checkpoints):
        raise ValueError(
            f"{args.checkpoints} has checkpoints of an earlier run: go on from there with --resume, or give another "
            "folder"
        )
    if args.picture is not None:
        check_picture(args.picture)
    if args.checkpoints is not None:
        prepare(args.checkpoints)


def _prepared(args: argparse.Namespace) -> tuple[Settings, Task, Transitions | None]:
    """The settings, the task, and what was recorded, as this rank finds them."""
    numbers = settings(args.algorithm, args.env, **given(args.set))
    chosen = task(args.env, actions=numbers.actions, side=numbers.side)
    check_effects(args, numbers, chosen)
    if args.experience is None:
        return numbers, chosen, None
    return numbers, chosen, read_experience(args.experience, chosen.form, chosen.actions)


def _player(args: argparse.Namespace, chosen: Task, numbers: Settings, comm: Any) -> Any:
    if args.algorithm == "dqn":
        return DQN(chosen, numbers, args.seed)
    if args.algorithm == "apex":
        return ApeX(chosen, numbers, args.seed, comm, shards=args.shards, lockstep=args.lockstep)
    return Gorila(chosen, numbers, args.seed, comm, servers=args.servers, lockstep=args.lockstep)


def _filled(
    args: argparse.Namespace, player: Any, recorded: Transitions | None, numbers: Settings, comm: Any, say: Say
) -> Checkpoints | None:
    """Give the player what was recorded, or the state of a checkpoint. Collective over the ranks that train."""
    if recorded is not None and player.memory is not None:
        player.memory.recall(recorded)
    if args.checkpoints is None:
        return None
    names = ("algorithm", "env", "seed", "lockstep", "shards", "servers")
    described = {**{name: getattr(args, name) for name in names}, "settings": _plain(numbers)}
    kept = Checkpoints(args.checkpoints, described, tensors=numbers.library == "torch")
    state = kept.load(comm if player.comm is None else player.comm) if args.resume else None
    if state is not None:
        player.load_state_dict(state)
        say(f"goes on from the checkpoint of step {player.steps}")
    return kept


def _save(player: Any, kept: Checkpoints | None, alone: Any) -> None:
    """Save a checkpoint, if that is wanted; `alone` is a communicator of this rank if it trains alone. Collective.

    NotSaved on all ranks if the disk does not take it.
    """
    if kept is None:
        return
    state = player.state_dict()
    try:
        player.together(lambda comm: kept.save(alone if comm is None else comm, player.steps, state))
    except OSError as error:
        raise NotSaved(str(error)) from error


def _plain(numbers: Settings) -> dict[str, Any]:
    """The settings that runs must have in common that go on from each other's checkpoints, as JSON has them."""
    found = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(numbers).items()}
    del found["max_steps"]
    return found


def _seen(args: argparse.Namespace, player: Any, comm: Any) -> Transitions | None:
    """What the replays have, on rank 0, if it is to be recorded. Collective."""
    if args.record is None:
        return None
    parts = comm.gather(None if player.memory is None else player.memory.replay.storage.ordered(), root=0)
    return None if parts is None else joined([part for part in parts if part is not None])


def _result(args: argparse.Namespace, player: Any, course: Course | None, ranks: int) -> dict[str, Any]:
    """The values of ``--json``, whole on rank 0. Collective."""
    traffic, counts = player.traffic(), player.counts()
    if course is None:
        return {}
    final, counted = course.final, course.final.env_steps - player.counted_from
    return {
        "algorithm": args.algorithm,
        "ranks": ranks,
        "env": args.env,
        "seed": args.seed,
        **final._asdict(),
        "solved": course.solved,
        "trials": [trial._asdict() for trial in course.trials],
        "bytes": traffic,
        "counted_steps": counted,
        "bytes_per_step": sum(traffic.values()) / max(1, counted),
        **counts,
    }


def _report(args: argparse.Namespace, found: dict[str, Any], seen: Any, say: Say) -> None:
    """Print the result, and write the files, on rank 0. OSError, which names them, for those that cannot be written."""
    say(
        f"{args.algorithm}, {args.env}: mean greedy return {found['mean_return']:.1f} after {found['env_steps']} "
        f"environment steps and {found['updates']} updates in {found['seconds']:.1f} s"
        f"{', solved' if found['solved'] else ''}"
    )
    for path, count in found["bytes"].items():
        each = count / max(1, found["counted_steps"])
        say(f"{path:20} {count:12} bytes, {each:10.1f} for each environment step")
    problems = [
        _problem(args.json, lambda: write_json(args.json, found)),
        _problem(args.record, lambda: write_experience(args.record, seen)),
        _problem(args.picture, lambda: draw([found], args.picture)),
    ]
    if any(problems):
        raise OSError("; ".join(filter(None, problems)))


def _problem(path: str | None, write: Callable[[], None]) -> str | None:
    """Why ``write()`` has not written the file `path`; None if it has, and for a path of None."""
    if path is None:
        return None
    try:
        write()
    except ERRORS as error:
        return f"cannot write {path}: {getattr(error, 'strerror', None) or error}"
    return None
