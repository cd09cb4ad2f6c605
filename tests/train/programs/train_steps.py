"""Reductions and training on the default communicator; rank 0 prints hashes of all results."""

import hashlib

import ml_dtypes
import numpy as np
from mpi4py import MPI

import collectives
from collectives import train

TYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def folds(comm):
    """Sums and means of vectors that round."""
    for dtype in TYPES:
        for op in (MPI.SUM, collectives.AVG):
            x = (np.random.default_rng(comm.rank).standard_normal(1000) * 10).astype(dtype)
            y = np.empty_like(x)
            comm.Allreduce(x, y, op=op)
            yield f"{np.dtype(dtype)} {'mean' if op is collectives.AVG else 'sum'}", y
    for dtype in TYPES[:2]:
        x = (np.random.default_rng(comm.rank).standard_normal(1000) * 10).astype(dtype)
        comm.Allreduce(MPI.IN_PLACE, x, op=collectives.REPRODUCIBLE_SUM)
        yield f"exact {np.dtype(dtype)}", x


def trained(comm, model):
    """The parameters after 12 steps of a float32 network."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 5, 90)
    x = rng.standard_normal((90, 1, 8, 8))
    net = model((1, 8, 8), 5, rng=np.random.default_rng(comm.rank), dtype=np.float32)
    opt = train.SGD(net.parameters(), 0.05, momentum=0.9)
    data = train.Loader((x, y), 16, seed=1, comm=comm)
    net, opt = train.distribute(net, opt, train.AllReduce(bucket_bytes=4096), comm=comm)
    run = train.Run(comm=comm, state={"net": net, "opt": opt, "data": data}, progress="lines", name="steps")
    for a, b in run.steps(data, epochs=2):
        opt.zero_grad()
        loss = train.CrossEntropyLoss()(net(a), b)
        loss.backward()
        opt.step()
        run.log(loss=loss)
    train.check_weights(net, comm)
    return np.concatenate([p.data.ravel() for p in net.parameters()]), run.records[-1]["loss"]


comm = train.communicator()
results = dict(folds(comm))
losses = {}
for model in (train.mlp, train.cnn):
    results[model.__name__], losses[model.__name__] = trained(comm, model)
assert len({array.tobytes() for array in results.values()}) == len(results)
if comm.rank == 0:
    print(f"{comm.size} ranks", losses, {n: hashlib.sha256(a.tobytes()).hexdigest() for n, a in results.items()})
