"""Numbers of every rank, small enough for exact sums, and what is to be said of results."""

from __future__ import annotations

import pytest
import torch
from ranks import RANK, SIZE


def mine(n, dtype, rank=None):
    return (torch.arange(n) % 5 + (RANK if rank is None else rank)).to(dtype)


def total(n, dtype):
    return torch.stack([mine(n, torch.float64, rank) for rank in range(SIZE)]).sum(0).to(dtype)


def same(found, expected):
    assert found.dtype == expected.dtype
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), (found, expected)


def refused(kind, words, call):
    with pytest.raises(kind) as error:
        call()
    assert words in str(error.value), error.value
