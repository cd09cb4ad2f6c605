"""Rank 0 does not come where communicators and persistent calls are made or freed; the others have a timeout."""

import os
import time

import numpy as np
from mpi4py import MPI

import collectives

WORLD = MPI.COMM_WORLD
first, second = WORLD.Dup(), WORLD.Dup()
x, y = np.ones(10), np.empty(10)
trials, wrong = 0, []


def told(what, words, use):
    """Whether the others are told of rank 0 in time; it waits in a barrier of MPI's meanwhile."""
    global trials
    if WORLD.rank:
        trials += 1
        begin, message = time.monotonic(), "no error"
        try:
            use()
        except collectives.CollectiveTimeout as e:
            message = str(e)
        seconds = time.monotonic() - begin
        if not all(word in message for word in ("not complete after 0.2 s", *words)) or seconds > 20:
            wrong.append(f"rank {WORLD.rank}: {what}: {seconds:.1f} s: {message}")
    WORLD.Barrier()


os.environ["COLLECTIVES_TIMEOUT"] = "0.2"
told("first", ["creating a Communicator"], lambda: collectives.Communicator(first))
del os.environ["COLLECTIVES_TIMEOUT"]

# Rank 0 comes late: nobody has gone on to MPI's own call without the others, and it does not either.
late = WORLD.Dup()
os.environ["COLLECTIVES_TIMEOUT"] = "0.2"
if WORLD.rank == 0:
    time.sleep(1)
told("late", ["creating a Communicator"], lambda: collectives.Communicator(late))
if WORLD.rank == 0:
    trials += 1
    try:
        collectives.Communicator(late)
        wrong.append("rank 0: a communicator was made without the others")
    except collectives.CollectiveTimeout:
        pass
# Who tries again goes on with what is under way, so that those who came in time and those who come late meet.
again = WORLD.Dup()
if WORLD.rank == 0:
    time.sleep(1)
made = None
for _ in range(200):
    try:
        made = collectives.Communicator(again)
        break
    except collectives.CollectiveTimeout:
        pass
del os.environ["COLLECTIVES_TIMEOUT"]
trials += 1
if made is None:
    wrong.append(f"rank {WORLD.rank}: no communicator was made by trying again")
else:
    made.timeout = 20
    made.Allreduce(x, y)
    made.Free()
ABSENT = "rank 0: in no collective"
for what, words, use in (
    ("Dup", "creating a communicator by Dup", lambda comm: comm.Dup()),
    ("Split", "creating a communicator by Split", lambda comm: comm.Split(0, comm.rank)),
    ("Create", "creating a communicator by Create", lambda comm: comm.Create(comm.group)),
    ("Create_group", "creating a communicator by Create_group", lambda comm: comm.Create_group(comm.group)),
    ("Split_type", "creating a communicator by Split_type", lambda comm: comm.Split_type(MPI.COMM_TYPE_SHARED)),
    ("Create_cart", "creating a communicator by Create_cart", lambda comm: comm.Create_cart([comm.size])),
    ("Free", "freeing a communicator", lambda comm: comm.Free()),
    ("Disconnect", "freeing a communicator", lambda comm: comm.Disconnect()),
    ("init", "allreduce", lambda comm: comm.Allreduce_init(x, y)),
    ("Bcast_init", "bcast", lambda comm: comm.Bcast_init(x)),
    ("Barrier_init", "barrier", lambda comm: comm.Barrier_init()),
    ("python", "allreduce", lambda comm: comm.Allreduce(x, y, engine="python")),
):
    comm = collectives.Communicator(WORLD)
    comm.timeout = 0.2
    told(what, [words, ABSENT], lambda use=use, comm=comm: use(comm))
other = collectives.Communicator(WORLD)
os.environ["COLLECTIVES_TIMEOUT"] = "0.2"
told("second", ["creating a Communicator", ABSENT], lambda: collectives.Communicator(second))
other.Allreduce(x, y)  # what failed before has broken no other communicator
trials += 1
if y[0] != WORLD.size:
    wrong.append(f"rank {WORLD.rank}: {y}")
comm = collectives.Communicator(WORLD)
trials += 1
try:
    comm.Split(0, comm.rank) if comm.rank else comm.Dup()
    wrong.append(f"rank {WORLD.rank}: Dup and Split went together")
except collectives.CollectiveMismatch as e:
    if "Dup" not in str(e) or "Split" not in str(e):
        wrong.append(f"rank {WORLD.rank}: {e}")
for line in wrong:
    print(line, flush=True)
print(f"attack: {trials} trials, {len(wrong)} wrong", flush=True)
WORLD.Barrier()
time.sleep(0.5)  # some communicators are broken: the program ends by MPI_Abort
