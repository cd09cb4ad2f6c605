"""Memory that the library's own state keeps on one rank of thousands, and the time to make it.

    python benchmarks/scale.py -p 1000,4096

A line for each thing that a rank keeps: a communicator (64 ranks on a machine, as in ``first_calls.py``), and for each
algorithm of the default tables its program, which calls of every length share, and the plan of one shape, without the
memory of segments (``scratch``), which depends on the length of the vector. A hierarchical call has a plan of all its
parts, for the shortest vector of a row of its defaults, or a byte for each rank. ``kB`` is the growth of the process's
resident memory over several copies, divided by their number; ``ms`` is the processor time of one copy. The last column
is the power of p with which the kilobytes grow from the smallest p to the largest. Ranks are measured in processes of
their own; of several ranks the one that needs most is shown. Exits with 1 if anything grows faster than p.
"""

from __future__ import annotations

import argparse
import functools
import math
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import first_calls
import numpy as np
from first_calls import DEPTH, FLOAT, SMALL, SUM, Case, apart, trim

from collectives.core import _core
from collectives.schedules import build, registry
from collectives.selection import hierarchy, policy

COPIES = {"communicator": 4, "program": 8, "plan": 16}
LEAST = 16.0  # kB: smaller things are not judged
FASTEST = 1.1  # power of p
_RESULT = struct.Struct("dd")


def program(case: Case, endpoint: _core.Endpoint) -> _core.Program:
    """The program of a case, as a communicator keeps it."""
    algorithm = registry.find(case.collective, case.name)
    assert isinstance(algorithm, registry.ScheduleAlgorithm)
    made = build.build(algorithm, endpoint.rank, endpoint.size)
    return _core.Program(
        made.steps, endpoint.size, made.nblocks, made.scratch, False, made.input_block, made.vector_block,
        made.blockwise,
    )  # fmt: skip


def plan_of(case: Case, endpoint: _core.Endpoint) -> Callable[[], Any]:
    """A function that makes another plan: of a vector of one element, with the segments of the case's shortest call."""
    if case.name == hierarchy.NAME:
        return first_calls.hierarchical(case, endpoint)
    algorithm = registry.find(case.collective, case.name)
    assert isinstance(algorithm, registry.ScheduleAlgorithm)
    shared = program(case, endpoint)
    segments = policy.segments_for(policy.Choice(algorithm, case.segment, ""), endpoint.size, case.nbytes, DEPTH)
    op = SUM if algorithm.spec.reduces or case.collective == "barrier" else None
    return lambda: _core.Plan(shared, endpoint, 1, 4, FLOAT, op, segments, min(segments, DEPTH))


def measured(what: str, case: Case | None, group: _core.InProcess, rank: int) -> tuple[float, float]:
    """Seconds and bytes of one copy, in this process."""
    endpoint = group.endpoint(rank)
    if case is None:
        first_calls.set_up(_core.InProcess(SMALL).endpoint(0))
        make: Callable[[], Any] = functools.partial(first_calls.set_up, endpoint)
    else:
        make = functools.partial(program, case, endpoint) if what == "program" else plan_of(case, endpoint)
        make()
    trim()
    before, begin = first_calls.memory("VmRSS"), time.process_time()
    kept = [make() for _ in range(COPIES[what])]
    spent = time.process_time() - begin
    trim()
    grown = first_calls.memory("VmRSS") - before
    return spent / len(kept), max(0, grown) / len(kept)


def alone(what: str, case: Case | None, group: _core.InProcess, rank: int) -> tuple[float, ...]:
    """:func:`measured` in a process of its own."""
    return apart(_RESULT, lambda: measured(what, case, group, rank))


def power(sizes: list[int], kilobytes: list[float]) -> float | None:
    """The power of p with which kilobytes grow; None for little memory, or one size."""
    if len(sizes) < 2 or kilobytes[-1] < LEAST:
        return None
    return math.log(kilobytes[-1] / max(kilobytes[0], 1.0)) / math.log(sizes[-1] / sizes[0])


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if anything grows faster than p."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-p", default="1000,4096", metavar="P,...", help="numbers of ranks (%(default)s)")
    sizes = sorted(int(part) for part in parser.parse_args(arguments).p.split(","))
    groups = [_core.InProcess(size) for size in sizes]
    rows: list[tuple[str, Sequence[Case | None]]] = [("communicator", [None] * len(sizes))]
    rows += [(what, [case] * len(sizes)) for case in first_calls.cases() for what in ("program", "plan")]
    rows += [("plan", cases) for cases in zip(*map(first_calls.hierarchical_cases, sizes), strict=True)]
    head = "".join(f"{f'ms, p={size}':>12}{f'kB, p={size}':>12}" for size in sizes)
    print(f"{'':13}{'collective':15}{'algorithm':20}{head}{'power':>7}")
    failed = False
    for what, cases in rows:
        found = [
            np.max([alone(what, case, group, rank) for rank in (0, 1, size // 2, size - 1)], axis=0).tolist()
            for case, group, size in zip(cases, groups, sizes, strict=True)
        ]
        case = cases[-1]
        grows = power(sizes, [nbytes / 1e3 for _, nbytes in found])
        late = grows is not None and grows > FASTEST
        failed |= late
        cells = "".join(f"{seconds * 1e3:12.2f}{nbytes / 1e3:12.1f}" for seconds, nbytes in found)
        name = f"{'':35}" if case is None else f"{case.collective:15}{case.name:20}"
        shown = "-" if grows is None else f"{grows:.2f}"
        print(f"{what:13}{name}{cells}{shown:>7}{'  faster than p' * late}", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
