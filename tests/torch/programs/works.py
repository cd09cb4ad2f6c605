"""Works and futures of calls under way; ``backend.py`` runs these functions with its own."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
import weakref
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from ranks import RANK, SIZE
from torch.nn.parallel import DistributedDataParallel
from values import mine, refused, same

from collectives.core import _core


def begun(n, root):
    """Calls under way on contiguous tensors, one at a time, each with what it should give."""
    parts = torch.stack([mine(n, torch.float32, rank) for rank in range(SIZE)])
    x, whole, block = parts[RANK].clone(), torch.zeros(n * SIZE), torch.zeros(n)
    yield dist.all_gather_single(whole, x, async_op=True), parts.flatten()
    yield dist.reduce_scatter_single(block, x.repeat(SIZE), async_op=True), parts.sum(0)
    yield dist.all_reduce(x.clone(), async_op=True), parts.sum(0)
    yield dist.broadcast(x, root, async_op=True), parts[root]


def test_calls_under_way_on_contiguous_tensors():
    """Each rank is late in turn, for longer than whoever asks for a future waits itself; or none is."""
    ways = [
        lambda work: work.wait(),
        lambda work: work.get_future().wait(),
        lambda work: [None for _ in iter(work.is_completed, True)],
    ]
    for n, late, wait in itertools.product((3, 20_000), (None, *range(SIZE)), ways):
        for work, expected in begun(n, SIZE - 1):
            wait(work)
            assert work.is_completed()
            [result] = work.result()
            same(result, expected)
            same(work.get_future().value()[0], expected)
            if late == RANK:
                time.sleep(0.003)


def test_blocking_calls_have_results():
    """As of calls under way. Contiguous tensors go another way than strided ones."""
    opts = dist.AllreduceOptions()
    opts.asyncOp = False
    for x in (torch.ones(6), torch.ones(6)[::2]):
        work = dist.group.WORLD.allreduce([x], opts)
        assert work.is_completed()
        for [found] in (work.get_future().value(), work.result()):
            assert found is x
            assert torch.equal(found, torch.full(x.shape, float(SIZE)))


def test_works_that_only_torch_holds():
    """In C++, which calls the methods of the Python object, long after the program has let go of it."""
    net = DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
    with net.join(divide_by_initial_world_size=False):
        for i in range(1 + RANK):
            loss = net(torch.full((1, 3), 1.0 + RANK)).sum()
            gc.collect()
            net.zero_grad()
            loss.backward()
            here = range(i, SIZE)
            mean = torch.full((1, 3), sum(1.0 + rank for rank in here) / len(here))
            torch.testing.assert_close(net.module.weight.grad, mean)


def test_results_of_dropped_works_are_not_kept():
    """Only of the latest, and small ones."""
    results = []
    for n in [20_000] * 8 + [20]:
        memory = np.zeros(n, np.float32)
        dist.all_reduce(x := torch.from_numpy(memory), async_op=True)
        results.append(weakref.ref(memory))
        del x, memory
        dist.barrier()
    end = time.monotonic() + 10
    while sum(one() is not None for one in results) > 6:  # a barrier may end before an all-reduce that began earlier
        assert time.monotonic() < end
        time.sleep(0.01)
        _core.sweep()
        gc.collect()
    assert results[-1]() is not None


def test_futures_run_callbacks_in_one_order():
    """Callbacks make calls of their own, while the program makes others: each has its place on all ranks."""
    futures, values = [], [torch.full((3,), float(i)) for i in range(4)]
    for i, value in enumerate(values):

        def again(future, i=i):
            more = future.value()[0] + i
            return dist.all_reduce(more, async_op=True).get_future().wait()[0]

        futures.append(dist.all_reduce(value, async_op=True).get_future().then(again))
        dist.all_reduce(torch.zeros(10 + i))
    for i, future in enumerate(futures):
        assert future.wait().tolist() == [float((i * SIZE + i) * SIZE)] * 3


def test_callbacks_of_groups_that_have_other_names_elsewhere():
    """As those of the ranks of a node: each rank's group is known to itself only."""
    alone = [dist.new_group([rank]) for rank in range(SIZE)][RANK]
    for value in (1.0, 2.0):
        x = torch.full((4,), value)
        future = dist.all_reduce(x, group=alone, async_op=True).get_future().then(lambda _, x=x: dist.all_reduce(x))
        future.wait()
        assert x.tolist() == [SIZE * value] * 4


def test_calls_over_the_store_while_a_callback_makes_its_first_call():
    """On one rank after it, on the others before it."""
    soon = timedelta(seconds=10)
    for meet in (dist.monitored_barrier, lambda group: dist.new_group(timeout=soon)):
        group, x = dist.new_group(timeout=soon), torch.ones(4)

        def again(_, group=group, x=x):
            if RANK == 0:
                time.sleep(0.1)
            dist.all_reduce(x, group=group)

        future = dist.all_reduce(x, group=group, async_op=True).get_future().then(again)
        for step in [lambda: meet(group), future.wait][:: 1 if RANK == 0 else -1]:  # noqa: B023
            step()
        assert x.tolist() == [SIZE**2] * 4


def test_callbacks_of_two_groups_begin_in_different_order():
    groups, x = [dist.new_group(timeout=timedelta(seconds=10)) for _ in range(2)], torch.ones(2)

    def again(i):
        if i == (RANK == 0):
            time.sleep(0.1)
        dist.all_reduce(x[i : i + 1])

    works = [dist.barrier(group=group, async_op=True) for group in groups]
    for future in [work.get_future().then(lambda _, i=i: again(i)) for i, work in enumerate(works)]:
        future.wait()
    assert x.tolist() == [SIZE] * 2


def test_a_callback_waits_for_a_later_one():
    """It is run within the first; on Gloo other threads run it, as long as one is free."""
    if os.environ.get("MPI4PY_RC_THREAD_LEVEL") == "serialized":  # where a callback runs as soon as it is attached
        assert dist.barrier(async_op=True).get_future().then(lambda future: 5).done()
        return
    for wait in (lambda future: future.wait(), lambda future: torch.futures.wait_all([future, future])[1]):
        hold_a_wait_within_a_callback(wait)


def hold_a_wait_within_a_callback(wait):
    futures, ready = [], threading.Event()

    def waiting(future):
        ready.wait()
        return wait(futures[2]) + 1

    def again(future):
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    works = [dist.all_reduce(torch.full((3,), float(i)), async_op=True) for i in range(3)]
    futures += [work.get_future().then(f) for work, f in zip(works, (waiting, again, again), strict=True)]
    ready.set()
    assert [future.wait()[0].item() for future in futures] == [2 * SIZE**2 + 1, SIZE**2, 2 * SIZE**2]

    later, ready = [], threading.Event()
    loop = dist.barrier(async_op=True).get_future().then(lambda future: ready.wait() and wait(later[0]))
    later.append(loop.then(lambda future: future.value()))
    ready.set()
    refused(RuntimeError, "can end only after the callback", loop.wait)
