"""Random calls against NumPy, the same sequence on all ranks: collectives, algorithms, types, ops, lengths, roots.

    mpiexec -n 3 python tests/runtime/programs/random_calls.py CASES [SEED [THREADS [IMPATIENT]]]

A case is one call: blocking, non-blocking with several in flight, or persistent; in place or not; on one of several
communicators. Many are like earlier ones, whose plans are kept. Elements are of MPI's types, or of any size from 1 to
4096 bytes with an op of the user's. Each rank draws for itself where its arrays lie (private or on the heap, on whole
lines or at any address) and how it names its buffers, so that some ranks take the compiled fast path and others the
long one. Threads have communicators of their own. A rank comes late now and then, and the others look at each other.
With IMPATIENT = 1 they also ask each other what they do, after 1 ms where it is 1 s else. Memory, descriptors and names
in /dev/shm are counted after a first tenth of the cases and at the end: they may not have grown.
"""

import collections
import gc
import os
import random
import resource
import sys
import threading
import time
import traceback

import operands
from mpi4py import MPI
from random_cases import MOVED, RANK, SIZE, Case, pool

import collectives
from collectives.core import _core
from collectives.system import heap
from collectives.waiting import watching

RENEWED = 2000  # cases after which communicators are made anew


def held():
    """Bytes of private memory, of the heap, descriptors, and names in /dev/shm of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    names = [name for name in os.listdir("/dev/shm") if name.startswith(f"collectives-{os.getpid()}-")]
    private = (resident - shared) * resource.getpagesize()
    return private, heap.process_heap().reserved, len(os.listdir("/proc/self/fd")), len(names)


LATE = [0.0001, 0.001, 0.005]  # seconds that a rank comes late


class Player:
    """Makes the calls of one thread, on communicators of its own."""

    def __init__(self, seed, ran):
        self.draw, self.own = random.Random(seed), random.Random(f"{seed} {RANK}")
        self.ran = ran
        self.comms, self.flying, self.wrong = [], [], 0
        self.last = collections.deque(maxlen=20)

    def renew(self, first=0):
        """Make communicators anew, all but some; collective, and so for one thread at a time."""
        for comm in self.comms[first:]:
            comm.Free()
        self.comms = [collectives.Communicator(MPI.COMM_WORLD) for _ in range(3)]

    def play(self, numbers):
        """The cases of these numbers."""
        for number in numbers:
            case, where = self.next_case(number)
            if self.own.random() < 0.05:
                time.sleep(self.own.choice(LATE))  # the others wait, and look at each other
            try:
                ending = case.begin(self.comms[where])
            except AssertionError:
                self.note(case)
                continue
            except BaseException:
                print(f"case: {case}", file=sys.stderr, flush=True)
                raise
            self.flying.append((case, ending))
            if self.draw.random() < 0.02:
                # null requests apart: with one before a generalized request, MPICH 5.0.2 fails an assertion
                MPI.Request.Waitall([c.request for c, _ in self.flying if c.request])
            self.end(self.draw.choice((0, 1, 3, 6)))
            self.ran[case.collective.name, case.algorithm, case.form] += 1
        self.end(0)

    def next_case(self, number):
        """A case, and the number of its communicator; often alike to one of the last, but for the memory it lies in."""
        if self.last and self.draw.random() < 0.4:
            state, where = self.draw.choice(self.last)
            again = random.Random()
            again.setstate(state)
            return Case(again, self.own, number), where
        state, where = self.draw.getstate(), self.draw.randrange(3)
        self.draw.setstate(state)
        self.last.append((state, where))
        return Case(self.draw, self.own, number), where

    def end(self, left):
        """End calls until so many fly; every rank ends them in an order of its own."""
        while len(self.flying) > left:
            case, ending = self.flying.pop(self.own.randrange(len(self.flying)))
            try:
                ending()
            except AssertionError:
                self.note(case)
            except BaseException:
                print(f"case: {case}", file=sys.stderr, flush=True)
                raise

    def note(self, case):
        self.wrong += 1
        print(f"case: {case}\n{traceback.format_exc()[-2000:]}", file=sys.stderr, flush=True)


def abort():
    traceback.print_exc()
    sys.stderr.flush()
    time.sleep(0.2)
    MPI.COMM_WORLD.Abort(1)


def play(player, numbers):
    try:
        player.play(numbers)
    except BaseException:
        abort()


def side_by_side(players, numbers):
    """All players at once, each in a thread of its own if there are several."""
    if len(players) == 1:
        players[0].play(numbers)
        return
    threads = [threading.Thread(target=play, args=(player, numbers)) for player in players]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(cases, seed=1, threads=1, impatient=0):
    if impatient:  # those that wait ask the others after a millisecond
        watching.SLICE, watching.PATIENCE, LATE[:] = 2_000_000, (0.001, 0.01), (0.01, 0.03, 0.08)
    for dtype, op in (*operands.ALL, *((dtype, None) for dtype in MOVED), ("bytes", None)):
        pool(dtype, op)
    ran, begin, before, said = collections.Counter(), time.monotonic(), None, ""
    players = [Player(seed + 1000 * k, ran) for k in range(threads)]
    each, turn, at = cases // threads, 0, 0
    while at < each:
        step = min(RENEWED, each - at) if at else min(max(each // 10, 50), each)
        for player in players:
            player.renew(turn % 2)
        side_by_side(players, range(at, at + step))
        before = before or held()
        turn, at = turn + 1, at + step
    _core.sweep()
    end = time.monotonic() + 3
    while held()[2] > before[2] + 2 and time.monotonic() < end:
        time.sleep(0.1)  # threads of the library, which look at the other ranks, have sockets open for a moment
    private, shared, descriptors, names = (b - a for a, b in zip(before, held(), strict=True))
    said = f"private memory grew by {private >> 10} KiB, the heap by {shared >> 10} KiB"
    assert private < (96 << 20) * threads + 100 * cases, said  # idle plans hold up to 64 MiB
    assert shared < (320 << 20), said  # freed blocks of up to 256 MiB are kept for reuse
    assert descriptors <= 2, f"{descriptors} descriptors more"
    assert names <= 0, f"{names} names more in /dev/shm"
    wrong = sum(player.wrong for player in players)
    for player in players:
        for comm in player.comms:
            comm.Free()
    if RANK == 0:
        print(f"{cases} cases on {SIZE} ranks in {time.monotonic() - begin:.0f} s; {len(ran)} kinds; {said}")
    print(f"attack: {cases} trials, {wrong} wrong", flush=True)
    sys.exit(wrong > 0)


try:
    main(*map(int, sys.argv[1:]))
except Exception:
    abort()
