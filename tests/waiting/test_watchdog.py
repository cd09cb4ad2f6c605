"""What the watchdog takes for a thread that MPI keeps, and what it does without threads of its own. Without MPI."""

import logging
import queue
import threading
import time
from types import SimpleNamespace

import pytest

from collectives.arguments.signature import Call
from collectives.diagnostics import peer_queries
from collectives.diagnostics.own_socket import OwnSocket
from collectives.waiting import dump, waiting, watchdog
from collectives.waiting.watching import Wait

LOOKS = 3 * watchdog.STILL


class Context(waiting.Waiting):
    """Rank 0 of two, which knows nothing of the other one."""

    identity, mpi_queries = "two", None

    def __init__(self):
        self.set_group(0, 2)
        self.yield_at_once = True
        self.waits, self.left, self.tested, self.neighbours = [], {}, {}, {}


class Run:
    """A call that MPI serves."""

    plan = ranks = None

    def call(self):
        return Call(1, "allreduce", "mpi", 10, "float64", "SUM", None)


class InMPI(Run):
    """A call that stays in compiled code until it is told to end."""

    def __init__(self):
        self.told = queue.SimpleQueue()
        self.wait = self.told.get  # its arguments are: block, timeout in seconds

    def end(self):
        self.told.put(True)


class InHandler(Run):
    """A call in whose wait the program's code runs, and waits in Python's library."""

    def __init__(self):
        self.told = threading.Event()
        self.end = self.told.set

    def wait(self, yield_at_once, limit):
        return self.told.wait()


@pytest.fixture
def begin(monkeypatch):
    """A function that begins to wait for a call in another thread, and returns its context."""
    begun = []

    def wait_for(run):
        context = Context()
        monkeypatch.setattr(peer_queries, "contexts", lambda: [context])
        thread = threading.Thread(target=context.wait, args=(run,))
        thread.start()
        begun.append((run, thread))
        while not context.waits:
            time.sleep(0.001)
        time.sleep(0.1)  # until it waits indeed
        return context

    yield wait_for
    for run, thread in begun:
        run.end()
        thread.join()


def state_after(looks, each=lambda: None):
    """The state of the oldest wait after some looks."""
    seen = {}
    for _ in range(looks):
        watchdog._look(seen)
        each()
    return next(iter(seen.values()))


def test_a_thread_in_compiled_code_is_stuck(begin):
    begin(InMPI())
    assert state_after(LOOKS).stuck


def test_a_handler_of_the_program_is_not_stuck(begin):
    """Also if the innermost frames are those of Python's library."""
    begin(InHandler())
    assert not state_after(LOOKS).stuck


def test_a_wait_within_a_handler_progresses_for_the_one_around_it(begin):
    context = begin(InMPI())
    inner = Wait(Run(), None, [])
    inner.thread = context.waits[0].thread
    inner.watch = SimpleNamespace(looks=0, begin=time.monotonic(), silence=None, behind=[])
    context.waits.append(inner)

    def progress():
        inner.watch.looks += 1

    assert not state_after(LOOKS, progress).stuck
    assert state_after(LOOKS).stuck


def test_code_of_the_program_shows_progress_on_the_fast_path():
    """There the innermost frame is always the program's, so only a change of place counts."""
    wait, seen = Wait(Run(), None, []), watchdog.Seen()
    wait.calls_back = False
    assert [seen.look(wait, True, spot) for spot in ("a", "a", "b", "b")] == [True, False, True, False]
    wait.calls_back = True
    assert seen.look(wait, True, "b")


@pytest.fixture
def no_threads(monkeypatch):
    """No thread can be started."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_without_threads(no_threads, monkeypatch):
    called = []
    assert dump.bounded(lambda: called.append(1), "otherwise") == "otherwise"
    monkeypatch.setattr(watchdog._core, "abort", lambda: called.append("abort"))
    watchdog._abort()
    assert called == ["abort"]


def test_who_has_no_thread_for_answers_has_no_address(no_threads, monkeypatch):
    monkeypatch.setattr(peer_queries, "_desk", OwnSocket(peer_queries._staffed))
    assert peer_queries.address() is None
    monkeypatch.undo()
    assert peer_queries.address() is not None


def test_a_look_that_fails_is_reported_once(caplog):
    def fail():
        raise MemoryError("for now")

    failed = set()
    with caplog.at_level(logging.WARNING, "collectives"):
        for _ in range(3):
            watchdog._try(fail, failed)
    assert [record.getMessage().endswith(": MemoryError: for now") for record in caplog.records] == [True]
