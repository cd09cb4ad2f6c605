"""Proofs compare what a generator gives for an array of all ranks with what it gives for each of them."""

from dataclasses import replace

import numpy as np
import pytest

from collectives.analysis.verify import VerificationError, verify, verify_schedules
from collectives.schedules import registry
from collectives.schedules.build import build
from collectives.schedules.schedule import Rounds, recv, recv_reduce, send


def star(rank, size):
    """A sum at rank 0, written for one rank at a time."""
    if rank == 0:
        yield [recv_reduce(peer, received_left=False) for peer in range(1, size)]
        yield [send(peer) for peer in range(1, size)]
    else:
        yield [send(0)]
        yield [recv(0)]


def other_for_arrays(rank, size):
    """An exchange between two ranks, whose operands lie otherwise where `rank` is an array."""
    yield [send(1 - rank), recv_reduce(1 - rank, received_left=rank > 0 if np.ndim(rank) == 0 else rank < 1)]


@pytest.mark.parametrize(
    ("generator", "p", "promises", "message"),
    [
        (star, 3, (2, 2, 4), "star, p = 3: the generator fails if `rank` is an array .*send\\(0, when=rank != 0\\)"),
        (other_for_arrays, 2, (1, 1, 2), "other_for_arrays, p = 2: rank 0: the generator gives other steps"),
    ],
)
def test_generators_take_an_array_of_all_ranks(generator, p, promises, message):
    """Drawings, the cost model and the choice of positions call them so."""
    rounds, sent, memory = ((lambda p, number=number: number) for number in promises)
    algorithm = replace(
        registry.find("allreduce", "recursive_doubling"), name=generator.__name__, generator=Rounds(generator),
        ordered=False, linear=False, blocks=lambda p: 1, rounds=rounds, sent=sent, memory=memory,
    )  # fmt: skip
    verify_schedules([build(algorithm, rank, p) for rank in range(p)], algorithm)
    with pytest.raises(VerificationError, match=message):
        verify(algorithm, p)
