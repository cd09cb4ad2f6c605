"""What ranks that are threads hand over, in bytes."""

import numpy as np

from collectives import train
from collectives.train import threads


def test_threads_are_counted():
    def on_rank(comm):
        traffic = train.Traffic()
        counting = train.counted(comm, traffic)
        counting.Allreduce(np.zeros(3), np.zeros(3))
        if comm.rank == 0:
            counting.Isend(np.zeros(5, np.float32), dest=1).Wait()
        if comm.rank == 1:
            counting.Recv(np.zeros(5, np.float32), source=0)
        half = counting.Dup().Split(comm.rank % 2, comm.rank)
        half.Bcast(np.zeros(2), root=0)
        comm.Allreduce(np.zeros(9), np.zeros(9))  # of the communicator itself, which is not counted
        return traffic.bytes

    assert threads.run(3, on_rank, timeout=20) == [24 + 20 + 16, 24 + 16, 24]
