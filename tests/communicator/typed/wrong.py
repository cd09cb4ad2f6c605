"""Calls that are wrong: mypy and pyright object to every marked line. Read by tests/communicator/test_types.py."""

import numpy as np
from mpi4py import MPI

import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
x, y = np.ones(8), np.empty(8)

comm.Allreduce(x)  # wrong: no recvbuf
comm.Allreduce(x, y, algoritm="ring")  # wrong: misspelled
comm.Allreduce(x, y, op="sum")  # wrong: no op
comm.Allreduce(x, y, MPI.SUM, "ring")  # wrong: options are keywords
comm.Allreduce(x, y, algorithm=3)  # wrong: no name
comm.Allreduce(x, y, timeout="1s")  # wrong: no number
comm.Allreduce(x, y, deterministic="yes")  # wrong: no bool
comm.Allreduce(x, y, engine="fortran")  # wrong: no engine
comm.Allreduce(x, y, stream=7)  # wrong: no streams in this build
comm.Allreduce(x, y, root=0)  # wrong: no root
comm.Scan(x, y, collectives.AVG)  # wrong: a scan has no average
comm.Bcast()  # wrong: no buf
comm.Bcast(x, root="0")  # wrong: no rank
comm.Barrier(1)  # wrong: takes nothing
comm.Gather(x)  # wrong: no recvbuf
comm.Gatherv(x, [y, "two"], rot=1)  # wrong: misspelled
comm.Scatter(recvbuf=y)  # wrong: no sendbuf
comm.Reduce_scatter(x, y, "44")  # wrong: no counts
comm.Alltoall(x, y, MPI.SUM)  # wrong: no op
comm.Iallreduce(x, y, timeout=1.0)  # wrong: waits are for the request
comm.Iallreduce(x, y, engine="python")  # wrong: blocking calls only
comm.Iallreduce(x)  # wrong: no recvbuf
comm.Allreduce_init(x, y, MPI.SUM, 4)  # wrong: no info
comm.Allreduce(x, y).Wait()  # wrong: a blocking call returns None
comm.Iallreduce(x, y).wait_all()  # wrong: no such method
comm.allreduce(3, op="sum")  # wrong: no op
comm.bcast()  # wrong: no object
comm.scatter([1, 2], rot=0)  # wrong: misspelled
comm.ibcast(1, "0")  # wrong: no rank
comm.iallreduce(1, timeout=1.0)  # wrong: no such option
comm.Split(colour=1)  # wrong: misspelled
comm.Create_cart([2, 2]).Neighbor_allgather(x)  # wrong: no recvbuf
comm.explain("allreduce")  # wrong: no length
comm.timeout = "soon"  # wrong: no number
collectives.Communicator(3)  # wrong: no communicator
collectives.allreduce(x, y)  # wrong: no such name
