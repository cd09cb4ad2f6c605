"""Messages whose end several waits ask for: ``mpiexec -n 2 python messages.py``, or by ``torchrun``, without MPI.

With the argument "lost", a message that does not come, and calls that differ. The last line is "N passed".
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import time
import weakref
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks import RANK, run

import collectives.torch
from collectives.system import lifetime

LATE = 0.2  # seconds after which rank 1 sends


class Alone:
    """A request that says whether a second thread tested it during a test."""

    def __init__(self, request):
        self.request, self.inside, self.tests, self.together = request, 0, 0, 0

    def Test(self, status):
        """As of a request, but it takes longer."""
        self.inside += 1
        self.tests += 1
        self.together += self.inside > 1
        time.sleep(0.002)
        ended = self.request.Test(status)
        self.inside -= 1
        return ended


def by_mpi(work):
    return isinstance(work, collectives.torch.messages.MPIMessage)


def until_complete(work):
    """Poll."""
    end = time.monotonic() + 10
    while not work.is_completed():
        assert time.monotonic() < end
        time.sleep(1e-4)


def received(tag=0):
    """On rank 0 a receive into scattered memory of what rank 1 sends late, and the memory; else None."""
    if RANK == 0:
        x = torch.zeros(2, 3).t()
        return x, dist.irecv(x, 1, tag=tag)
    time.sleep(LATE)
    dist.send(torch.full((3, 2), 5.0), 0, tag=tag)
    return None


def test_a_message_is_received_once_whoever_waits_again():
    """What the program does with the tensor after the first wait stays."""
    agains = [
        lambda work: work.wait(),
        lambda work: work.get_future().wait(),
        lambda work: work.is_completed(),
        until_complete,
    ]
    for again in agains:
        if found := received():
            x, work = found
            work.wait()
            x.add_(1)
            began = time.monotonic()
            again(work)
            assert time.monotonic() - began < 5
            assert x.eq(6).all()


def test_a_send_is_waited_for_again():
    if RANK == 0:
        work = dist.isend(torch.ones(3), 1)
        assert work.wait()
        assert work.wait()
        assert work.get_future().wait()
    else:
        dist.recv(torch.zeros(3), 0)


def test_a_future_and_a_wait_at_once():
    """Its thread and the program's wait for one message, which is received once, and tested by one thread at a time."""
    for _ in range(3):
        if found := received():
            x, work = found
            request = None
            if by_mpi(work):
                request = work._request = Alone(work._request)
            future = work.get_future()
            work.wait()
            assert work.is_completed()
            x.add_(1)
            assert future.wait()[0] is x
            assert x.eq(6).all()
            assert request is None or (request.tests > 2 and request.together == 0)


def test_a_message_is_received_by_polling():
    if found := received():
        x, work = found
        until_complete(work)
        assert work.is_success()
        assert x.eq(5).all()
        work.wait()


def test_messages_to_oneself():
    """In any order, with and without gaps, by tags."""
    for first, tag in itertools.product((0, 1), (0, 7)):
        x, y, z = torch.arange(6.0), torch.zeros(3, 2).t(), torch.zeros(6)
        begin = [lambda: [dist.isend(x + 1, RANK, tag=tag), dist.isend(x, RANK, tag=3)]]  # noqa: B023
        begin.insert(first, lambda: [dist.irecv(z, RANK, tag=3), dist.irecv(y, RANK, tag=tag)])  # noqa: B023
        works = [work for begun in begin for work in begun()]
        for work in works:
            assert work.wait()
        assert works[2 * first + 1].source_rank() == RANK
        assert y.flatten().tolist() == [1, 2, 3, 4, 5, 6]
        assert z.tolist() == [0, 1, 2, 3, 4, 5]
    if not by_mpi(works[0]):  # over MPI a call for any rank may take another's
        work = dist.irecv(y, tag=8)
        dist.isend(x, RANK, tag=8).wait()
        work.wait()
        assert work.source_rank() == RANK
        assert y.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    dist.barrier()


def test_tags_are_checked():
    x = torch.ones(1)
    for tag, begin in itertools.product((-1, 1 << 31), (dist.isend, dist.irecv)):
        with pytest.raises(ValueError, match="tag: "):
            begin(x, 1 - RANK, tag=tag)
    dist.barrier()


def test_messages_of_another_length():
    """An error of the receiver, after which the group goes on."""
    if RANK == 1:
        for length in (2, 2, 20):
            dist.send(torch.ones(length), 0)
    else:
        for x in (torch.full((4, 3), 7.0).t(), torch.full((12,), 7.0)):
            work = dist.irecv(x, 1)
            until_complete(work)
            assert not work.is_success()
            for _ in range(2):
                with pytest.raises(collectives.CollectiveMismatch, match="shorter than the tensor, 8 bytes"):
                    work.wait()
            assert (x == 7).sum() >= 10
        with pytest.raises(collectives.CollectiveMismatch, match="longer than the tensor"):
            dist.recv(x, 1)
        assert dist.group.WORLD.engine.context.waits == []
    dist.barrier()


@mock.patch.multiple(collectives.torch.messages, LARGEST=1000, UNIT=64)
def test_messages_that_are_counted_in_longer_units():
    """As those of 2 GiB and more are over MPI."""
    sent = torch.arange(4003, dtype=torch.uint8)
    for x in (torch.zeros(4003, dtype=torch.uint8), torch.zeros(8006, dtype=torch.uint8)[::2]):
        if RANK == 0:
            dist.recv(x, 1)
            assert x.eq(sent).all()
        else:
            dist.send(sent, 0)
    if RANK == 1:
        dist.send(sent[:2000], 0)
    else:
        with pytest.raises(collectives.CollectiveMismatch, match="shorter than the tensor, 2000 bytes"):
            dist.recv(x, 1)
    dist.barrier()


def test_sends_that_are_dropped():
    """Many at a time: they arrive, and it is found out that they have."""
    many = 300
    if RANK == 0:
        for i in range(many):
            dist.isend(torch.full((10_000,), float(i)), 1)
        dist.barrier()
        gc.collect()
    else:
        time.sleep(LATE)
        x = torch.zeros(10_000)
        for i in range(many):
            dist.recv(x, 0)
            assert (x == i).all()
        dist.barrier()
    if RANK == 0:
        kept = list(collectives.torch.messages.Message.dropped._works.values())
        assert kept
        end = time.monotonic() + 10
        while not all(message.is_over() for message in kept):
            assert time.monotonic() < end
            time.sleep(0.01)
    dist.barrier()


def test_a_message_that_has_come_keeps_nothing():
    """Also where Python's collector of cycles does not run."""
    gc.disable()
    try:
        x = torch.ones(1000)
        seen = weakref.ref(x)
        work = (dist.isend if RANK == 0 else dist.irecv)(x, 1 - RANK)
        until_complete(work)
        work.wait()
        del x, work
        assert seen() is None
    finally:
        gc.enable()
    dist.barrier()


def test_a_forked_child_has_no_messages():
    """Its parent's message stays, and the child would read memory that it does not have."""
    x = torch.zeros(1000)
    work = dist.irecv(x, 1 - RANK)
    child = os.fork()
    if child == 0:
        try:
            work.wait()
        except collectives.CollectiveError as e:
            os._exit(3 if "forked" in str(e) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    dist.send(torch.ones(1000), 1 - RANK)
    work.wait()
    assert x.eq(1).all()


def test_messages_under_way_of_a_group_that_is_destroyed():
    """Their group is not dead, since this rank still writes to the memory of another one."""
    group = dist.new_group([0, 1])
    if isinstance(group.engine.messages, collectives.torch.messages.MPIMessages):
        return
    identity, works = group.engine.context.identity, []
    if RANK == 0:
        works = [group.send([torch.ones(3)], 1, 0) for _ in range(12)]
    dist.barrier()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert (identity in dict(lifetime.dead())) == (RANK == 1)
    for work in works:
        work.withdraw()
    assert identity in dict(lifetime.dead())
    dist.barrier()


def test_callbacks_of_messages():
    """Their calls have a place of their own, however late the message or the callback is."""
    for late in range(2):
        x, a, b = torch.zeros(4), torch.full((4,), 1.0), torch.full((4,), 10.0)
        work = dist.irecv(x, 1 - RANK)
        dist.send(torch.ones(4), 1 - RANK)
        if late == RANK:
            time.sleep(LATE)
        future = work.get_future().then(lambda _, a=a: (dist.all_reduce(a), a)[1])
        dist.all_reduce(b)
        assert future.wait().tolist() == [2] * 4
        assert b.tolist() == [20] * 4


def lost():
    """Who waits longer than the program, or again, gets an error too. The group is broken, and the world is not."""
    group = dist.new_group([0, 1])
    if RANK == 0:
        x, y = torch.zeros(3), torch.zeros(3)
        work, other = group.recv([x], 1), group.recv([y], 1, 5)
        future = work.get_future()
        with pytest.raises(collectives.CollectiveTimeout, match="waiting for rank 1"):
            work.wait(timedelta(seconds=0.3))
        began = time.monotonic()
        for wait in (future.wait, work.wait):
            with pytest.raises((collectives.CollectiveError, RuntimeError)):
                wait()
        assert time.monotonic() - began < 5
        assert not work.is_success()
        dist.barrier()
        dist.barrier()
        if not by_mpi(other):  # what rank 1 has sent meanwhile stays with it
            time.sleep(LATE)
            assert not y.any()
            with pytest.raises(collectives.CollectiveError, match="broken"):
                other.wait()
    else:
        dist.barrier()
        with contextlib.suppress(collectives.CollectiveError):  # if it has heard of the failure
            group.send([torch.ones(3)], 0, 5)
        dist.barrier()


def polled():
    """Who asks again and again gets the error as who waits does."""
    group = dist.new_group([0, 1])
    work = dist.all_reduce(torch.ones(4 + RANK), group=group, async_op=True)
    until_complete(work)
    assert not work.is_success()
    assert isinstance(work.exception(), collectives.CollectiveMismatch)
    with pytest.raises(collectives.CollectiveMismatch):
        work.wait()
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("collectives", timeout=timedelta(seconds=20))
    run({"test_lost": lost, "test_polled": polled} if sys.argv[1:] == ["lost"] else globals())
