"""What the backend does with each call of torch.distributed: ``mpiexec -n 2 python backend.py``.

Rank and size are MPI's, which the backend asks for them. Also under ``torchrun --nproc-per-node 2``, without MPI. The
last line is "N passed".
"""

from __future__ import annotations

import ctypes
import datetime
import sys
import warnings

import kinds
import numpy as np
import overloads
import torch
import torch.distributed as dist
import works
from ranks import RANK, SIZE, run
from torch._C._distributed_c10d import _make_nccl_premul_sum
from torch.nn.parallel import DistributedDataParallel
from values import mine, refused, same, total

import collectives.torch
from collectives.system import heap
from collectives.torch.gradients import address_of, place

REDUCED = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128,
]  # fmt: skip
MOVED = [*REDUCED, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]
LENGTHS = [0, 1, 7, 20_000]  # elements: none, inline, short, of several segments


def test_all_reduce():
    for dtype in REDUCED:
        for n in LENGTHS:
            for asynchronous in (False, True):
                x = mine(n, dtype)
                work = dist.all_reduce(x, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                    assert work.is_completed()
                    assert work.is_success()
                same(x, total(n, dtype))


def test_ops():
    x = mine(6, torch.int64)
    everybody = torch.stack([mine(6, torch.int64, rank) for rank in range(SIZE)])
    expected = {
        dist.ReduceOp.SUM: everybody.sum(0), dist.ReduceOp.PRODUCT: everybody.prod(0),
        dist.ReduceOp.MIN: everybody.min(0).values, dist.ReduceOp.MAX: everybody.max(0).values,
        dist.ReduceOp.BAND: torch.from_numpy(np.bitwise_and.reduce(everybody.numpy())),
        dist.ReduceOp.BOR: torch.from_numpy(np.bitwise_or.reduce(everybody.numpy())),
        dist.ReduceOp.BXOR: torch.from_numpy(np.bitwise_xor.reduce(everybody.numpy())),
    }  # fmt: skip
    for op, result in expected.items():
        y = x.clone()
        dist.all_reduce(y, op=op)
        same(y, result)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.complex64):
        y = mine(6, dtype)
        dist.all_reduce(y, op=dist.ReduceOp.AVG)
        torch.testing.assert_close(y, (everybody.double().sum(0) / SIZE).to(dtype))
        y = mine(6, dtype)
        dist.all_reduce(y, op=_make_nccl_premul_sum(0.5))
        same(y, (everybody.double().sum(0) / 2).to(dtype))


def test_bool():
    x = torch.tensor([True, False, RANK == 0])
    for op, expected in ((dist.ReduceOp.SUM, [True, False, True]), (dist.ReduceOp.PRODUCT, [True, False, False])):
        y = x.clone()
        dist.all_reduce(y, op=op)
        assert y.tolist() == expected
    refused(TypeError, "ReduceOp.AVG", lambda: dist.all_reduce(x, op=dist.ReduceOp.AVG))


def test_scattered_memory():
    x = mine(10, torch.float32)[::2]
    dist.all_reduce(x)
    same(x.contiguous(), total(10, torch.float32)[::2].contiguous())
    x = mine(12, torch.float32).view(3, 4).t() if RANK else mine(12, torch.float32).view(3, 4).t().contiguous()
    dist.all_reduce(x)  # other strides on other ranks
    same(x.contiguous(), total(12, torch.float32).view(3, 4).t().contiguous())
    x = torch.zeros(8)[::2] if RANK else torch.arange(8.0)[::2]
    dist.broadcast(x, 0)
    assert x.tolist() == [0, 2, 4, 6]
    whole = torch.zeros(SIZE, 6)
    dist.all_gather([row[::2] for row in whole], torch.full((3,), RANK + 1.0))
    assert whole[:, ::2].tolist() == [[rank + 1.0] * 3 for rank in range(SIZE)]
    assert whole[:, 1::2].eq(0).all()


def test_negated_and_conjugated_on_reading():
    """Bits of a tensor's, not of its memory."""
    for call in (dist.all_reduce, lambda x: dist.all_reduce(x, async_op=True).wait()):
        x = torch.tensor([1 + 2j]).conj().imag
        assert x.is_neg()
        call(x)
        assert x.tolist() == [-2 * SIZE]
    found = torch.zeros(SIZE)
    dist.all_gather_single(found, torch.tensor([1 + 2j]).conj().imag)
    assert found.tolist() == [-2] * SIZE
    assert dist.group.WORLD.allreduce([z := torch.tensor([1 + 2j]).conj()]).wait()
    assert z.tolist() == [SIZE * (1 - 2j)]


def test_reduce():
    for root in range(SIZE):
        x = mine(7, torch.float32)
        dist.reduce(x, root)
        same(x, total(7, torch.float32) if RANK == root else mine(7, torch.float32))


def test_broadcast():
    for dtype in MOVED:
        for n in LENGTHS:
            x = mine(n, torch.float32, 1).to(dtype) if RANK == 1 else torch.zeros(n).to(dtype)
            dist.broadcast(x, 1)
            same(x, mine(n, torch.float32, 1).to(dtype))


def test_gathers():
    for dtype in MOVED:
        expected = [mine(5, torch.float32, rank).to(dtype) for rank in range(SIZE)]
        x = expected[RANK].clone()
        parts = [torch.zeros(5).to(dtype) for _ in range(SIZE)]
        dist.all_gather(parts, x)
        for found, wanted in zip(parts, expected, strict=True):
            same(found, wanted)
        whole = torch.zeros(5 * SIZE).to(dtype)
        dist.all_gather_single(whole, x)
        same(whole, torch.cat([e.view(torch.uint8) for e in expected]).view(dtype))
        parts = [torch.zeros(5).to(dtype) for _ in range(SIZE)] if RANK == 1 else None
        dist.gather(x, parts, dst=1)
        for found, wanted in zip(parts or [], expected if RANK == 1 else [], strict=True):
            same(found, wanted)
    whole = torch.zeros(SIZE, 4)
    whole[RANK] = RANK
    dist.all_gather_single(whole, whole[RANK])  # in place, as FSDP does
    assert whole[:, 3].tolist() == list(range(SIZE))


def test_blocks_of_different_lengths():
    parts = [torch.zeros(rank + 1) for rank in range(SIZE)]
    dist.all_gather(parts, torch.full((RANK + 1,), float(RANK)))
    assert [part.tolist() for part in parts] == [[rank] * (rank + 1) for rank in range(SIZE)]
    block = torch.zeros(RANK + 1)
    dist.reduce_scatter(block, [torch.full((rank + 1,), float(rank)) for rank in range(SIZE)])
    assert block.tolist() == [RANK * SIZE] * (RANK + 1)


def test_scatters():
    parts = [torch.full((3,), float(rank)) for rank in range(SIZE)] if RANK == 1 else None
    block = torch.zeros(3)
    dist.scatter(block, parts, src=1)
    assert block.tolist() == [RANK] * 3
    for op, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, SIZE), (_make_nccl_premul_sum(0.5), 2)):
        block = torch.zeros(4)
        dist.reduce_scatter_single(block, torch.arange(4.0 * SIZE), op=op)
        torch.testing.assert_close(block, torch.arange(4.0 * RANK, 4.0 * RANK + 4) * SIZE / divisor)
    block = torch.zeros(2)
    dist.reduce_scatter(block, [torch.full((2,), float(rank)) for rank in range(SIZE)])
    assert block.tolist() == [RANK * SIZE] * 2


def test_all_to_all():
    sent = [torch.full((RANK + 1 + rank,), 10.0 * RANK + rank) for rank in range(SIZE)]
    received = [torch.zeros(rank + 1 + RANK) for rank in range(SIZE)]
    dist.all_to_all(received, sent)
    for rank, part in enumerate(received):
        assert part.tolist() == [10.0 * rank + RANK] * (rank + 1 + RANK)
    x, y = torch.arange(2.0 * SIZE).view(SIZE, 2) + 100 * RANK, torch.zeros(SIZE, 2)
    dist.all_to_all_single(y, x)
    assert y.tolist() == [[100.0 * rank + 2 * RANK, 100.0 * rank + 2 * RANK + 1] for rank in range(SIZE)]
    dist.all_to_all_single(x, x, [1] * SIZE, [1] * SIZE)  # from and to the same memory
    assert x.tolist() == y.tolist()
    rows = torch.arange(float(SIZE * (SIZE + 1) // 2)) + 100 * RANK  # rank 0 gets one, rank 1 two, ...
    taken = torch.zeros(SIZE * (RANK + 1))
    dist.all_to_all_single(taken, rows, [RANK + 1] * SIZE, [rank + 1 for rank in range(SIZE)])
    first = RANK * (RANK + 1) // 2
    assert taken.tolist() == [100.0 * rank + first + i for rank in range(SIZE) for i in range(RANK + 1)]


def test_coalesced():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = [mine(3, torch.float32), mine(5, torch.float32).view(5, 1)]
        dist.all_reduce_coalesced(tensors)
        same(tensors[1].view(-1), total(5, torch.float32))
        lists = [[torch.zeros(2), torch.zeros(1)] for _ in range(SIZE)]
        dist.all_gather_coalesced(lists, [torch.full((2,), float(RANK)), torch.tensor([7.0])])
        assert [part[0].tolist() for part in lists] == [[rank] * 2 for rank in range(SIZE)]
    outputs = [torch.zeros(SIZE), torch.zeros(2 * SIZE)]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_gather_single(outputs[0], torch.tensor([float(RANK)]), async_op=True)
        dist.all_gather_single(outputs[1], torch.full((2,), float(RANK)), async_op=True)
    manager.wait()
    assert outputs[0].tolist() == list(range(SIZE))
    assert outputs[1].tolist() == [rank for rank in range(SIZE) for _ in range(2)]
    refused(RuntimeError, "leave out the device", dist._coalescing_manager(device=torch.device("cpu")).__enter__)
    dist.all_reduce(x := torch.ones(2))  # it is made at once, and not collected
    assert x.tolist() == [SIZE] * 2


def test_messages():
    peer, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    x, y = mine(20_000, torch.bfloat16), torch.zeros(20_000, dtype=torch.bfloat16)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, before)]):
        work.wait()
    same(y, mine(20_000, torch.bfloat16, before))
    if RANK == 0:
        for rank in range(1, SIZE):
            dist.send(torch.full((2,), float(rank)).to(torch.float8_e4m3fn), rank, tag=rank)
        sources = {dist.recv(torch.zeros(1), tag=9) for _ in range(1, SIZE)}
        assert sources == set(range(1, SIZE))
    else:
        z = torch.zeros(4).to(torch.float8_e4m3fn)[::2]
        assert dist.recv(z, 0, tag=RANK) == 0
        assert z.float().tolist() == [RANK] * 2
        dist.send(torch.zeros(1), 0, tag=9)
    for turn in range(50):  # two at a time, by shared memory and, where there is one, by the network
        if RANK:
            dist.send(torch.tensor([RANK, turn]), 0, tag=10)
        else:
            found = [torch.zeros(2, dtype=torch.int64) for _ in range(1, SIZE)]
            for work in [dist.irecv(one, tag=10) for one in found]:
                work.wait()
            assert sorted(one.tolist() for one in found) == [[rank, turn] for rank in range(1, SIZE)]
            for rank in range(1, SIZE):
                dist.send(torch.zeros(1), rank)
        if RANK:
            dist.recv(torch.zeros(1), 0)
    work = dist.irecv(y, before)
    dist.isend(x, peer).wait()
    assert work.get_future().wait()[0] is y


def test_objects():
    found = [None] * SIZE
    dist.all_gather_object(found, {"rank": RANK, "text": "x" * RANK})
    assert found == [{"rank": rank, "text": "x" * rank} for rank in range(SIZE)]
    objects = [RANK, [RANK]]
    dist.broadcast_object_list(objects, src=1)
    assert objects == [1, [1]]
    mine_of = [None]
    dist.scatter_object_list(mine_of, [f"for {rank}" for rank in range(SIZE)] if RANK == 0 else None, src=0)
    assert mine_of == [f"for {RANK}"]
    gathered = [None] * SIZE if RANK == 1 else None
    dist.gather_object(RANK, gathered, dst=1)
    assert gathered == (list(range(SIZE)) if RANK == 1 else None)


def trained(hook, **options):
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.Tanh(), torch.nn.Linear(300, 200))
    net = DistributedDataParallel(net, **options)
    buckets = []
    if hook is not None:

        def noted(group, bucket):
            future = hook(group, bucket)
            buckets.append(bucket.buffer())
            return future

        net.register_comm_hook(None, noted)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(4):
        optimizer.zero_grad()
        x = torch.randn(8, 200, generator=torch.Generator().manual_seed(SIZE * step + RANK))
        net(x).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()], [p.grad for p in net.parameters()], buckets


def test_gradients_on_the_heap():
    own = heap.process_heap()
    for options in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.1}):
        expected, _, _ = trained(None, **options)
        found, gradients, buckets = trained(collectives.torch.heap_hook, **options)
        torch.testing.assert_close(found, expected)
        for bucket in buckets:
            assert address_of(bucket) in own
        if options:  # what the optimizer reads is where the engine wrote it
            assert all(address_of(gradient) in own for gradient in gradients)
            gradients[0].fill_(7.0)
            there = ctypes.c_float.from_address(address_of(gradients[0]) + 4 * 199)
            assert there.value == 7.0
        del gradients, buckets, bucket
    assert place(torch.zeros(100)) == "400 bytes are too few"


def test_groups():
    assert repr(dist.group.WORLD).startswith("<collectives process group")
    overloads.hold_overloads(dist.group.WORLD)
    assert dist.get_backend() == "collectives"
    pair = dist.new_group([0, 1])
    if RANK < 2:
        x = torch.ones(3)
        dist.all_reduce(x, group=pair)
        assert x.tolist() == [2] * 3
        dist.barrier(group=pair)
    backwards = dist.new_group(list(range(SIZE))[::-1], sort_ranks=False)
    assert dist.get_rank(backwards) == SIZE - 1 - RANK
    x = torch.tensor([float(RANK)])
    dist.broadcast(x, group=backwards, group_src=0)
    assert x.item() == SIZE - 1
    alone = dist.new_group([RANK], use_local_synchronization=True)
    dist.all_reduce(x, group=alone)
    assert x.item() == SIZE - 1
    dist.destroy_process_group(alone)
    dist.destroy_process_group(backwards)


def test_functional_collectives():
    from torch.distributed import _functional_collectives as functional

    ranks, world = list(range(SIZE)), dist.group.WORLD
    same(functional.all_reduce(mine(5, torch.float32), "sum", world).clone(), total(5, torch.float32))
    gathered = functional.all_gather_single(torch.full((2,), float(RANK)), 0, world).clone()
    assert gathered.tolist() == [rank for rank in ranks for _ in range(2)]
    block = functional.reduce_scatter_single(torch.arange(2.0 * SIZE), "sum", 0, world).clone()
    assert block.tolist() == [2.0 * RANK * SIZE, (2.0 * RANK + 1) * SIZE]


def test_barriers():
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))
    hold_keys_of_monitored_barriers()


def hold_keys_of_monitored_barriers():
    """All are deleted but the last that rank 0 writes, also those of a barrier to which the last rank comes too
    late."""
    soon, store = datetime.timedelta(seconds=0.1), dist.group.WORLD.get_group_store()
    dist.monitored_barrier()
    if RANK == SIZE - 1:
        dist.barrier()
    refused(collectives.CollectiveTimeout, "monitoredBarrier", lambda: dist.monitored_barrier(timeout=soon))
    if RANK < SIZE - 1:
        dist.barrier()
    dist.monitored_barrier()
    dist.barrier()
    written = [f"monitored/{turn}/{name}" for turn in range(6) for name in ("all", "missing", *range(1, SIZE))]
    assert len([key for key in written if store.check([key])]) == 1
    dist.barrier()


def test_bad_arguments_are_named_before_anything_is_sent():
    x = torch.ones(3)
    refused(TypeError, "op: ", lambda: dist.all_reduce(x, op=dist.ReduceOp.BAND))
    refused(TypeError, "op: ", lambda: dist.all_reduce(x.to(torch.float8_e4m3fn)))
    refused(TypeError, "on the CPU and on CUDA", lambda: dist.all_reduce(x.to("meta")))
    refused(ValueError, "output_tensor: ", lambda: dist.all_gather_single(torch.zeros(3 * SIZE + 1), x))
    refused(ValueError, "tensor_list: ", lambda: dist.all_gather([torch.zeros(3)] * (SIZE + 1), x))
    refused(ValueError, "input_split_sizes: ", lambda: dist.all_to_all_single(x, x, [1] * SIZE, [5] * SIZE))
    refused(ValueError, f"src: {SIZE} is not a rank", lambda: dist.broadcast(x, group_src=SIZE))
    refused(ValueError, f"dst: {SIZE} is not a rank", lambda: dist.reduce(x, group_dst=SIZE))
    refused(ValueError, "tensor_list: no tensors", lambda: dist.all_gather([], x))
    refused(ValueError, "dst: ", lambda: dist.group.WORLD.send([x], SIZE, 0))
    kinds.hold_elements_that_share_memory()
    dist.all_reduce(x)
    assert x.tolist() == [SIZE] * 3


def test_destroyed_and_made_again():
    old = dist.group.WORLD
    dist.destroy_process_group()
    refused(RuntimeError, "has been destroyed", lambda: old.allreduce([torch.ones(1)]))
    dist.init_process_group("collectives")
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [SIZE] * 2


if __name__ == "__main__":
    assert collectives.torch.ProcessGroup
    if sys.argv[1:] == ["without-mpi4py"]:
        sys.modules["mpi4py"] = None  # an import fails as where it is not installed
    dist.init_process_group("collectives", timeout=datetime.timedelta(seconds=60))
    assert (RANK, SIZE) == (dist.get_rank(), dist.get_world_size())
    if RANK == 0:
        print(f"mpi4py {'is' if 'mpi4py' in sys.modules else 'is not'} there")
    run(vars(works) | vars(kinds) | globals())
