"""Every collective by the rows of a table, on all ranks: the results are right, and all ranks tell the same.

Prints, as JSON, the algorithm that ran and what explain says, by collective and bytes. Only rank 0 knows of the table.
"""

import json
import os

import ml_dtypes
import numpy as np
from mpi4py import MPI

import collectives
from collectives.arguments.calls import COLLECTIVES
from collectives.bench.workloads import Workload

WORLD = MPI.COMM_WORLD
if WORLD.rank > 0:
    del os.environ["COLLECTIVES_TUNING"]
comm = collectives.Communicator(WORLD)
found = {}
for name in COLLECTIVES:
    for count in (12, 1200, 12000):
        for form in ("call", "start", "plan"):
            work = Workload(comm, name, count if name != "barrier" else 0)
            wrong = work.validate(form)
            assert wrong is None, (name, count, form, wrong)
            said = set(WORLD.allgather((comm.last.algorithm, comm.explain(name, work.nbytes))))
            assert len(said) == 1, said
            found.setdefault(form, {}).setdefault(name, {})[work.nbytes] = said.pop()

# What mpi4py cannot name is moved all the same; what is reduced on types or with ops of ours keeps to ours.
halves = np.full(1000, comm.rank, ml_dtypes.bfloat16)
comm.Bcast(halves, root=1)
assert (halves == 1).all()
assert comm.last.algorithm == "mpi"
spread = np.empty(comm.size * 1000, ml_dtypes.bfloat16)
comm.Allgather(np.full(1000, comm.rank, ml_dtypes.bfloat16), spread)
assert (spread.reshape(comm.size, -1) == np.arange(comm.size)[:, None]).all()
strided = np.arange(12000.0) * (comm.rank == 0)
every_other = MPI.DOUBLE.Create_vector(10, 1, 2).Commit()
comm.Bcast([strided, 600, every_other])
assert (strided[: 2 * 10 : 2] == np.arange(0, 20, 2)).all()
total = np.empty(1000, np.float16)
comm.Reduce(np.ones(1000, np.float16), total)
assert comm.rank or (total == comm.size).all()
assert comm.last.algorithm != "mpi"
with comm.group():
    comm.Bcast(np.ones(3))
    comm.Bcast(np.ones(4))
assert comm.bcast({"a": 1}) == {"a": 1}
half = comm.Split(comm.rank % 2)
assert "tuned" not in half.explain("bcast", 8) or half.size > 1
if WORLD.rank == 0:
    print(json.dumps(found))
