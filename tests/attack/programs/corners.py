"""Programs of a few lines, each of which was wrong once: corners.py NAME, the name of a function below.

A function gives the words of what is wrong on this rank, or nothing."""

import _thread
import atexit
import contextlib
import ctypes
import gc
import mmap
import os
import resource
import signal
import socket
import sys
import tempfile
import time
import weakref

name = sys.argv[1]
if name == "late_in_an_exit_handler":  # it runs after those of the library, which are registered later
    atexit.register(lambda: at_the_end())
import mpi4py  # noqa: E402

if name == "levels" and "0" in {os.environ.get(v) for v in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")}:
    mpi4py.rc.thread_level = "serialized"
import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

import collectives  # noqa: E402
from collectives import CollectiveError  # noqa: E402
from collectives.communicator import internal  # noqa: E402
from collectives.system import machine  # noqa: E402

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
LENGTHS = 10, 2000, 100_000, 1 << 20


def communicator(timeout=10.0):
    made = collectives.Communicator(WORLD)
    made.timeout = timeout
    return made


def lists():
    """One list for several calls under way: each has the array that was in it when the call began."""
    comm = communicator()
    for options, n, heap in [(o, n, h) for o in ({}, {"algorithm": "ring"}) for n in LENGTHS for h in (False, True)]:
        spec, out = [None, MPI.DOUBLE], [np.zeros(n) for _ in range(4)]
        requests = []
        for i in range(4):
            spec[0] = comm.full(n, i + 1.0) if heap else np.full(n, i + 1.0)
            requests.append(comm.Iallreduce(spec, out[i], **options))
        spec[0] = None
        for i in range(4):
            np.full(n, -1.0)  # takes the place of what is gone
            requests[i].Wait()
        for i in range(4):
            if not (out[i] == SIZE * (i + 1)).all():
                yield f"{options} {n} {heap}: {out[i][:3]} for {SIZE * (i + 1)}"


def list_of_a_blocking_call():
    """A handler empties the list during the call."""
    for options in ({}, {"algorithm": "ring"}):
        comm, y = communicator(), np.zeros(1 << 20)
        comm.Allreduce(np.ones(1 << 20), y, **options)
        spec = [np.ones(1 << 20), MPI.DOUBLE]
        signal.signal(signal.SIGALRM, lambda *_, spec=spec: spec.__setitem__(0, None))
        WORLD.Barrier()
        if RANK:
            time.sleep(0.5)
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        comm.Allreduce(spec, y, **options)
        if not (y == SIZE).all() or (RANK == 0 and spec[0] is not None):
            yield f"{options}: {y[:3]}"


def groups():
    """Grouped calls run on the arrays that they were made with."""
    comm = communicator()
    for n in LENGTHS:
        arrays, spec = [np.full(n, i + 1.0) for i in range(3)], [None, MPI.DOUBLE]
        with comm.group():
            for array in arrays:
                spec[0] = array
                comm.Allreduce(MPI.IN_PLACE, spec)
        for i, array in enumerate(arrays):
            if not (array == SIZE * (i + 1)).all():
                yield f"{n}: {array[:3]} for {SIZE * (i + 1)}"


def read_only_roots():
    """The root of a grouped broadcast reads its buffer, and does not write to it."""
    comm = communicator()
    with tempfile.TemporaryFile() as file:
        file.write(bytes([120]) * 8192)
        file.flush()
        arrays = [np.zeros(4096, "u1") for _ in range(2)]
        if RANK == 0:
            arrays = [np.memmap(file, "u1", "r", 4096 * i, 4096) for i in range(2)]
        with comm.group():
            for array in arrays:
                comm.Bcast(array)
        if not all((array == 120).all() for array in arrays):
            yield f"{arrays}"


def no_descriptors():
    """A rank without a free file descriptor waits for long, and for one that is late."""
    comm, taken = communicator(20), []
    comm.Barrier()
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
    if RANK == 0:
        time.sleep(2.5)
    comm.Barrier()
    for descriptor in taken:
        os.close(descriptor)
    yield from ()


def at_the_end():
    """Calls in a handler of the program's end; rank 0 is late."""
    comm = KEPT[0]
    if RANK == 0:
        time.sleep(3.5)
    comm.Barrier()
    comm.Allreduce(MPI.IN_PLACE, np.ones(1000), algorithm="ring")
    print("attack: 1 trials, 0 wrong", flush=True)


KEPT = []


def late_in_an_exit_handler():
    KEPT.append(communicator(None))
    KEPT[0].Barrier()
    yield from ()


def finalizer_in_a_wait():
    """The collector runs in a wait, and a finalizer of Python's own library makes a call: one at a time."""
    comm, refused = communicator(), []

    def call():
        try:
            comm.Barrier()
        except CollectiveError as e:
            refused.append(str(e))

    class Thing:
        pass

    gc.disable()
    thing = Thing()
    thing.itself = thing
    weakref.finalize(thing, call).atexit = False
    del thing
    signal.signal(signal.SIGALRM, lambda *_: (gc.set_threshold(1), gc.enable()))
    comm.Barrier()
    if RANK == 1:
        time.sleep(0.6)
    else:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    for _ in range(3):
        comm.Barrier()
    signal.setitimer(signal.ITIMER_REAL, 0)
    if RANK != 1 and not all("one call at a time" in words for words in refused or [""]):
        yield f"not refused: {refused}"


def thread_without_a_frame():
    """A thread whose function is the compiled method has no frame of Python's."""
    comm, refused = communicator(), []
    comm.Barrier()
    if RANK == 0:
        _thread.start_new_thread(comm.Barrier, ())
        while not internal.side_of(comm).turn.holder:
            time.sleep(0.001)
        try:
            comm.Barrier()
            refused.append("")
        except CollectiveError as e:
            refused.append(str(e))
        time.sleep(0.6)
        comm.Barrier()
        if "one call at a time" not in refused[0]:
            yield f"not refused: {refused}"
    else:
        time.sleep(0.3)
        comm.Barrier()
        comm.Barrier()


def calls_within_an_op():
    """An op of the program's begins calls on other communicators, and may not wait for them there."""
    comm, requests, waited, by_mpi = communicator(), [], [], None
    others = comm.Dup(), comm.Dup()

    def apply(a, b, datatype):
        if by_mpi is not None and not requests:
            requests.extend(other.Ibarrier() for other in others)
            try:
                if not by_mpi:  # MPI would not refuse it, and may keep a lock meanwhile
                    requests.pop().Wait()
            except CollectiveError as e:
                waited.append(str(e))
        np.frombuffer(b, float)[:] += np.frombuffer(a, float)

    op, y = MPI.Op.Create(apply, True), np.zeros(4)
    for _ in range(2):
        comm.Iallreduce(np.ones(4), y, op).Wait()
        by_mpi = comm.last.algorithm == "mpi"
    for request in requests:
        request.Wait()
    if not (y == SIZE).all() or not requests:
        yield f"{y} {requests}"
    if not by_mpi and not all("cannot be waited for in an op" in words for words in waited or [""]):
        yield f"{waited}"


def handler_within_an_op():
    """A handler that runs in an op of the program's begins a call."""
    comm, requests = communicator(), []
    other = comm.Dup()
    signal.signal(signal.SIGALRM, lambda *_: requests.append(other.Ibarrier()))

    def apply(a, b, datatype):
        if not requests:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                pass
        np.frombuffer(b, float)[:] += np.frombuffer(a, float)

    op, y = MPI.Op.Create(apply, True), np.zeros(4)
    comm.Iallreduce(np.ones(4), y, op).Wait()
    if not requests:
        requests.append(other.Ibarrier())
    for request in requests:
        request.Wait()
    if not (y == SIZE).all():
        yield f"{y}"


def twice_in_place():
    """A second communicator of ours in place of the same one leaves the first as it is."""
    plain = MPI.Intracomm(WORLD.Dup())
    one, two = collectives.Communicator.in_place_of(plain), collectives.Communicator.in_place_of(plain)
    for comm in (one, two, one):
        y = np.zeros(1)
        comm.Allreduce(np.ones(1), y)
        if y[0] != SIZE:
            yield f"{y}"
    plain.Free()
    for comm in (one, two):
        try:
            comm.Barrier()
            yield "not known to be freed"
        except CollectiveError:
            pass


def failed_creations():
    """What a creation that fails has made is freed; MPIs have some thousand communicators."""
    os.environ["COLLECTIVES_ALGORITHM"] = "no such collective=ring"
    for _ in range(2300):
        try:
            collectives.Communicator(WORLD)
            yield "made in spite of it"
        except ValueError:
            pass
    del os.environ["COLLECTIVES_ALGORITHM"]
    communicator().Barrier()


def last_of_a_failed_call():
    """`last` says nothing of a call that failed, and nothing that was not."""
    comm = communicator()
    comm.Barrier()
    WORLD.Barrier()
    if RANK == 0:
        time.sleep(0.3)
    with contextlib.suppress(CollectiveError):
        comm.Allreduce(np.ones(3), np.ones(3), timeout=0.1)
    WORLD.Barrier()
    if RANK and comm.last is not None:
        yield f"{comm.last}"
    if RANK == 0 and (comm.last is not None and comm.last.seconds > 100):
        yield f"{comm.last}"


def inherited_by_idup():
    """A communicator made by Idup begins with the settings of its parent."""
    comm = communicator(3.5)
    comm.deterministic = True
    made, request = comm.Idup()
    request.Wait()
    if (made.timeout, made.deterministic) != (3.5, True):
        yield f"{made.timeout}, {made.deterministic}"


def checked_by_mpi():
    """COLLECTIVES_CHECK's own exchange does not go to MPI, though all-gathers do; nor do those of a group."""
    comm = communicator()
    comm.Barrier()
    x = [np.ones(3) for _ in range(2)]
    with comm.group():
        for array in x:
            comm.Allreduce(MPI.IN_PLACE, array)
    if not all((array == SIZE).all() for array in x):
        yield f"{x}"


def quotas():
    """Control groups grant ranks of one machine different shares of its cores: they still cut vectors alike."""
    machine.cgroup_quota = lambda: 1.0 if RANK == 0 else float("inf")
    machine.affinity = lambda: frozenset(range(64))
    yield from all_lengths()


def names():
    """Ranks of one machine have different host names, as in containers: they still cut vectors alike."""
    here = f"host{min(RANK, 1)}"
    socket.gethostname = lambda: here
    machine.affinity = lambda: frozenset(range(2))
    yield from all_lengths()


def all_lengths():
    comm = communicator()
    for n in (1, 500, 1024, 2048, 4096, 40_000, 300_000):
        x, y = np.arange(n) + float(RANK), np.zeros(n)
        sums = SIZE * np.arange(n) + SIZE * (SIZE - 1) / 2
        persistent = comm.Allreduce_init(x, y)
        for call in (lambda x=x, y=y: comm.Allreduce(x, y), lambda p=persistent: (p.Start(), p.Wait())):
            y[:] = 0
            call()
            if not (y == sums).all():
                yield f"all-reduce of {n}: {(y != sums).sum()} wrong"
        comm.Scan(x, y)
        if not (y == (RANK + 1) * np.arange(n) + RANK * (RANK + 1) / 2).all():
            yield f"scan of {n}"


def levels():
    """MPI was initialized with different thread levels: non-blocking calls go the same way on all ranks."""
    comm, y = communicator(), np.zeros(1000)
    levels = WORLD.allgather(MPI.Query_thread())
    if len(set(levels)) == 1:
        yield f"all ranks have the level {levels[0]}"
    for _ in range(3):
        comm.Iallreduce(np.full(1000, RANK + 1.0), y).Wait()
    if not (y == SIZE * (SIZE + 1) / 2).all():
        yield f"{y[:3]}"


def limited_children():
    """A forked child that may map no memory for itself does not write to its parent's."""
    x = communicator().zeros(1 << 20)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 20, most))
    child = os.fork()
    if child == 0:
        x[0] = 7
        os._exit(0)
    os.waitpid(child, 0)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    if x[0] != 0:
        yield "the child has written to its parent's array"


def secret_memory():
    """The system reads some memory for no other process: it is copied."""
    descriptor = ctypes.CDLL(None).syscall(447, 0)  # memfd_secret, as of memory that devices have pinned
    if all(one >= 0 for one in WORLD.allgather(descriptor)):
        os.ftruncate(descriptor, 4 << 20)
        x = np.frombuffer(mmap.mmap(descriptor, 4 << 20), np.uint8)
    else:
        x = np.zeros(4 << 20, np.uint8)
    for root in range(SIZE):
        x[:] = RANK + 1
        communicator().Bcast(x, root)
        if not (x == root + 1).all():
            yield f"{x[:3]} from {root}"


wrong = list(globals()[name]())
for words in wrong:
    print(f"wrong: rank {RANK}, {name}: {words}", flush=True)
print(f"attack: 1 trials, {min(1, len(wrong))} wrong", flush=True)
if name == "last_of_a_failed_call":
    WORLD.Barrier()
    time.sleep(0.5)  # the communicator is broken: the program ends by MPI_Abort
