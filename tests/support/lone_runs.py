"""Runs of one rank on a small network, for tests of how runs end and go on."""

import numpy as np
from mpi4py import MPI

from collectives import train

COMM = MPI.COMM_SELF


def parts(n=10, batch=4):
    rng = np.random.default_rng(0)
    data = train.Loader((rng.standard_normal((n, 2)), np.arange(n) % 2), batch, comm=COMM)
    net = train.mlp((2,), 2, rng=np.random.default_rng(0))
    return {"net": net, "opt": train.SGD(net.parameters(), lr=0.1, momentum=0.5), "data": data}


def go(out, state, epochs=2, upto=None, **options):
    """Train; after step `upto` the process might have died. The run."""
    run = train.Run(out, comm=COMM, state=state, progress="lines", **options)
    for x, y in run.steps(state["data"], epochs=epochs):
        state["opt"].zero_grad()
        loss = train.CrossEntropyLoss()(state["net"](x), y)
        loss.backward()
        state["opt"].step()
        run.log(loss=loss)
        if run.step + 1 == upto:
            break
    return run


def names(out, name="train"):
    return sorted(f.name for f in (out / "checkpoints" / name).iterdir())
