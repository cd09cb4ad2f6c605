"""The job of ``python -m collectives compare``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from ...drawing import require_matplotlib
from ...files import made_folder
from ..agree import is_own, on_rank_0, raise_on_all
from ..cli.choice import Choice, assignments, with_options
from ..cli.command import Say, run_command
from ..cli.result import check_json, write_json
from ..cli.task import Task
from ..run.plot import COLUMNS, draw_curves
from .gains import gains
from .limits import check_reference, misses, pace_misses
from .pace import Pace
from .report import rows, table
from .training import Values, train

ALONE = Choice("nocomm", {})  # the strategy of one process
NAP = 0.01  # seconds between looks of ranks that wait for one process alone
MISSED = 1  # exit status
BYTES = ("bytes", "bytes sent by a rank")


def _prepared(args: argparse.Namespace, comm: Any) -> list[Choice]:
    """The strategies, after all that needs no data has been checked on all ranks."""
    given = assignments(args.option)
    found, unknown = with_options(args.strategies, given)
    if unknown:
        raise ValueError(f"none of the strategies has an option {unknown[0]!r}")
    for choice in found:
        choice.check(comm.size)
    if args.check:
        check_reference(found)
    if len(set(map(str, found))) < len(found):
        raise ValueError("a strategy is given twice, with the same options")
    for rank in args.straggler:
        if rank >= comm.size:
            raise ValueError(f"--straggler {rank}: the ranks are 0 to {comm.size - 1}")
    if args.straggler and not args.step:
        raise ValueError("--straggler needs a --step above 0")

    def files() -> None:
        check_json(args.json)
        if args.out is not None:
            require_matplotlib()
            made_folder(args.out)

    on_rank_0(comm, files)
    return found


def _alone(task: Task, args: argparse.Namespace, seed: int, batch: int, pace: Pace, comm: Any) -> Values:
    """The training of one process, rank 0, while the others sleep. Collective. All ranks raise an error of it."""
    single = comm.Split(comm.rank)
    found: Values = {}
    failure: Exception | None = None
    if comm.rank == 0:
        try:
            found = train(task, ALONE, seed, args.epochs, batch, pace.alone(), single, batch / pace.samples)
        except Exception as error:
            if not is_own(error):
                raise
            failure = error
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(NAP)
    raise_on_all(comm, failure)
    single.Free()
    values: Values = comm.bcast(found, root=0)
    return values


def _job(args: argparse.Namespace, comm: Any, say: Say) -> int:
    choices = _prepared(args, comm)
    task = Task(args, comm, say)
    pace = Pace(args.step, task.batch / comm.size, args.straggler, args.jitter)
    say(f"{task.model}, {args.dtype}, {comm.size} ranks, global batch {task.batch}, {args.epochs} epochs\n")
    small = max(1, task.batch // comm.size)
    alone = list(dict.fromkeys([small, task.batch]))
    runs: dict[str, list[Values]] = {}

    def add(label: str, run: Values) -> None:
        runs.setdefault(label, []).append(run)
        say(f"{label}, seed {run['seed']}: accuracy {run['accuracy']:.4f} in {run['seconds']:.1f} s")

    for seed in range(args.seed, args.seed + args.seeds):
        for batch in alone:
            add(_label(batch), _alone(task, args, seed, batch, pace, comm))
        for choice in choices:
            add(str(choice), train(task, choice, seed, args.epochs, task.batch, pace, comm))
    found = rows(runs, [_label(batch) for batch in alone], args.target)
    say("\n" + table(found, args.target))
    labelled = {row.label: row for row in found}
    paces = gains(choices, labelled, pace, task.batch, comm.size)
    if paces:
        say("\n".join(["", *(gain.text for gain in paces)]))
    about = {
        "ranks": comm.size,
        "batch": task.batch,
        "epochs": args.epochs,
        "model": task.model,
        "data": task.data.name,
    }
    about |= {"step": args.step, "straggler": args.straggler, "jitter": args.jitter, "shard": args.shard}
    result = {
        "comparison": about,
        "table": [row._asdict() for row in found],
        "gains": [gain._asdict() for gain in paces],
        "runs": [run for each in runs.values() for run in each],
    }
    on_rank_0(comm, lambda: _write(args, result, runs))
    missed = [*misses(choices, labelled), *pace_misses(paces, bool(args.straggler))] if args.check else []
    for line in missed:
        say(f"missed: {line}")
    return MISSED if missed else 0


def _label(batch: int) -> str:
    return f"one process, batch {batch}"


def _write(args: argparse.Namespace, result: Values, runs: dict[str, list[Values]]) -> None:
    """Write the files; the picture has the trainings with the first seed."""
    if args.json is not None:
        write_json(args.json, result)
    if args.out is None:
        return
    write_json(str(Path(args.out) / "compare.json"), result)
    curves = {label: {"settings": {"label": label}, "records": each[0]["records"]} for label, each in runs.items()}
    about = result["comparison"]
    title = f"{about['data']}: {about['model']} on {about['ranks']} ranks, {about['shard']} shards"
    draw_curves({"runs": curves}, Path(args.out) / "compare.png", title, columns=[*COLUMNS, BYTES])
    print(f"wrote {Path(args.out) / 'compare.json'} and {Path(args.out) / 'compare.png'}", flush=True)


def main(args: argparse.Namespace, comm: Any = None) -> int:
    """Run ``compare`` with parsed `args` on `comm` (default: the world). Collective.

    Returns the exit status: 0; 1 if ``--check`` finds a limit missed; 2 after an error that all ranks raise and rank 0
    prints.
    """
    return run_command("compare", _job, args, comm)
