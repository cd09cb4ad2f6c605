"""All-reduce of sparse tensors (COO): entries of all ranks are gathered, and torch sums the entries of each index."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from .tensors import Reduction, check_on_cpu
from .work import Done

__all__ = ["allreduce"]


def allreduce(group: dist.ProcessGroup, tensor: torch.Tensor, op: Any) -> dist.Work:
    """Sum or average a sparse tensor over all ranks, in place; complete when it returns. TypeError for other ops, and
    for an average of integers."""
    if op != dist.ReduceOp.SUM and op != dist.ReduceOp.AVG:
        raise TypeError(f"op: sparse tensors are reduced by SUM and AVG only, not {op}")
    Reduction(op, tensor.dtype)  # which refuses what it refuses for dense tensors
    mine, size = check_on_cpu(tensor, "tensor").detach().coalesce(), group.size()
    indices, values = mine.indices().t().contiguous(), mine.values().contiguous()
    counts = torch.empty(size, dtype=torch.int64)
    group.all_gather_single(counts, torch.tensor([indices.size(0)]), _blocking())
    lengths = counts.tolist()
    all_indices = [indices.new_empty((n, *indices.shape[1:])) for n in lengths]
    all_values = [values.new_empty((n, *values.shape[1:])) for n in lengths]
    group.allgather([all_indices], [indices], _blocking())
    group.allgather([all_values], [values], _blocking())
    places, entries = torch.cat(all_indices).t(), torch.cat(all_values)
    total = torch.sparse_coo_tensor(places, entries, tensor.shape, check_invariants=False).coalesce()
    with torch.no_grad():
        tensor.copy_(total / size if op == dist.ReduceOp.AVG else total)
    return Done([tensor])


def _blocking() -> c10d.AllgatherOptions:
    opts = c10d.AllgatherOptions()
    opts.asyncOp = False
    return opts
