"""``python -m collectives simulate``: times of algorithms, and of training, on networks that are not at hand."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from ..files import obstacle, replacing, say_where
from ..launch.usage import UsageError, changed, number_of_bytes, sizes
from ..schedules import registry
from ..schedules.registry import ScheduleAlgorithm
from ..selection.hosts import nearest
from . import strategy_cli
from .network import PLACEMENTS, Network, placed
from .rounds import TooMany
from .simulate import bound, simulate
from .values import duration, factor, levels, part, rate, seconds, several
from .winner import changes

__all__ = ["add_arguments", "main"]

#: Options without a meaning for a strategy, each of whose ranks has a host of its own, and for algorithms.
_OF_ALGORITHMS = (
    "collective", "hosts", "placement", "order", "root", "segments", "in_flight", "overhead", "local_alpha",
    "local_beta", "rendezvous", "burst", "topology", "slow_rank", "slow_host", "picture", "goal",
)  # fmt: skip
_OF_STRATEGIES = ("option", "servers", "step", "straggler", "steps", "price")
#: Options without a meaning for the text of a schedule, which has neither times of messages nor segments.
_OF_TIMES = (
    "segments", "in_flight", "alpha", "beta", "overhead", "local_alpha", "local_beta", "rendezvous", "burst",
    "topology", "jitter", "seed", "slow_host", "json", "picture",
)  # fmt: skip
_OF_SHARED_HOSTS = ("placement", "order", "local_alpha", "local_beta")
_COLUMNS = ("collective", "algorithm", "p", "hosts", "bytes", "time", "x bound", "messages", "by", "took")

EPILOG = """\
  python -m collectives simulate ring circulant -p 100000 -n 100MB
  python -m collectives simulate all -p 16,64,256,1024 -n 8,1KiB,64KiB,1MiB,16MiB --picture map.svg
  python -m collectives simulate circulant -p 1024 --hosts 128 -n 16MiB --topology 16:2,8:1 --slow-host 3:4
  python -m collectives simulate --strategy local_sgd,ssp:staleness=3 -p 4,16,64 --jitter 10% --straggler 1x4

'x bound' is the time divided by what the busiest link of a host needs at least for its bytes (all-reduce 2n(h-1)/h on h
hosts). 'by' says what simulated: clocks, where no two messages share a port, or events. After 'inexact' there were too
many messages for events, and clocks may have served some in another order. 'took' is how long the simulation took.
Where ranks share hosts, the order of ranks is the one that the communicator would choose, and stands beside the
algorithm's name; --order own keeps the ranks' own order. docs/simulation.md describes the model."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``simulate``."""
    default = Network(placed(1, 1))
    parser.epilog = EPILOG
    add = parser.add_argument
    add("names", nargs="*", metavar="ALGORITHM", help="ring, allgather/ring, ...; all: every one of --collective")
    add("--collective", default="allreduce", metavar="NAME", help="collective of a name without one (%(default)s)")
    add("-p", dest="sizes", type=sizes, required=True, metavar="P", help="ranks: 1000, or 64,256,1024")
    add("-n", "--bytes", dest="nbytes", type=several(number_of_bytes), default=[1 << 20], metavar="BYTES",
        help="bytes of the whole vector, or of all parameters: 1MiB, or 8,64KiB,1MiB (default 1MiB)")  # fmt: skip
    add("--hosts", type=int, metavar="H", help="hosts (default: one for each rank)")
    add("--placement", choices=sorted(PLACEMENTS), default="block",
        help="how ranks lie on hosts: side by side, or dealt to them in turn (%(default)s)")  # fmt: skip
    add("--order", choices=("chosen", "own"), default="chosen",
        help="order of the ranks: as the communicator would choose, or their own (%(default)s)")  # fmt: skip
    add("--root", type=int, default=0, metavar="R", help="root of a rooted collective (%(default)s)")
    add("--segments", type=int, default=1, metavar="K", help="pieces that the vector is cut into (%(default)s)")
    add("--in-flight", type=int, default=4, metavar="K", help="segments that run at once (%(default)s)")
    add("--alpha", type=seconds, default=default.alpha, metavar="TIME", help="latency between hosts, e.g. 5us (2us)")
    add(
        "--beta",
        type=rate,
        default=default.beta,
        metavar="RATE",
        help="bandwidth of a host's port, each way, e.g. 200Mbit/s (12GB/s)",
    )
    add("--overhead", type=seconds, default=default.overhead, metavar="TIME",
        help="time of a rank's processor for each message (300ns)")  # fmt: skip
    add("--fold", type=rate, default=default.fold, metavar="RATE",
        help="bandwidth at which a rank or a server reduces (20GB/s)")  # fmt: skip
    add("--local-alpha", type=seconds, default=default.local_alpha, metavar="TIME", help="latency in a host (500ns)")
    add("--local-beta", type=rate, default=default.local_beta, metavar="RATE",
        help="bandwidth between ranks of a host (10GB/s)")  # fmt: skip
    add("--rendezvous", type=number_of_bytes, default=int(default.rendezvous), metavar="BYTES",
        help="messages from this length on wait for their receiver (64KiB)")  # fmt: skip
    add("--burst", type=number_of_bytes, default=0, metavar="BYTES",
        help="bytes that an idle port sends at once before its bandwidth limits it (0)")  # fmt: skip
    add("--topology", type=levels, default=(), metavar="WIDTH:OVER,...",
        help="levels of switches from the hosts up: children of each, oversubscription factor: 16:2,8:4")  # fmt: skip
    add(
        "--jitter",
        type=part,
        default=0.0,
        metavar="X",
        help="mean random part of a latency, or of a step: 0.1, 10%% (0)",
    )
    add("--seed", type=int, default=1, help="seed of the jitter (%(default)s)")
    add("--slow-rank", type=factor, action="append", default=[], metavar="RANK:FACTOR",
        help="this rank's processor takes FACTOR times as long")  # fmt: skip
    add("--slow-host", type=factor, action="append", default=[], metavar="HOST:FACTOR",
        help="this host's ports take FACTOR times as long")  # fmt: skip
    add("--json", metavar="FILE", help="write the results there as well")
    add("--picture", metavar="FILE", help="draw which algorithm wins where (.svg, .png, .pdf); needs matplotlib")
    add("--goal", metavar="FILE", help="write the schedule there as text for LogGOPSim, and do not simulate")
    strategy_cli.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Simulate everything asked for, print a table and write the files."""
    try:
        if bool(args.names) == bool(args.strategy):
            raise ValueError("name algorithms, or give --strategy")
        _check_mode(args)
        _check_files(args)
        if args.strategy:
            return strategy_cli.main(args)
        algorithms = _algorithms(args.names, args.collective)
        if args.goal:
            return _export(algorithms, args)
        rows = _rows(algorithms, args)
        if args.json:
            with replacing(args.json) as file:
                json.dump({"simulation": _about(args), "results": rows}, file, indent=1, allow_nan=False)
            say_where(args.json)
        if args.picture:
            from .picture import draw

            draw(rows, args.picture)
            say_where(args.picture)
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    return 0


def _check_mode(args: argparse.Namespace) -> None:
    """ValueError for an option that would have no effect."""
    useless = {
        "with --strategy": _OF_ALGORITHMS if args.strategy else (),
        "without --strategy": () if args.strategy else _OF_STRATEGIES,
        "with --goal": _OF_TIMES if args.goal else (),
        "without --segments": ("in_flight",) if args.segments == 1 else (),
        "without --hosts": _OF_SHARED_HOSTS if args.hosts is None else (),
        "without --jitter": () if args.jitter else ("seed",),
    }
    for where, names in useless.items():
        if option := changed(args, names):
            raise ValueError(f"{option} has no effect {where}")


def _check_files(args: argparse.Namespace) -> None:
    """ValueError for a file that cannot be written, before anything is simulated; ImportError without matplotlib."""
    for path in filter(None, (args.goal, args.json, args.picture)):
        why = obstacle(path)
        if why:
            raise ValueError(f"{path}: {why}")
    if args.picture:
        from .picture import check

        check(args.picture)


def _algorithms(names: list[str], collective: str) -> list[ScheduleAlgorithm]:
    found: list[ScheduleAlgorithm] = []
    for name in names:
        owner, _, short = name.rpartition("/")
        owner = owner or collective
        for one in registry.algorithms(owner) if short == "all" else [short]:
            algorithm = registry.find(owner, one)
            if isinstance(algorithm, ScheduleAlgorithm):
                found.append(algorithm)
            elif short != "all":
                raise ValueError(f"{owner} {one} is not a schedule: there is nothing to simulate")
    return found


def _rows(algorithms: list[ScheduleAlgorithm], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Results as dictionaries; each is printed when it is there. TooMany if no schedule fits in memory."""
    rows: list[dict[str, Any]] = []
    left_out: TooMany | None = None
    networks = [_network(size, args) for size in args.sizes]
    _print(_COLUMNS)
    for network in networks:
        for nbytes in args.nbytes:
            for algorithm in algorithms:
                try:
                    rows.append(_row(algorithm, network, nbytes, args))
                except TooMany as error:
                    if len(algorithms) == 1:
                        raise
                    left_out = error
                    print(f"{algorithm.name} is left out: {error}", file=sys.stderr)
                else:
                    _print(_cells(rows[-1]))
    if left_out is not None and not rows:
        raise left_out
    return rows


def _in_order(
    algorithm: ScheduleAlgorithm, network: Network, args: argparse.Namespace
) -> tuple[ScheduleAlgorithm, str]:
    """The algorithm in the order of ranks that is asked for, and its name."""
    if args.order == "chosen" and network.nhosts < network.size:
        return nearest(algorithm, network.hosts.tobytes())
    return algorithm, ""


def _row(algorithm: ScheduleAlgorithm, network: Network, nbytes: int, args: argparse.Namespace) -> dict[str, Any]:
    algorithm, order = _in_order(algorithm, network, args)
    if args.segments < 1 or args.in_flight < 1:
        raise ValueError("--segments, --in-flight: expected at least 1")
    segments = args.segments if algorithm.divisible(network.size) else 1
    if segments != args.segments:
        print(f"{algorithm.collective} {algorithm.name} on {network.size} ranks: one segment, it cannot be cut",
              file=sys.stderr)  # fmt: skip
    outcome = simulate(algorithm, network, nbytes, root=args.root, segments=segments, in_flight=args.in_flight)
    least = bound(algorithm.collective, network, nbytes)
    return {
        "collective": algorithm.collective,
        "algorithm": algorithm.name,
        "order": order,
        "ranks": network.size,
        "hosts": network.nhosts,
        "bytes": nbytes,
        "segments": segments,
        "seconds": outcome.seconds,
        "changes": changes(algorithm, network.size, args.root),
        "times_bound": outcome.seconds / least if least else None,
        "messages": outcome.messages,
        "busiest_host_sent": float(outcome.sent.max()),
        "engine": outcome.engine,
        "took": outcome.elapsed,
    }


def _network(size: int, args: argparse.Namespace) -> Network:
    hosts = placed(size, size if args.hosts is None else args.hosts, args.placement)
    options = (
        "alpha",
        "beta",
        "overhead",
        "fold",
        "local_alpha",
        "local_beta",
        "rendezvous",
        "burst",
        "jitter",
        "seed",
    )
    return Network(
        hosts,
        levels=args.topology,
        slow_ranks=dict(args.slow_rank),
        slow_hosts=dict(args.slow_host),
        **{name: getattr(args, name) for name in options},
    )


def _about(args: argparse.Namespace) -> dict[str, Any]:
    network = dataclasses.asdict(_network(args.sizes[0], args))
    del network["hosts"]
    return {**network, **{name: getattr(args, name) for name in ("placement", "order", "in_flight", "root")}}


def _export(algorithms: list[ScheduleAlgorithm], args: argparse.Namespace) -> int:
    from .goal import write

    if len(algorithms) != 1 or len(args.sizes) != 1 or len(args.nbytes) != 1:
        raise ValueError("--goal writes one schedule: name one algorithm, one -p and one -n")
    network = _network(args.sizes[0], args)
    with replacing(args.goal) as file:
        write(file, _in_order(algorithms[0], network, args)[0], network, args.nbytes[0], args.root)
    say_where(args.goal)
    return 0


# --- the table ------------------------------------------------------------------------------------------------------


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    name = f"{row['algorithm']} ({row['order']})" if row["order"] else row["algorithm"]
    times = "-" if row["times_bound"] is None else f"{row['times_bound']:.2f}"
    return (
        row["collective"], name, str(row["ranks"]), str(row["hosts"]), str(row["bytes"]), duration(row["seconds"]),
        times, f"{row['messages']:.3g}", row["engine"], duration(row["took"]),
    )  # fmt: skip


def _print(cells: tuple[str, ...]) -> None:
    widths = (-14, -28, 8, 7, 11, 10, 8, 9, -14, 9)
    texts = [cell.ljust(-width) if width < 0 else cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    print("  ".join(texts).rstrip(), flush=True)
