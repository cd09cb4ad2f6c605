"""Kinds of tensors that are rare: sparse, expanded, and empty ones, those of inference mode; ``backend.py`` runs these
functions with its own."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from ranks import RANK, SIZE
from torch._C._distributed_c10d import _make_nccl_premul_sum
from values import refused

import collectives.torch
from collectives.torch.gradients import address_of, place


def test_sparse():
    x = torch.sparse_coo_tensor([[RANK, SIZE]], torch.ones(2), (SIZE + 1,), check_invariants=True)
    dist.all_reduce(x)
    assert x.to_dense().tolist() == [1.0] * SIZE + [SIZE]
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert x.to_dense().tolist() == [1.0] * SIZE + [SIZE]
    refused(TypeError, "sparse", lambda: dist.all_reduce(x, op=dist.ReduceOp.MAX))
    x = torch.sparse_coo_tensor([[0]], torch.tensor([1]), (1,), check_invariants=True)
    refused(TypeError, "ReduceOp.AVG with torch.int64", lambda: dist.all_reduce(x, op=dist.ReduceOp.AVG))
    dist.all_reduce(x)
    assert x.to_dense().tolist() == [SIZE]
    hold_sparse_tensors_of_16_bits()
    hold_sparse_tensors_that_differ()


def hold_sparse_tensors_of_16_bits():
    """Entries are added in float32: neither does the sum before a division overflow, nor is each addition rounded."""
    most = torch.full((1,), 60000.0, dtype=torch.float16)
    x = torch.sparse_coo_tensor([[0]], most, (1,), check_invariants=True)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert torch.equal(x.to_dense(), most)
    for dtype, first in ((torch.float16, 2048.0), (torch.bfloat16, 256.0)):  # which hold only even numbers above it
        x = torch.sparse_coo_tensor([[0]], torch.tensor([1.0 if RANK else first], dtype=dtype), (1,))
        dist.all_reduce(x)
        assert torch.equal(x.to_dense(), torch.tensor([first + SIZE - 1]).to(dtype))


def hold_sparse_tensors_that_differ():
    """All ranks get the error, and the group works after it."""
    odd = RANK == SIZE - 1
    for shape, dtype, ndim in (((3 + odd,), torch.float32, 1), ((3,), (torch.float32, torch.int32)[odd], 1), (
        (3, 1), torch.float32, 1 + odd
    )):  # fmt: skip
        x = torch.ones(shape, dtype=dtype).to_sparse(ndim)
        refused(collectives.CollectiveMismatch, f"rank {SIZE - 1}: ", lambda x=x: dist.all_reduce(x))
    dist.all_reduce(x := torch.ones(2))
    assert x.tolist() == [SIZE] * 2


def hold_elements_that_share_memory():
    """They can be read. Where they would be written, nothing is sent."""
    x, words = torch.full((1,), RANK + 1.0).expand(3), "elements that share memory"
    dist.all_gather_single(whole := torch.zeros(SIZE, 3), x)
    assert whole.tolist() == [[rank + 1.0] * 3 for rank in range(SIZE)]
    dist.broadcast(x if RANK == 0 else whole[0], 0)
    assert whole[0].tolist() == [1.0] * 3
    refused(ValueError, f"tensor: {words}", lambda: dist.all_reduce(x))
    refused(ValueError, f"tensor: {words}", lambda: dist.recv(x, (RANK + 1) % SIZE))
    refused(ValueError, f"tensor_list: {words}", lambda: dist.all_gather([whole[0]] * (SIZE - 1) + [x], whole[0]))
    refused(ValueError, f"output: {words}", lambda: dist.reduce_scatter_single(x, whole))
    refused(ValueError, f"output: {words}", lambda: dist.all_to_all_single(torch.zeros(1, 3).expand(SIZE, 3), whole))
    dist.barrier()


def test_inference_mode():
    """Tensors of inference mode are written outside it and in other threads, where the call happens to end."""
    with torch.inference_mode():
        x, parts = torch.ones(3, 1000).t(), [torch.zeros(2, 2).t() for _ in range(SIZE)]
        works = [
            dist.all_reduce(x, async_op=True),
            dist.all_gather(parts, torch.full((2, 2), RANK + 1.0), async_op=True),
        ]
        time.sleep(0.05)  # they end in another thread meanwhile
        for work in works:
            work.wait()
        assert (x == SIZE).all()
        assert [part[0, 1].item() for part in parts] == [rank + 1.0 for rank in range(SIZE)]
    dist.all_reduce(x)
    dist.all_reduce(x, op=_make_nccl_premul_sum(0.5))
    assert (x == SIZE**3 / 2).all()
    with torch.inference_mode():
        y = torch.zeros(2, 2).t()
    sent = dist.isend(torch.full((2, 2), RANK + 1.0), (RANK + 1) % SIZE)
    assert dist.irecv(y, (RANK - 1) % SIZE).get_future().wait()[0].eq((RANK - 1) % SIZE + 1).all()
    sent.wait()


def test_no_elements_of_a_tensor_on_the_heap():
    for many in (1 << 20, 2 << 20):  # the heap may lie below or above torch's memory
        x = torch.ones(many)
        assert place(x) is None
        empty = x[5:5]
        assert address_of(empty) == 0
        dist.all_reduce(empty)
