"""A small training that can be killed and started again: ``mpiexec -n P python resumable.py OUT [OPTION=VALUE ...]``.

Options are ``every`` (steps between checkpoints), ``sleep`` (seconds in each step) and ``attempt`` (how often it was
started before). Every rank writes ``OUT/seen-<attempt>-<resumed>-<rank>``: a line for each step, with its number from 0
and its samples. At the end rank 0 prints JSON: why it stopped, from which step it went on, the SHA-256 of its weights,
and the records.
"""

import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives
from collectives import train

SAMPLES, BATCH, EPOCHS = 300, 12, 8


def main() -> int:
    out = Path(sys.argv[1])
    options = dict(word.split("=") for word in sys.argv[2:])
    comm = collectives.Communicator(MPI.COMM_WORLD)
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((SAMPLES, 20)).astype(np.float32), rng.integers(0, 4, SAMPLES)
    data = train.Loader((np.arange(SAMPLES), x, y), BATCH, seed=3, comm=comm)
    net = train.mlp((20,), 4, rng=np.random.default_rng(2))
    opt = train.SGD(net.parameters(), 0.05, momentum=0.9)
    net, opt = train.distribute(net, opt, train.AllReduce(bucket_bytes=4096), comm=comm)
    run = train.Run(
        out, comm=comm, state={"net": net, "opt": opt, "data": data}, progress="lines", every=7,
        checkpoint_every=int(options.get("every", 4)), keep=3, best=("accuracy", "max"),
        evaluate=lambda: train.evaluate(net, x, y, comm=comm),
    )  # fmt: skip
    loss_fn = train.CrossEntropyLoss()
    attempt = int(options.get("attempt", 0))
    seen = (out / f"seen-{attempt:03}-{run.resumed or 0}-{comm.rank}").open("w")
    for rows, xs, ys in run.steps(data, epochs=EPOCHS):
        opt.zero_grad()
        loss = loss_fn(net(xs), ys)
        loss.backward()
        opt.step()
        run.log(loss=loss)
        print(run.step, *rows, file=seen, flush=True)
        time.sleep(float(options.get("sleep", 0)))
    digest = hashlib.sha256(b"".join(p.data.tobytes() for p in net.parameters())).hexdigest()
    records = [{k: v for k, v in record.items() if k != "seconds"} for record in run.records]
    if comm.rank == 0:
        told = {"stopped": run.stopped, "resumed": run.resumed, "step": run.step, "sha256": digest, "records": records}
        print("END", json.dumps(told), flush=True)
    comm.Barrier()
    return 75 if run.stopped else 0


if __name__ == "__main__":
    sys.exit(main())
