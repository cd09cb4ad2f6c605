"""Wrong arguments of one rank in methods that make communicators: it raises, and the others name it in time.

making_arguments.py N: every N-th of the calls.
"""

import sys
import time

from mpi4py import MPI

import collectives

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
ODD, TIMEOUT = 1, 1.5
bad = rank == ODD


def cases(comm):
    """Calls by name; what is wrong with them is so on one rank only."""
    everybody, circle = comm.group, [*range(1, size), 0]
    return {
        "Split, color": lambda: comm.Split("x" if bad else 0),
        "Split, no color": lambda: comm.Split(-7 if bad else 0),
        "Split, long color": lambda: comm.Split(2**40 if bad else 0),
        "Split, key": lambda: comm.Split(0, None if bad else 0),
        "Split_type": lambda: comm.Split_type("q" if bad else MPI.COMM_TYPE_SHARED),
        "Split_type, no type": lambda: comm.Split_type(12345 if bad else MPI.COMM_TYPE_SHARED),
        "Create": lambda: comm.Create(5 if bad else everybody),
        "Create, null": lambda: comm.Create(MPI.GROUP_NULL if bad else everybody),
        "Create_group": lambda: comm.Create_group(5 if bad else everybody),
        "Dup": lambda: comm.Dup(7 if bad else None),
        "Create_cart, too many": lambda: comm.Create_cart([99] if bad else [size]),
        "Create_cart, dims": lambda: comm.Create_cart(["a"] if bad else [size]),
        "Create_cart, periods": lambda: comm.Create_cart([size], [True, False] if bad else [True]),
        "Create_graph": lambda: comm.Create_graph([*range(1, size), "a" if bad else size], circle),
        "adjacent": lambda: comm.Create_dist_graph_adjacent([0], ["x" if bad else 0]),
        "dist_graph": lambda: comm.Create_dist_graph([rank], [1], [99 if bad else 0]),
    }


def outcome(make):
    """The error of this rank, by kind, and whether it names the odd one."""
    begin = time.monotonic()
    try:
        make()
    except collectives.CollectiveError as e:
        return f"rank {ODD}" in str(e) and time.monotonic() - begin < TIMEOUT + 3 and "named" or str(e)
    except (TypeError, ValueError, OverflowError, MPI.Exception):
        return "refused"
    return "served"


trials = wrong = 0
for name in [*cases(world)][:: int(sys.argv[1])]:
    comm = collectives.Communicator(world)
    comm.timeout = TIMEOUT
    found = world.allgather(outcome(cases(comm)[name]))
    good = found == ["refused" if i == ODD else "named" for i in range(size)] or found == ["served"] * size
    trials, wrong = trials + 1, wrong + (not good)
    if not good and rank == 0:
        print(f"{name}: {found}", flush=True)
if rank == 0:
    print(f"attack: {trials} trials, {wrong} wrong", flush=True)
world.Barrier()
