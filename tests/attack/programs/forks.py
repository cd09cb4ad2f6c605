"""Forked children of ranks whose arrays lie on the heap.

Usage: forks.py WHAT [FACTOR], where WHAT is a kind of use or "all". Prints how many trials were made, and how many were
wrong.
"""

import functools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import numpy.random  # before any fork: a lock of its import by another thread would be the child's for ever
from mpi4py import MPI

import collectives
from collectives.system import heap

fork = multiprocessing.get_context("fork")
comm = collectives.Communicator(MPI.COMM_WORLD)


def summed(seed: int) -> tuple[int, float, np.ndarray]:
    """Work in arrays of many lengths, of which each must keep what was written to it; and an array to send back."""
    random = np.random.default_rng(seed)
    arrays = [np.full(int(length), seed, np.int64) for length in random.integers(100, 60_000, 12)]
    grown = np.arange(2000 + seed)
    grown.resize(200_000, refcheck=False)
    wrong = sum(int((array != seed).any()) for array in arrays)
    wrong += int((grown[: 2000 + seed] != np.arange(2000 + seed)).any())
    return wrong, float(sum(array.sum() for array in arrays)), np.full(3000, seed, np.int32)


def expected(seed: int) -> float:
    random = np.random.default_rng(seed)
    return float(sum(int(length) * seed for length in random.integers(100, 60_000, 12)))


class Allocating:
    """Threads that allocate, write, check and free, as long as the block lasts."""

    def __init__(self, threads: int):
        self.end = threading.Event()
        self.wrong = 0
        self.threads = [threading.Thread(target=self.work, args=(1000 + i,)) for i in range(threads)]

    def work(self, seed: int) -> None:
        collectives.share_arrays()  # holds in the thread that calls it
        while not self.end.is_set():
            seed += 7
            self.wrong += summed(seed)[0]
            time.sleep(0.002)

    def __enter__(self) -> "Allocating":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.end.set()
        for thread in self.threads:
            thread.join()


def pool(trials: int) -> int:
    """The results of a pool of forked workers, with threads that allocate in the parent meanwhile."""
    wrong = 0
    with Allocating(2) as beside:
        for _ in range(3):
            with fork.Pool(4) as workers:
                for seed, (bad, total, array) in enumerate(workers.imap(summed, range(trials // 3), 4)):
                    wrong += bool(bad or total != expected(seed) or (array != seed).any())
            x = np.ones(50_000)
            comm.Allreduce(MPI.IN_PLACE, x)
            wrong += int((x != comm.size).any())
    return wrong + beside.wrong


def exit_code(process: multiprocessing.Process, seconds: float = 60) -> int:
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return 99
    return process.exitcode


def forks_beside_threads(trials: int) -> int:
    """A lock that another thread has at the moment of the fork must not be the child's."""
    wrong = 0
    with Allocating(4) as beside:
        for seed in range(trials):
            child = os.fork()
            if child == 0:
                os._exit(int(bool(summed(seed)[0])))
            end, done = time.monotonic() + 30, (0, 0)
            while done == (0, 0) and time.monotonic() < end:
                done = os.waitpid(child, os.WNOHANG)
                time.sleep(0.001)
            if done == (0, 0):
                os.kill(child, 9)
                os.waitpid(child, 0)
            wrong += done != (child, 0)
    return wrong + beside.wrong


def handed(array: np.ndarray, value: float, go: int) -> None:
    """Look at an array that the parent has let go of at once, when the parent has allocated others."""
    os.read(go, 1)
    bad = bool((array != value).any())
    sys.exit(int(bad))


def handed_over(trials: int) -> int:
    """Arguments of a process are the child's alone as soon as it runs: the parent drops them, and reuses memory."""
    wrong = 0
    for trial in range(trials):
        ready, go = os.pipe()
        length = (600, 4000, 40_000, 400_000)[trial % 4]
        process = fork.Process(target=handed, args=(np.full(length, trial + 0.5), trial + 0.5, ready))
        process.start()
        others = [np.full(length, -1.0) for _ in range(4)]
        os.write(go, b"x")
        wrong += exit_code(process) != 0 or not all((other == -1).all() for other in others)
        os.close(ready)
        os.close(go)
    return wrong


def grandchildren(trials: int) -> int:
    """What a child's child sees is kept as well, though the child has ended."""
    wrong = 0
    for trial in range(trials):
        (ready, go), (told, tell) = os.pipe(), os.pipe()
        array, value = np.full(30_000, trial + 0.25), trial + 0.25
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                os.read(ready, 1)
                os.write(tell, b"x" if (array == value).all() else b"-")
            os._exit(0)
        del array
        wrong += os.waitpid(child, 0)[1]
        others = [np.full(30_000, -2.0) for _ in range(4)]
        os.write(go, b"x")
        wrong += os.read(told, 1) != b"x" or not all((other == -2).all() for other in others)
        for end in (ready, go, told, tell):
            os.close(end)
    return wrong


def given_back(trials: int) -> int:
    """Memory that children have seen is reused once they are gone: forks cost no memory for good."""
    own, wrong = heap.process_heap(), 0
    for trial in range(trials):
        kept = np.ones(1 << 20)
        child = os.fork()
        if child == 0:
            os._exit(0)
        del kept
        os.waitpid(child, 0)
        if trial == 8:
            before, files = own.reserved, len(os.listdir("/proc/self/fd"))
        wrong += trial > 8 and (own.reserved > before + (16 << 20) or len(os.listdir("/proc/self/fd")) > files + 4)
    return wrong


def scribble(array: np.ndarray, view: np.ndarray, tell) -> None:
    bad = int((array != 3).any())
    array[:] = 4  # private to the child
    view += 1
    bad += int((array != 4).any())
    np.frombuffer(array, np.uint8).sum()
    try:
        comm.empty(10)
        bad += 1
    except collectives.CollectiveError as e:
        bad += "forked" not in str(e)
    try:
        collectives.share_arrays()
        bad += 1
    except collectives.CollectiveError as e:
        bad += "forked" not in str(e)
    bad += int(np.ones(100_000).ctypes.data in heap.process_heap())
    array.resize(10, refcheck=False)
    bad += int(array.ctypes.data in heap.process_heap()) + int((array != 4).any())
    tell.put((bad, np.full(100_000, 5.0)))
    del array, view


def written_by_children(trials: int) -> int:
    """A child's writes to older arrays are its own; queues bring back what it makes."""
    wrong = 0
    for trial in range(trials):
        array, view = np.full(20_000 + trial, 3.0), np.zeros(5000)
        queue = fork.Queue()
        process = fork.Process(target=scribble, args=(array, view, queue))
        process.start()
        bad, made = queue.get(timeout=60)
        wrong += exit_code(process) != 0 or bad != 0 or bool((made != 5).any())
        wrong += bool((array != 3).any() or view.any())
    return wrong


def through_shared_memory(name: str, length: int) -> None:
    block = SharedMemory(name)
    array = np.ndarray(length, buffer=block.buf)
    array[:] = np.full(length, 7.0) + array
    del array
    block.close()


def others(trials: int) -> int:
    """SharedMemory of a child; other programs, by every way to start them; a collective after each."""
    wrong = 0
    for trial in range(trials):
        block = SharedMemory(create=True, size=8 * 10_000)
        array = np.ndarray(10_000, buffer=block.buf)
        array[:] = trial
        process = fork.Process(target=through_shared_memory, args=(block.name, 10_000))
        process.start()
        wrong += exit_code(process) != 0 or bool((array != 7 + trial).any())
        del array
        block.close()
        block.unlink()
        mine = np.full(30_000, trial)
        for how in ({}, {"preexec_fn": os.getpid}, {"close_fds": False}):
            wrong += subprocess.run(["true"], **how).returncode
        spawned = os.posix_spawn("/bin/true", ["true"], os.environ)
        wrong += os.waitpid(spawned, 0)[1]
        wrong += bool((mine != trial).any())
        x = np.ones(5000)
        comm.Allreduce(MPI.IN_PLACE, x)
        wrong += bool((x != comm.size).any())
    return wrong


ENDINGS = {
    "Wait": lambda request: request.Wait(),
    "Test": lambda request: request.Test(),
    "Free": lambda request: request.Free(),
    "del": lambda request: None,
}


def child_fails(call: Callable[[], object], or_does_nothing: bool = False) -> int:
    """A child's exit status: 0 if a call is refused there because the process was forked, ``or_does_nothing``."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    said = ""
    try:
        call()
    except Exception as e:
        said = f"{type(e).__name__}: {e}"
    finally:
        os._exit("was forked" not in said if said or not or_does_nothing else 0)


def revoked(trials: int) -> int:
    """Children that revoke or shrink their parent's communicator, which goes on."""
    wrong = 0
    for _ in range(trials):
        wrong += any(map(child_fails, (comm.Revoke, comm.shrink, comm.Barrier)))
        comm.Barrier()
    return wrong


def requests(trials: int) -> int:
    """Children that wait for, test, free or drop what their parent has under way, which goes on."""
    wrong = 0
    for trial in range(trials):
        n = (10, 3000, 200_000)[trial % 3]
        x, y = np.full(n, 1.0 + trial), np.empty(n)
        how = list(ENDINGS)[trial // 3 % len(ENDINGS)]
        for algorithm in (None, "ring", "mpi"):
            begun = comm.Iallreduce(x, y, algorithm=algorithm)
            wrong += child_fails(functools.partial(ENDINGS[how], begun), how not in ("Wait", "Test")) != 0
            begun.Wait()
            wrong += bool((y != comm.size * x).any())
        lasting = comm.Allreduce_init(x, y)
        lasting.Start()
        wrong += child_fails(functools.partial(ENDINGS[how], lasting), how not in ("Wait", "Test")) != 0
        lasting.Wait()
        lasting.Free()
        wrong += bool((y != comm.size * x).any())
    return wrong


KINDS = {
    function.__name__: (function, trials)
    for function, trials in (
        (pool, 300), (forks_beside_threads, 60), (handed_over, 40), (grandchildren, 10), (given_back, 40),
        (written_by_children, 6), (others, 4), (requests, 24), (revoked, 2),
    )
}  # fmt: skip


def main() -> None:
    collectives.share_arrays()
    factor = float(sys.argv[2]) if len(sys.argv) > 2 else 1
    for what in KINDS if sys.argv[1] == "all" else [sys.argv[1]]:
        function, trials = KINDS[what]
        trials = int(trials * factor)
        wrong = function(trials)
        print(f"attack: {trials} trials, {wrong} wrong ({what})", flush=True)
        comm.Barrier()


main()
