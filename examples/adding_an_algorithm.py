"""A new all-reduce algorithm in one short file: declared, proved, drawn and run.

    mpiexec -n 4 python examples/adding_an_algorithm.py --out out

The algorithm is a ring in both directions: half of the vector travels upwards, half downwards, so that links which
carry both directions at once are used twice as well. Prints on how many ranks it was proved, and what ran, after the
result has been compared with what one process computes. Draws the rounds in out/both_ways.svg.
"""

import argparse
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives
from collectives.analysis import draw
from collectives.analysis.verify import verify
from collectives.schedules.registry import register
from collectives.schedules.schedule import recv, recv_reduce, send


def both_ways(rank, size):
    """Both ways: two rings, of the blocks 0 to p - 1 upwards and of the blocks p to 2p - 1 downwards."""
    up, down = (rank + 1) % size, (rank - 1) % size
    for t in range(size - 1):  # reduce: block r + t + 1 of the lower half is complete on rank r in the end
        yield [
            send(up, (rank - t - 1) % size, 1),
            recv_reduce(down, (rank - t - 2) % size, 1, received_left=down < rank),
            send(down, size + (rank + t + 1) % size, 1),
            recv_reduce(up, size + (rank + t + 2) % size, 1, received_left=up < rank),
        ]
    for t in range(size - 1):  # gather
        yield [
            send(up, (rank - t) % size, 1),
            recv(down, (rank - t - 1) % size, 1),
            send(down, size + (rank + t) % size, 1),
            recv(up, size + (rank + t + 1) % size, 1),
        ]


algorithm = register(
    "allreduce",
    "both_ways",
    both_ways,
    blocks=lambda p: 2 * p,
    rounds=lambda p: 2 * (p - 1),
    sent=lambda p: 4 * (p - 1),
    memory=lambda p: 4 * (p > 1),
)

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, help="a folder for the picture")
args = parser.parse_args()

comm = collectives.Communicator(MPI.COMM_WORLD)
if comm.rank == 0:
    for p in range(1, 17):
        verify(algorithm, p)

vectors = [np.random.default_rng(rank).integers(0, 1000, 100_000) for rank in range(comm.size)]
total = np.empty_like(vectors[comm.rank])
comm.Allreduce(vectors[comm.rank], total, algorithm="both_ways")
assert np.array_equal(total, sum(vectors))

if comm.rank == 0:
    ran = comm.last.algorithm if comm.last is not None else None
    print(f"proved on 1 to 16 ranks; run by {ran} on {comm.size}; the sum of one process")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "both_ways.svg").write_text(draw.svg(algorithm, comm.size))
