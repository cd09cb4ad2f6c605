"""What a communicator and the first call of each algorithm cost one rank of thousands: processor time and memory.

    python benchmarks/first_calls.py -p 4096

First, a rank sets up the library's side of a communicator: it reads what all ranks say of themselves, and joins the 64
ranks of its machine in a group of the node-local engine. Then it takes every algorithm that the default tables name,
with the shortest vector for which they name it. For some ranks it does what their first call does: it cuts the vector
into segments, builds the schedule, derives its dependencies and makes a plan, on an endpoint of the in-process
transport. For a hierarchical call, which has parts instead of steps, it makes a plan of all parts. Each rank is a
process of its own, so that no rank finds caches that another has filled. Exits with 1 if a rank needs more than
``--ms`` or ``--mb``.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import itertools
import os
import pickle
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mpi4py

from collectives.core import _core
from collectives.schedules import build, registry
from collectives.selection import hierarchy, policy

DEPTH = 4  # segments of one call in flight
PER_HOST = 64  # ranks of a machine
SMALL = 5  # ranks of a call that is made first, so that all modules are loaded
BYTE = _core.DTYPES.index("uint8")
FLOAT = _core.DTYPES.index("float32")
SUM = _core.OPS.index("sum")
_RESULT = struct.Struct("ddi")


class Case(NamedTuple):
    """A row of a default table: the shortest vector that it serves."""

    collective: str
    name: str
    segment: int | None
    nbytes: int


class Cost(NamedTuple):
    """The cost of a first call: processor time in seconds, most bytes of memory, and steps of the schedule, or 0."""

    seconds: float
    nbytes: float
    steps: int


def cases() -> Iterator[Case]:
    """Every algorithm of the default tables, once for each collective."""
    seen = set()
    ordered = {collective: [(None, name, None)] for collective, name in policy.ORDERED.items()}
    for table in (policy.DEFAULT, ordered, policy.LINEAR, policy.EXACT):
        for collective, rows in table.items():
            shortest = 4
            for limit, name, segment in rows:
                if (registry.base(collective), name) not in seen:
                    seen.add((registry.base(collective), name))
                    yield Case(collective, name, segment, shortest)
                shortest = 4 + (limit or 0)


def hierarchical_cases(size: int) -> Iterator[Case]:
    """The shortest vector of each row of the hierarchical default; of blocks, a byte for each rank."""
    rows = {registry.base(collective): rows for collective, rows in hierarchy.DEFAULT.items()}
    for collective in rows:
        for least, _, _ in rows[collective]:
            shortest = size if registry.spec(collective).blockwise else 4
            yield Case(collective, hierarchy.NAME, None, max(least, shortest))


def hierarchical(case: Case, endpoint: _core.Endpoint) -> Callable[[], tuple[_core.HierarchyPlan, int]]:
    """A function that makes the plan of a hierarchical call of this communicator."""
    from collectives.arguments.shape import Shape
    from collectives.runtime.hierarchy_plans import hierarchy_plan
    from collectives.runtime.nodes import Nodes

    _, joined = set_up(endpoint)()[0]
    nodes = Nodes.of(joined.nodes)
    op = SUM if registry.spec(case.collective).reduces or case.collective == "barrier" else None
    shape = Shape(case.collective, 0, case.nbytes, 1, BYTE, op, False)
    return lambda: (hierarchy_plan(nodes, shape, joined.engine, endpoint), 0)


def first_call(case: Case, endpoint: _core.Endpoint) -> tuple[_core.Plan, int]:
    """Do what a rank's first call does before its first message."""
    algorithm = registry.find(case.collective, case.name)
    assert isinstance(algorithm, registry.ScheduleAlgorithm)
    choice = policy.Choice(algorithm, case.segment, "")
    segments = policy.segments_for(choice, endpoint.size, case.nbytes, DEPTH)
    made = build.build(algorithm, endpoint.rank, endpoint.size)
    program = _core.Program(
        made.steps, endpoint.size, made.nblocks, made.scratch, False, made.input_block, made.vector_block,
        made.blockwise,
    )  # fmt: skip
    op = SUM if algorithm.spec.reduces or case.collective == "barrier" else None
    plan = _core.Plan(program, endpoint, case.nbytes // 4, 4, FLOAT, op, segments, min(segments, DEPTH))
    return plan, len(made.steps)


def set_up(endpoint: _core.Endpoint) -> Callable[[], tuple[Any, int]]:
    """A function that sets up a communicator from what the ranks say of themselves.

    All ranks of the machine are in this process. The function returns what a communicator keeps of it, and 0.
    """
    mpi4py.rc.initialize = False  # the modules below import mpi4py, but nothing here uses MPI
    from collectives.runtime import bootstrap, meeting, settings
    from collectives.system import shared_memory

    rank, size = endpoint.rank, endpoint.size
    offer, area = shared_memory.offer()
    assert offer is not None
    mine = bootstrap.hello(0, size, offer, pickle.dumps(settings.agreed()), False, True, 0)
    frames = np.empty((size, meeting.FRAME), np.uint8)
    for peer in range(size):
        host = peer // PER_HOST
        there, address = offer, mine.address
        if host != rank // PER_HOST:
            there, address = (f"{host:036}", *offer[1:]), address and address._replace(home=(f"{host:036}", 0, 0))
        theirs = mine._replace(machine=f"host{host}/{there[0]}", offer=there, address=address)
        frames[peer] = meeting.framed(pickle.dumps(theirs))

    def made() -> tuple[Any, int]:
        this = mine._replace(machine=f"host{rank // PER_HOST}/{offer[0]}")
        received = frames.copy()  # what a rank receives takes memory of its own
        known = bootstrap.introduce(rank, this, meeting.unframed(received))
        del received
        joined = shared_memory.join(
            rank, size, known.offers, area, lambda reach: itertools.repeat(reach, size), None, endpoint
        )
        return (known, joined), 0

    return made


def memory(name: str) -> int:
    """A line of the kernel's report on this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def prepared(case: Case | None, endpoint: _core.Endpoint) -> Callable[[], tuple[Any, int]]:
    """The function whose cost is that of a case, or of the set-up."""
    if case is None:
        return set_up(endpoint)
    if case.name == hierarchy.NAME:
        return hierarchical(case, endpoint)
    return functools.partial(first_call, case, endpoint)


def _measure(case: Case | None, endpoint: _core.Endpoint) -> Cost:
    """The cost of a first call, or of the set-up, in this process, which has made a small call before."""
    prepared(case, _core.InProcess(SMALL).endpoint(0))()
    made = prepared(case, endpoint)
    trim()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before, begin = memory("VmRSS"), time.process_time()
    _, steps = made()
    return Cost(time.process_time() - begin, memory("VmHWM") - before, steps)


def trim() -> None:
    """Give back memory that nothing uses."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def apart(result: struct.Struct, measure: Callable[[], Iterable[float]]) -> tuple[float, ...]:
    """What ``measure`` finds in a process of its own, as numbers of the format ``result``."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(send, result.pack(*measure()))
        finally:
            os._exit(0)
    os.close(send)
    told = os.read(receive, result.size)
    os.close(receive)
    os.waitpid(child, 0)
    return result.unpack(told)


def cost(case: Case | None, group: _core.InProcess, rank: int) -> Cost:
    """The cost of a first call, in a process of its own."""
    seconds, nbytes, steps = apart(_RESULT, lambda: _measure(case, group.endpoint(rank)))
    return Cost(seconds, nbytes, int(steps))


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each algorithm: the time of the rank that takes longest, and the most memory of any rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-p", type=int, default=4096, metavar="P", help="ranks (%(default)s)")
    parser.add_argument("--ms", type=float, default=200, help="most milliseconds of a rank (%(default)s)")
    parser.add_argument("--mb", type=float, default=5, help="most megabytes of a rank (%(default)s)")
    args = parser.parse_args(arguments)
    group, failed = _core.InProcess(args.p), False
    print(f"{'collective':15} {'algorithm':20}{'bytes':>9}{'steps':>8}{'ms':>9}{'MB':>8}")
    for case in [None, *cases(), *hierarchical_cases(args.p)]:
        found = [cost(case, group, rank) for rank in sorted({0, 1 % args.p, args.p // 2, args.p - 1})]
        ms, mb = max(c.seconds for c in found) * 1e3, max(c.nbytes for c in found) / 1e6
        late = ms > args.ms or mb > args.mb
        failed |= late
        steps = max(c.steps for c in found)
        what = "(set-up)" if case is None else f"{case.collective:15} {case.name:20}{case.nbytes:9}{steps:8}"
        print(f"{what:53}{ms:9.1f}{mb:8.2f}{'  too much' * late}", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
