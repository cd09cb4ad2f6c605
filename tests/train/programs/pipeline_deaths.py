"""A rank of a pipeline is killed, or comes late, in the middle of a step: what each rank raises, and after how long.

``mpiexec --with-ft ulfm -n 4 python tests/train/programs/pipeline_deaths.py FOLDER VICTIM SECONDS AXIS=LENGTH...``
kills rank VICTIM in its second step, or lets it sleep for SECONDS if these are not 0. Each rank writes
[seconds, kind, text] to FOLDER/<rank>.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from mpi4py import MPI
from pipeline_training import LOSS, X, Y, chain, sgd

import collectives
from collectives import train

folder, victim, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
shape = {axis: int(length) for axis, length in (word.split("=") for word in sys.argv[4:])}
comm = collectives.Communicator(MPI.COMM_WORLD)
mesh = train.Mesh(comm, **shape)
net = chain()
steps = 0


def disturbed(layer):
    """Let the layer end this process, or sleep, in the third micro-batch of the second step."""
    plain, calls = layer.forward, 0

    def forward(x):
        nonlocal calls
        calls += 1
        if calls == 7:
            if not seconds:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(seconds)
        return plain(x)

    layer.forward = forward


pipe = train.Pipeline(net, mesh.pipeline, micro_batches=4)
pipe, opt = train.distribute(pipe, sgd(pipe.parameters()), train.AllReduce(clip_norm=1.0), mesh=mesh)
if comm.rank == victim:
    disturbed(pipe.net.layers[0])
begin = time.monotonic()
try:
    for _ in range(3):
        opt.zero_grad()
        begin = time.monotonic()
        pipe.step(X, Y, LOSS)
        opt.step()
    told = ["no error", ""]
except Exception as error:
    told = [type(error).__name__, str(error)]
(folder / str(comm.rank)).write_text(json.dumps([time.monotonic() - begin, *told]))
while not seconds and len(list(folder.iterdir())) < comm.size - 1:  # so that no end of a program is the error
    time.sleep(0.05)
os._exit(0)
