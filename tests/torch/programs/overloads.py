"""A group's methods with values in the place of options, as overloads of C++ take them; ``backend.py`` calls this."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from ranks import RANK, SIZE
from values import mine, refused, same

LIMIT, MAX, LAST = timedelta(seconds=30), dist.ReduceOp.MAX, SIZE - 1


def ended(work):
    """Wait for a call that was given the timeout."""
    work.wait()
    assert work._limit == LIMIT.total_seconds()


def hold_overloads(group):
    """By position, and by name where C++ names the value."""
    hold_reductions(group)
    hold_moves(group)
    for barrier in (lambda: group.barrier(LIMIT), lambda: group.barrier(timeout=LIMIT)):
        ended(barrier())
    x = torch.ones(3)
    refused(TypeError, "opts: expected AllgatherOptions alone", lambda: group.allgather([x] * SIZE, x, MAX))
    refused(TypeError, "opts: expected BroadcastOptions alone", lambda: group.broadcast(x, LIMIT))
    refused(TypeError, "or rootRank in its place, not int", lambda: group.reduce(x, LAST, root=LAST))
    refused(TypeError, "not AllreduceOptions", lambda: group.allreduce([x], dist.AllreduceOptions(), op=MAX))


def hold_reductions(group):
    most = torch.stack([mine(3, torch.float32, rank) for rank in range(SIZE)]).amax(0)
    for call in (
        lambda x: group.allreduce(x, MAX, LIMIT), lambda x: group.allreduce([x], MAX, LIMIT),
        lambda x: group.allreduce(x, op=MAX, timeout=LIMIT),
    ):  # fmt: skip
        ended(call(x := mine(3, torch.float32)))
        same(x, most)
    for call in (
        lambda x: group.reduce(x, LAST, MAX, LIMIT), lambda x: group.reduce(x, root=LAST, op=MAX, timeout=LIMIT)
    ):  # fmt: skip
        ended(call(x := mine(3, torch.float32)))
        same(x, most if RANK == LAST else mine(3, torch.float32))
    blocks = [mine(3, torch.float32) + rank for rank in range(SIZE)]
    for call in (
        lambda y: group.reduce_scatter(y, blocks, MAX, LIMIT),
        lambda y: group.reduce_scatter(y, blocks, op=MAX, timeout=LIMIT),
    ):
        ended(call(y := torch.zeros(3)))
        same(y, most + RANK)


def hold_moves(group):
    every = torch.stack([mine(3, torch.float32, rank) for rank in range(SIZE)])
    x, rows = every[RANK].clone(), [row.clone() for row in every]
    here = RANK == LAST
    for call in (lambda y: group.broadcast(y, LAST, LIMIT), lambda y: group.broadcast(y, root=LAST, timeout=LIMIT)):
        ended(call(y := x.clone()))
        same(y, every[LAST])
    for call in (
        lambda y: group.scatter(y, rows if here else [], LAST, LIMIT),
        lambda y: group.scatter(y, rows if here else [], root=LAST, timeout=LIMIT),
    ):
        ended(call(y := torch.zeros(3)))
        same(y, every[RANK])
    for call in (
        lambda ys: group.gather(ys if here else [], x, LAST, LIMIT),
        lambda ys: group.gather(ys if here else [], x, root=LAST, timeout=LIMIT),
    ):
        ended(call(ys := [torch.zeros(3) for _ in range(SIZE)]))
        same(torch.stack(ys), every if here else torch.zeros(SIZE, 3))
    for call in (lambda ys: group.allgather(ys, x, LIMIT), lambda ys: group.allgather(ys, x, timeout=LIMIT)):
        ended(call(ys := [torch.zeros(3) for _ in range(SIZE)]))
        same(torch.stack(ys), every)
    sent = [x + 10 * rank for rank in range(SIZE)]
    for call in (lambda ys: group.alltoall(ys, sent, LIMIT), lambda ys: group.alltoall(ys, sent, timeout=LIMIT)):
        ended(call(ys := [torch.zeros(3) for _ in range(SIZE)]))
        same(torch.stack(ys), every + 10 * RANK)
    for call in (
        lambda y: group.all_to_all_single(y, torch.stack(sent), [], [], LIMIT),
        lambda y: group.all_to_all_single(y, torch.stack(sent), [], [], timeout=LIMIT),
    ):
        ended(call(y := torch.zeros(SIZE, 3)))
        same(y, every + 10 * RANK)
