"""The check of weights on the ranks of a job: all raise the same error, which names who diverged.

Run under MPI, with any number of ranks: ``mpiexec -n 4 python -m pytest --with-mpi tests/mpi/test_weights_mpi.py``.
"""

import numpy as np
import pytest
from mpi4py import MPI

import collectives
from collectives import train

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size


@pytest.mark.parametrize("victim", [0, SIZE - 1])
@pytest.mark.parametrize("ours", [False, True])
def test_one_bit_of_one_rank(victim, ours):
    comm = collectives.Communicator(COMM) if ours else COMM
    net = train.mlp((6,), 3, rng=np.random.default_rng(0), dtype=np.float64)
    train.check_weights(net, comm)
    if RANK == victim:
        net.parameters()[2].data.reshape(-1).view(np.uint64)[5] ^= 1
    if SIZE == 1:
        train.check_weights(net, comm)
    else:
        name, named = net.parameters()[2].name, [victim] if SIZE > 2 else [0, 1]
        with pytest.raises(train.WeightsDiverged) as caught:
            train.check_weights(net, comm, step=7)
        assert caught.value.tensors == {rank: [name] for rank in named}
        assert comm.allgather(str(caught.value)) == [str(caught.value)] * SIZE
    if ours:
        comm.Free()


def test_streams_of_ranks_differ():
    first = COMM.allgather(train.Random(0, "x", COMM).generator.random())
    assert len(set(first)) == SIZE
    assert first == [train.Random(0, "x", rank).generator.random() for rank in range(SIZE)]
