"""All-reduce of sparse tensors (COO): entries of all ranks are gathered, and torch sums the entries of each index."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ..errors import CollectiveMismatch
from .tensors import CODES, Reduction, check_on_cpu, write
from .work import Done

__all__ = ["allreduce"]

_TYPES = {code: dtype for dtype, code in CODES.items()}


def allreduce(group: dist.ProcessGroup, tensor: torch.Tensor, opts: Any) -> dist.Work:
    """Sum or average a sparse tensor over all ranks, in place; complete when it returns.

    Of 16 bits, all ranks' entries are added in float32, and the result is rounded once. TypeError for other ops, and
    for an average of integers. CollectiveMismatch on all ranks, which can go on, if the tensors differ in more than
    their entries.
    """
    op = opts.reduceOp
    if op != dist.ReduceOp.SUM and op != dist.ReduceOp.AVG:
        raise TypeError(f"op: sparse tensors are reduced by SUM and AVG only, not {op}")
    Reduction(op, tensor.dtype)  # which refuses what it refuses for dense tensors
    mine, size = check_on_cpu(tensor, "tensor").detach().coalesce(), group.size()
    indices, values = mine.indices().t().contiguous(), mine.values().contiguous()
    blocking = c10d.AllgatherOptions()
    blocking.asyncOp, blocking.timeout = False, opts.timeout
    lengths = _agreed(group, mine, blocking)
    all_indices = [indices.new_empty((n, *indices.shape[1:])) for n in lengths]
    all_values = [values.new_empty((n, *values.shape[1:])) for n in lengths]
    group.allgather([all_indices], [indices], blocking)
    group.allgather([all_values], [values], blocking)
    places, entries = torch.cat(all_indices).t(), torch.cat(all_values)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        entries = entries.float()
    total = torch.sparse_coo_tensor(places, entries, tensor.shape, check_invariants=False).coalesce()
    with torch.no_grad():
        write(tensor, (total / size if op == dist.ReduceOp.AVG else total).to(tensor.dtype))
    return Done([tensor])


def _agreed(group: dist.ProcessGroup, mine: torch.Tensor, blocking: c10d.AllgatherOptions) -> list[int]:
    """The number of entries on each rank; CollectiveMismatch if a rank's tensor is not one to add ``mine`` to."""
    about = torch.tensor([mine._nnz(), CODES[mine.dtype], mine.sparse_dim(), mine.dim()], device="cpu")
    every = [torch.empty_like(about) for _ in range(group.size())]
    group.allgather([every], [about], blocking)
    shapes = [about.new_empty(row[3].item()) for row in every]
    group.allgather([shapes], [about.new_tensor(mine.shape)], blocking)
    told = [
        f"rank {rank}: {_TYPES[row[1].item()]} of shape {shape.tolist()}, sparse in {row[2].item()} dimensions"
        for rank, (row, shape) in enumerate(zip(every, shapes, strict=True))
    ]
    if len({line.partition(": ")[2] for line in told}) > 1:
        raise CollectiveMismatch("\n  ".join(["all_reduce of sparse tensors (COO) that differ", *told]))
    return [row[0].item() for row in every]
