"""Programs whose files have very long names: what a rank tells of its call is cut in the middle, and is understood.

long_paths.py near|far|checked N: two ranks ask each other through the socket, or by messages over MPI, whose longest
have 8192 bytes; or calls are checked (COLLECTIVES_CHECK=1), and the end of the place is told. With every N-th of the
names, from the last one on.
"""

import re
import sys
import time

import numpy as np
from mpi4py import MPI

import collectives
from collectives.diagnostics import peer_queries
from collectives.waiting import watching

world = MPI.COMM_WORLD
rank = world.rank
BEGIN, END, LINE = "/begin/", "/end.py", 9
CHECKED = sys.argv[1] == "checked"
SHORT = 0.3
FOLDERS = {
    "short": "folder",
    "half": "f" * 4000,
    "a little too long": "f" * 8100,
    "very long": "folder/" * 30_000,
    "quoted": '"\\' * 3000,
    "six bytes each": "é" * 3000,
    "twelve bytes each": "\U0001f600" * 3000,
    "not in UTF-8": b"\xff".decode("utf-8", "surrogateescape") * 3000,
}
SAID = re.compile(r"^  rank (\d): (.*), at (.*?)(?:; raised \w+)?$", re.MULTILINE)
x, y = np.ones(10), np.empty(10)


def made(far):
    """A communicator, whose ranks have no socket if they are to be far from each other."""
    here = peer_queries.address
    if far:
        peer_queries.address = lambda: None
    comm = collectives.Communicator(world)
    peer_queries.address = here
    comm.Barrier()
    return comm


def raised(make, *arguments, **options):
    try:
        make(*arguments, **options)
    except collectives.CollectiveError as e:
        return f"{type(e).__name__}: {e}"
    except UnicodeError as e:
        return f"{type(e).__name__}: {e}"
    return ""


def absent(call, comm):
    """Rank 1 does not come: rank 0 says where it is."""
    if rank:
        call(world.recv, source=0, tag=1)
        return ""
    found = raised(call, comm.Allreduce, x, y, timeout=SHORT)
    world.send(None, 1, 1)
    return found if not found.startswith("CollectiveTimeout") else told_of(1, found, "in no collective")


def differs(call, comm):
    """Rank 1 makes another call, and each rank says where the other one is."""
    found = raised(call, comm.Allreduce, x, y, MPI.MAX if rank else MPI.SUM, algorithm="ring")
    return found if not found.startswith("CollectiveMismatch") else told_of(1 - rank, found, "allreduce of 10 float64")


def gave_up(call, comm):
    """Rank 1 gave up before rank 0 came, which says where that was."""
    if rank:
        found = raised(call, comm.Allreduce, x, y, timeout=SHORT, algorithm="ring")
        world.send(None, 0, 2)
        while not world.Iprobe(source=0, tag=3):
            if comm._context.mpi_queries:
                comm._context.mpi_queries.serve()
            time.sleep(0.001)
        world.recv(source=0, tag=3)
        return "" if found.startswith("CollectiveTimeout") else found
    world.recv(source=1, tag=2)
    found = raised(call, comm.Allreduce, x, y, timeout=20, algorithm="ring")
    world.send(None, 1, 3)
    return "" if is_place(found, "rank 1 gave up at ", ": CollectiveTimeout") else found


def dumped(call, comm):
    """What a signal would show does not stop the program."""
    call(collectives.dump)
    return raised(call, comm.Barrier)


def told_of(other, message, words):
    """What is wrong with the line on a rank."""
    places = {int(who): (what, where) for who, what, where in SAID.findall(message)}
    what, where = places.get(other, ("no line", ""))
    return "" if words in what and is_place(where, "", "") else message


def is_place(message, before, after):
    """Whether a place is told between some words: the file's begin and end, and the line."""
    begin = ".{0,500}" if CHECKED else f"{BEGIN}.{{1,8192}}"
    return re.search(rf"{before}{begin}{END}:{LINE}{after}", message, re.DOTALL) is not None


#: Ranks that are far from each other answer while they wait, and so not where they are absent.
CASES = {"near": (absent, differs, gave_up, dumped), "far": (differs, gave_up), "checked": (differs,)}


def main():
    watching.PATIENCE = 0.2, 0.5
    wrong, trials = [], 0
    for name, folder in [*FOLDERS.items()][:: -int(sys.argv[2])]:
        source = "\n" * (LINE - 1) + "def call(make, *arguments, **options): return make(*arguments, **options)"
        exec(compile(source, f"{BEGIN}{folder}{END}", "exec"), place := {})
        for case in CASES[sys.argv[1]]:
            found = world.allgather(case(place["call"], made(sys.argv[1] == "far")))
            trials += 1
            wrong += [f"{case.__name__}, {name}: {words[:300]!r}" for words in found if words]
    print(*wrong if rank == 0 else (), f"attack: {trials} trials, {len(wrong)} wrong", sep="\n", flush=True)
    world.Barrier()
    time.sleep(0.5)  # the communicators are broken: the program ends by MPI_Abort


main()
