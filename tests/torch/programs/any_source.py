"""Receives from any rank, on ranks that take themselves for those of several hosts: ``mpiexec -n 3 python ...``.

The last line is "N passed".
"""

import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from ranks import RANK, run

import collectives.torch  # noqa: F401
from collectives.system import machine

machine.boot_id = lambda: f"host {RANK}"


def test_the_first_receive_gets_the_first_message():
    """Also if the second one names the rank, as MPI has it for its own receives."""
    if RANK == 0:
        a, b, c, d = (torch.zeros(1) for _ in range(4))
        works = [dist.irecv(a), dist.irecv(b, 1), dist.irecv(c), dist.irecv(d, 2)]
        dist.barrier()
        for work in reversed(works):
            work.wait()
        assert (a.item(), b.item()) == (1, 2)
        assert {c.item(), d.item()} == {3, 4}
    else:
        dist.barrier()
        for number in {1: (1, 2), 2: ()}[RANK]:
            dist.send(torch.full((1,), float(number)), 0)
        dist.barrier(group=WITHOUT_0)
        for number in {1: (), 2: (3, 4)}[RANK]:
            dist.send(torch.full((1,), float(number)), 0)
    dist.barrier()


def test_a_rank_that_is_named_is_not_kept_from_its_message():
    """Its receive waits behind one from any rank only until that one has a message."""
    if RANK == 0:
        a, b, c = (torch.zeros(1) for _ in range(3))
        works = [dist.irecv(a), dist.irecv(b, 1), dist.irecv(c)]
        dist.barrier()
        works[0].wait()
        works[2].wait()  # both are rank 2's; rank 1 sends after that
        assert (a.item(), c.item()) == (1, 2)
        dist.barrier()
        works[1].wait()
        assert b.item() == 3
    else:
        dist.barrier()
        for number in {1: (), 2: (1, 2)}[RANK]:
            dist.send(torch.full((1,), float(number)), 0)
        dist.barrier()
        for number in {1: (3,), 2: ()}[RANK]:
            dist.send(torch.full((1,), float(number)), 0)
    dist.barrier()


LONG = 1 << 20  # elements: more than MPI sends before the receiver has begun


def test_ranks_that_send_meanwhile():
    """Each waits for its own message to go before it looks at its receive."""
    x = torch.zeros(LONG)
    work = dist.irecv(x)
    dist.send(torch.full((LONG,), RANK + 1.0), (RANK + 1) % 3)
    work.wait()
    assert x.eq((RANK - 1) % 3 + 1).all()
    dist.barrier()


def test_ranks_that_wait_for_a_collective_meanwhile():
    """Of the same group, and of another one: to these the other rank comes when its message has gone."""
    for call in (
        dist.barrier,
        lambda: dist.barrier(group=OTHER),
        lambda: dist.barrier(group=OTHER, async_op=True).wait(),
        lambda: dist.barrier(group=OTHER, async_op=True).get_future().wait(),
    ):
        x = torch.full((LONG,), RANK + 1.0)
        if RANK == 0:
            work = dist.irecv(x)
        elif RANK == 1:
            dist.send(x, 0)
        call()
        if RANK == 0:
            work.wait()
            assert x.eq(2).all()
    dist.barrier()


def test_a_signal_handler_may_test_within_a_test():
    if RANK == 0:
        a = torch.zeros(1)
        work = dist.irecv(a)
        signal.signal(signal.SIGALRM, lambda *_: work.is_completed())
        signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)
        work.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert a.item() == 7
    elif RANK == 1:
        time.sleep(0.5)
        dist.send(torch.full((1,), 7.0), 0)
    dist.barrier()


class Signalled:
    """A request, and a signal just before each test, or as soon as MPI has completed it."""

    def __init__(self, request, before):
        self.request, self.before = request, before

    def __bool__(self):
        return bool(self.request)

    def Test(self, status):
        if self.before:
            signal.raise_signal(signal.SIGALRM)
        done = self.request.Test(status)
        if done and not self.before:
            signal.raise_signal(signal.SIGALRM)
        return done


def receive(before):
    """Receive 7 from rank 1, while a signal's handler tests the receive."""
    a, seen, handling = torch.zeros(1), [], []

    def handle(*_):
        if not handling:
            handling.append(True)
            seen.append(work.is_completed() and a.item())
            handling.pop()

    work = dist.irecv(a)
    work._request = Signalled(work._request, before)
    signal.signal(signal.SIGALRM, handle)
    work.wait()
    assert seen[-1] == 7
    assert work._source_rank() == 1


def test_a_signal_handler_may_test_just_before_or_after_a_message_is_noticed():
    for before in (True, False):
        if RANK == 0:
            receive(before)
        elif RANK == 1:
            dist.send(torch.full((1,), 7.0), 0)
        dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("collectives", timeout=timedelta(seconds=20))
    OTHER = dist.new_group(timeout=timedelta(seconds=20))
    WITHOUT_0 = dist.new_group([1, 2])
    run(globals())
