"""New processes in the place of dead ranks (MPI_Comm_spawn). All waits for them, and theirs for others, are bounded.

Open MPI's own waits are not: by default PMIx_Connect, within MPI_Comm_spawn, waits for ever for a rank that has died.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import Any, TypeVar

import collectives

from ..deaths import dead_ranks

T = TypeVar("T")

#: Replaces itself by Python with the program's arguments. The alarm stays, and ends a process that nobody lets in.
STARTER = """\
import os, signal, sys
signal.alarm(int(sys.argv[1]))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"""

LEAVING = 10  # seconds
_joined = False


def joining() -> bool:
    """Whether this process was started to replace a dead rank, and has not joined the others yet.

    Such a process runs the program alone up to `Run.steps`. It is no rank 0 then, whatever its communicator says.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if _joined or mpi is None or mpi.Comm.Get_parent() == mpi.COMM_NULL:
        return False
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, _come_late)
    return True


def _come_late(*_: Any) -> None:
    """End this process, which the others no longer wait for, once their MPI_Intercomm_merge has ended.

    Otherwise Open MPI repeats that without end, with a message each time, and makes no communicators any more.
    """
    from mpi4py import MPI

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LEAVING)  # if one of the others has died, this process ends in the middle
    MPI.Comm.Get_parent().Merge(high=True)
    time.sleep(LEAVING / 5)  # it may end here before it ends there
    os.kill(os.getpid(), signal.SIGKILL)


def parents() -> Any:
    """A communicator of the ranks that started this process, and of the new ones, which are the last. Collective."""
    from mpi4py import MPI

    return collectives.Communicator(MPI.Comm.Get_parent().Merge(high=True))


def joined() -> None:
    """The others have let this process in: it is a rank like them."""
    global _joined
    _joined = True
    signal.alarm(0)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def with_new_ranks(comm: Any, count: int, seconds: float) -> Any:
    """A communicator of the ranks of `comm` and of `count` new processes that run this program. Collective.

    PeerFailure if MPI cannot start them, and if they have not come to `Run.steps` after `seconds`; it names who is
    missing. They are ended then.
    """
    from mpi4py import MPI

    started = threading.Event()

    def start() -> Any:
        words = ["-c", STARTER, str(math.ceil(seconds)), *sys.orig_argv[1:]]
        between = MPI.Intracomm(comm).Spawn(sys.executable, words, count)
        started.set()
        return between.Merge(high=False)

    try:
        return collectives.Communicator(within(seconds, start))
    except MPI.Exception as error:
        dead = _dead(comm)
        raise collectives.PeerFailure(f"no new ranks: {error}{dead and f'; {dead}'}") from error
    except Late:
        new = f"{count} new process{'es' if count > 1 else ''}"
        who = _dead(comm) or f"{new} did not {'come to Run.steps' if started.is_set() else 'start'}"
        raise collectives.PeerFailure(f"no new ranks after {seconds:g} s: {who}") from None


def within(seconds: float, work: Callable[[], T]) -> T:
    """``work()``, in a thread of its own if MPI allows it. `Late` after `seconds`: the thread then stays in MPI."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return work()
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="collectives-elastic", daemon=True).start()
    return done.result(seconds)


def _dead(comm: Any) -> str:
    """The ranks of `comm` that MPI knows to be dead, as text."""
    ranks = ", ".join(map(str, dead_ranks(comm)))
    return f"rank {ranks} died meanwhile" if ranks else ""
