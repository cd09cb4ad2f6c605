"""Second handles to MPI's communicator: ours is dropped and collected, the other goes on as if mpi4py had made it."""

import copy
import gc
import itertools
import pickle
import sys

import numpy as np
from mpi4py import MPI

import collectives
from collectives.system import lifetime

world = collectives.Communicator(MPI.COMM_WORLD)
rank, size = world.rank, world.size
trials, wrong = 0, []


class Mine(collectives.Communicator):
    """A user's own."""


MADE = {
    "Dup": world.Dup,
    "Clone": world.Clone,
    "Communicator": lambda: collectives.Communicator(MPI.COMM_WORLD),
    "subclass": lambda: Mine(MPI.COMM_WORLD),
    "Dup of a subclass": lambda: Mine(MPI.COMM_WORLD).Dup(),
    "Split": lambda: world.Split(0, rank),
    "Split_type": lambda: world.Split_type(MPI.COMM_TYPE_SHARED),
    "Create": lambda: world.Create(world.Get_group()),
    "Create_group": lambda: world.Create_group(world.Get_group()),
    "Create_cart": lambda: world.Create_cart([size]),
    "Sub": lambda: world.Create_cart([size]).Sub([True]),
    "Create_dist_graph": lambda: world.Create_dist_graph([rank], [1], [(rank + 1) % size]),
}
HANDLES = {
    "Intracomm(c)": MPI.Intracomm,
    "Comm(c)": lambda c: MPI.Intracomm(MPI.Comm(c)),
    "handle": lambda c: MPI.Intracomm(MPI.Comm.fromhandle(c.handle)),
    "py2f": lambda c: MPI.Intracomm(MPI.Comm.f2py(c.py2f())),
    "kept by a request": lambda c: (c.Ibarrier().Wait(), MPI.Intracomm(c))[1],
}


def expect(what, right):
    global trials
    trials += 1
    if not right:
        wrong.append(what)


def collect_everywhere():
    """Drop what is dead, and make communicators until ranks have agreed that it is."""
    gc.collect()
    for _ in range(2):
        world.Dup().Free()


def used(handle):
    """Whether a handle of mpi4py's works."""
    total, left = np.empty(1), np.empty(1)
    handle.Allreduce(np.ones(1), total)
    handle.Sendrecv(np.full(1, float(rank)), (rank + 1) % size, recvbuf=left, source=(rank - 1) % size)
    return total[0] == size == handle.allreduce(1) == handle.Get_group().size and left[0] == (rank - 1) % size


pairs = itertools.product(MADE, HANDLES) if sys.argv[1:] else zip(MADE, itertools.cycle(HANDLES), strict=False)
for name, way in pairs:
    handle = HANDLES[way](MADE[name]())
    collect_everywhere()
    expect(f"{name}, {way}", used(handle))
    ours = collectives.Communicator(handle)
    expect(f"{name}, {way}: ours again", ours.allreduce(1) == size)
    ours.Free()
    handle.Free()

collect_everywhere()
expect("nothing waits to be freed", not lifetime.dead())


def raises(what, kinds, use):
    try:
        use()
    except kinds:
        expect(what, True)
    except BaseException as e:
        expect(f"{what}: {e!r}", False)
    else:
        expect(f"{what}: nothing was raised", False)


def uses(comm, request):
    """What can be done with a communicator, by this library."""
    return {
        "Allreduce": lambda: comm.Allreduce(np.ones(1), np.empty(1)),
        "long Allreduce": lambda: comm.Allreduce(np.ones(1 << 17), np.empty(1 << 17)),
        "MPI's Allreduce": lambda: comm.Allreduce(np.ones(1), np.empty(1), algorithm="mpi"),
        "Iallreduce": lambda: comm.Iallreduce(np.ones(1), np.empty(1)),
        "Allreduce_init": lambda: comm.Allreduce_init(np.ones(1), np.empty(1)),
        "allreduce": lambda: comm.allreduce(1), "bcast": lambda: comm.bcast(1), "Barrier": comm.Barrier,
        "Start": lambda: request.Start(), "timeout": lambda: comm.timeout, "Dup": comm.Dup, "Idup": comm.Idup,
        "Split": comm.Split, "Sub": lambda: comm.Sub([True]), "Free": comm.Free, "Disconnect": comm.Disconnect,
    }  # fmt: skip


for end in ("Free", "Disconnect"):
    comm = world.Create_cart([size])
    request = comm.Allreduce_init(np.ones(1), np.empty(1))
    getattr(comm, end)()
    expect(f"{end}: null", comm == MPI.COMM_NULL and not comm and comm.handle == MPI.COMM_NULL.handle)
    others = {"rank": comm.Get_rank, "Send": lambda c=comm: c.send(1, 0), "group": comm.Get_group}
    for what, use in {**uses(comm, request), **others}.items():
        raises(f"{what} after {end}", MPI.Exception, use)

ENDS = {
    "Free of another": lambda c: MPI.Intracomm(c).Free(),
    "Disconnect of another": lambda c: MPI.Intracomm(c).Disconnect(),
    "MPI's Free of ours": MPI.Comm.Free,
}
for (how, end), first in itertools.product(ENDS.items(), uses(world, None)):
    comm, request, total = world.Create_cart([size]), None, np.empty(1)
    if first == "Start":
        request = comm.Allreduce_init(np.ones(1), np.empty(1))
    under_way = comm.Iallreduce(np.ones(1), total)
    end(comm)
    raises(f"{first} after {how}", collectives.CollectiveError, uses(comm, request)[first])
    expect(f"{first} after {how}: null", comm == MPI.COMM_NULL)
    under_way.Wait()
    expect(f"{how}: what was under way", total[0] == size)

comm = world.Dup()
expect("equal", comm == MPI.Intracomm(comm) and comm != world and comm == comm)
expect("compare", MPI.Comm.Compare(comm, MPI.Intracomm(comm)) == MPI.IDENT)
raises("hash", TypeError, lambda: hash(comm))
raises("pickle", ValueError, lambda: pickle.dumps(comm))
raises("copy", ValueError, lambda: copy.copy(comm))
raises("deepcopy", ValueError, lambda: copy.deepcopy(comm))
expect("still good", comm.allreduce(1) == size)
comm.Free()

print(*wrong, f"attack: {trials} trials, {len(wrong)} wrong", sep="\n", flush=True)
