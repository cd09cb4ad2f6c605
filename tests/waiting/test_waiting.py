"""Waits for many ranks: whoever of them has gone is found, however many there are. Without MPI."""

import errno
import gc
import subprocess
import sys
import threading
import time
import weakref

import pytest

from collectives import CollectiveMismatch, CollectiveTimeout, PeerFailure
from collectives.arguments import timeouts
from collectives.arguments.signature import Call
from collectives.core import _core
from collectives.diagnostics import peer_queries
from collectives.diagnostics.diagnosis import Answer, lines, overdue, position
from collectives.runtime.plans import Plans
from collectives.system import machine
from collectives.waiting import waiting, watching

SIZE, GONE = 100, 70
CALL = Call(3, "allreduce", "mpi", 10, "float64", "SUM", None)


class Run:
    """A call that MPI serves, which does not end, and of which nobody knows for whom it waits."""

    plan = ranks = None

    def __str__(self):
        return "allreduce (mpi)"

    def call(self):
        return CALL

    def wait(self, yield_at_once, limit):
        time.sleep(limit * 1e-9)
        return False


class Many(waiting.Waiting):
    """Rank 0 of many, the processes of which run, and do not answer."""

    identity, mpi_queries = "many", None

    def __init__(self):
        self.set_group(0, SIZE)
        self.yield_at_once = True
        self.waits, self.left, self.tested = [], {}, {}
        self.neighbours = dict.fromkeys(range(1, SIZE), peer_queries.address()._replace(socket=b"\0nobody", note=-1))


class MPIQueries:
    """Notes who is asked."""

    def __init__(self):
        self.asked, self.answers = set(), {}

    def ask(self, ranks, number=None):
        self.asked.update(ranks)

    def serve(self):
        pass

    def refused(self, rank):
        return False


@pytest.fixture
def context():
    return Many()


@pytest.fixture
def dead(context):
    """One of the processes has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    context.neighbours[GONE] = context.neighbours[GONE]._replace(pid=process.pid)


def test_who_cannot_be_looked_at_is_not_dead(context, monkeypatch):
    def without_descriptors(pid):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(machine, "process", without_descriptors)
    with pytest.raises(CollectiveTimeout):
        context.wait(Run(), 0.1)


def test_a_handler_of_a_signal_may_come_within_the_locks():
    """As the one of SIGUSR2 does, which gives back what has ended."""
    lock = Plans()._lock
    with lock:
        assert lock.acquire(blocking=False)
        lock.release()


@pytest.mark.parametrize("timeout", [None, 30])
def test_a_death_is_noticed_among_many(context, dead, timeout):
    with pytest.raises(PeerFailure, match=rf"rank {GONE} died \(its process \d+ has ended\)"):
        context.wait(Run(), timeout)


def test_the_timeout_finds_a_death_among_many(context, dead):
    words = rf"not complete after 0.1 s; waiting for rank .*; rank {GONE} died"
    with pytest.raises(PeerFailure, match=words) as caught:
        context.wait(Run(), 0.1)
    assert f"\n  rank {GONE}: its process" in str(caught.value)


def test_the_end_of_a_program_is_noticed_among_many(context):
    context.left[GONE] = Answer(GONE, begun=2, left="ended its program (prog.py)")
    with pytest.raises(PeerFailure, match=rf"rank {GONE} ended its program \(prog.py\)"):
        context.wait(Run(), 30)


def test_all_are_asked_in_turn(context, monkeypatch):
    monkeypatch.setattr(watching, "PATIENCE", (0.04, 0.04))
    context.neighbours, context.mpi_queries = {}, MPIQueries()
    asked = context.mpi_queries.asked
    with pytest.raises(CollectiveTimeout):
        context.wait(Run(), 0.5)
    assert asked == set(range(1, SIZE))


@pytest.mark.parametrize("turns", range(1, 8))
@pytest.mark.parametrize("number", [0, 1, watching.ASKED, watching.ASKED + 1, 100, 1000])
def test_looks_go_round(number, turns):
    looked = [watching._some(list(range(number)), turn) for turn in range(turns)]
    assert all(len(ranks) == min(number, watching.ASKED) == len(set(ranks)) for ranks in looked)
    assert len({rank for ranks in looked for rank in ranks}) == min(number, turns * watching.ASKED)


def said(*others):
    return [Answer(0, CALL, 3, "prog.py:1"), *others]


def test_so_many_are_asked_for_an_error(context, monkeypatch):
    """docs/errors.md: up to 63 others."""
    asked = []
    monkeypatch.setattr(peer_queries.PeerQuery, "ask", lambda self, ranks: asked.extend(ranks))
    monkeypatch.setattr(peer_queries.PeerQuery, "settle", lambda self, ranks, again: self.ask(ranks) or [])
    context.parties(Run(), [70])
    assert asked == [70, *range(1, 63)]


def test_long_waits_are_reported_after_a_minute_unless_told(monkeypatch):
    """docs/environment.md."""
    monkeypatch.delenv("COLLECTIVES_STALL", raising=False)
    assert timeouts.stall_from_environment() == 60
    monkeypatch.setenv("COLLECTIVES_STALL", "0")
    assert timeouts.stall_from_environment() is None


def test_what_a_timeout_finds():
    """A difference, an end, a death, or nothing but lateness."""
    other = Answer(1, CALL._replace(op="MAX"), 3, "prog.py:2")
    assert overdue("late", [1], said(other), [])[:2] == (CollectiveMismatch, "rank 1 is in another call")
    away = Answer(1, None, 2, "prog.py:2")
    assert overdue("late", [1], said(away), [])[:2] == (CollectiveTimeout, "late; waiting for rank 1")
    gone = Answer(1, None, 2, left="ended its program")
    assert overdue("late", [1], said(gone), [])[:2] == (PeerFailure, "late; waiting for rank 1")
    silent = Answer(1, silent="its process 7 has ended")
    assert overdue("late", [1], said(silent), [1])[:2] == (PeerFailure, "late; waiting for rank 1; rank 1 died")
    assert overdue("late", [], said(), [1])[:2] == (PeerFailure, "late; waiting for rank 1; rank 1 died")
    past = Answer(1, None, 4, "prog.py:3")
    told = "late; waiting for rank 1; rank 1 has begun later calls, and may have sent no data, or less than expected,"
    assert overdue("late", [1], said(past), [])[:2] == (CollectiveTimeout, f"{told} for this one")
    here = Answer(2, CALL, 3, "prog.py:1")
    assert overdue("late", [1], said(away, here), [2])[:2] == (CollectiveTimeout, "late; waiting for rank 1")


def test_of_many_ranks_those_are_described_that_have_not_come():
    others = {rank: Answer(rank, CALL, 3, "prog.py:1") for rank in range(1, SIZE)}
    others[GONE] = Answer(GONE, None, 2, "prog.py:2")
    told = lines(said(*others.values()))
    assert told.splitlines()[1:3] == [f"  {said()[0]}", f"  {others[GONE]}"]
    assert told.endswith(f"({SIZE - 16} more ranks)")


def test_an_exception_while_a_failure_is_looked_into_gives_the_call_up(context, monkeypatch):
    """A signal handler's, before the failure is noted: the wait must not stay on the list, nor other ranks wait."""

    class StopError(Exception):
        pass

    def stop(*_):
        raise StopError

    for step, error in ("given_up", _core.GivenUpError()), ("_blame", RuntimeError()):
        run, noted = Run(), []
        context.waits.append(watching.Wait(run, None, context.waits))
        with monkeypatch.context() as patch:
            patch.setattr(Many, "note", lambda self, run, error, noted=noted: noted.append((run, type(error))))
            patch.setattr(Many, step, stop)
            with pytest.raises(StopError):
                context.fail(run, error)
        assert noted == [(run, StopError)]
        assert not context.waits


def test_of_many_tested_calls_the_first_ones_stay_watched(context, monkeypatch):
    """One that is no longer tested makes room for another one."""
    looked = []
    monkeypatch.setattr(watching.Watch, "look", lambda self, run: looked.append(run))
    runs = [Run() for _ in range(waiting.TESTED + 1)]
    for _ in range(3):
        for run in runs:
            context.glance(run, run)
    watches = dict(context.tested)
    assert list(watches) == looked == runs[:-1]
    watches.pop(runs[3]).next_look -= 2 * watching.LATELY
    context.glance(runs[-1], runs[-1])
    assert looked[-1] is runs[-1]
    assert context.tested == {**watches, runs[-1]: context.tested[runs[-1]]}


def test_communicators_are_looked_at_while_others_are_made():
    """The watchdog's thread looks at them all, and would end by an exception."""
    failures, ended = [], threading.Event()

    def look():
        while not ended.is_set():
            try:
                peer_queries.contexts()
            except RuntimeError as e:
                failures.append(e)

    watching_thread, interval = threading.Thread(target=look), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    watching_thread.start()
    try:
        made = []
        for i in range(10_000):
            made = [*made[-100:], Many()]
            peer_queries.register(f"many {i % 300}", made[-1])
    finally:
        ended.set()
        watching_thread.join()
        sys.setswitchinterval(interval)
    assert not failures


@pytest.mark.parametrize(
    ("module", "place"),
    [
        ("namedtuple_Call", __file__),
        ("collectives.torch.work", __file__),
        ("__main__", "<string>:1"),
        (None, "<string>:1"),
    ],
)
def test_generated_methods_are_not_where_a_program_is(module, place):
    scope = {"__name__": module, "position": position}
    exec("def look(thread): return position(thread)", scope)
    assert scope["look"](threading.get_ident()).startswith(place)


def test_asking_where_a_thread_is_keeps_nothing_alive():
    class Thing:
        pass

    def look():
        thing = Thing()
        assert __file__ in position(threading.get_ident())
        return weakref.ref(thing)

    gc.disable()
    try:
        assert look()() is None
    finally:
        gc.enable()
