"""Loaders whose samples stay on their ranks, on real ranks. Usage: local_ranks.py FOLDER

Every sample once per epoch, over a save, a loss of the last rank and errors of one rank. Rank 1 has no samples.
"""

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from collectives import train

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
LENGTHS = [40, 0, 83, 17, 29][:SIZE]
MINE = np.arange(LENGTHS[RANK]) + 1000 * RANK
TOTAL = sum(LENGTHS)
folder = Path(sys.argv[1])


def loader(samples=MINE, comm=COMM, **kwargs):
    return train.Loader((samples,), 16, comm=comm, placement="local", **kwargs)


def of_all(samples, comm=COMM):
    return sorted(sample for mine in comm.allgather([int(s) for s in samples]) for sample in mine)


def every_sample_once():
    data = loader(prefetch=2)
    for _ in range(2):
        seen = []
        for (x,) in data:
            seen += x.tolist()
            step = COMM.allreduce(len(x))  # all ranks make all steps
            assert step == 16 or data.step == len(data)
        assert sorted(seen) == MINE.tolist()
    assert (data.samples, len(data)) == (TOTAL, -(-TOTAL // 16))


def saved_and_resumed_without_the_last_rank():
    data, seen = loader(), []
    for (x,) in data:
        seen += x.tolist()
        if data.step == 3:
            break
    if RANK == 0:
        (folder / "state.json").write_text(json.dumps(data.state_dict()))
    fewer = COMM.Split(0 if RANK < SIZE - 1 else MPI.UNDEFINED)
    if fewer == MPI.COMM_NULL:
        return
    fewer.Barrier()
    again = loader(comm=fewer)
    again.load_state_dict(json.loads((folder / "state.json").read_text()))
    data.redeal(fewer)
    assert again.state_dict() == data.state_dict()
    left = [sample for (x,) in again for sample in x.tolist()]
    assert left == [sample for (x,) in data for sample in x.tolist()]
    assert sorted(seen + left) == MINE.tolist()
    fewer.Free()


def errors_reach_all_ranks():
    bad = {
        "rows": lambda: loader(np.array(3)),
        "dtype": lambda: loader(MINE.astype(np.float32)),
        "seed": lambda: loader(seed=1),
        "file": lambda: loader(folder / "absent.npy"),
    }
    for name, make in bad.items():
        message = error_of(make if RANK == SIZE - 1 else loader)
        assert message, name
        assert f"rank {SIZE - 1}" in message or RANK == SIZE - 1, message
    assert "at least 1 sample" in error_of(lambda: loader(MINE[:0]))


def error_of(make):
    try:
        make()
    except (ValueError, TypeError, OSError) as error:
        return str(error)
    return ""


every_sample_once()
saved_and_resumed_without_the_last_rank()
errors_reach_all_ranks()
if COMM.allreduce(1) == SIZE and RANK == 0:
    print("passed")
