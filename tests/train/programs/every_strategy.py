"""Trains with each of the strategies that are named, and writes how many bytes the ranks have sent."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives
from collectives import train
from collectives.train import cli

COMM = collectives.Communicator(MPI.COMM_WORLD)
file, *choices = sys.argv[1:]
rng = np.random.default_rng(0)
y = np.arange(600) % 4
x = rng.standard_normal((600, 100)) + 3 * np.eye(100)[y]
with tempfile.TemporaryDirectory() as mine:
    folder = Path(COMM.bcast(mine))
    if COMM.rank == 0:
        np.savez(folder / "data.npz", x=x, y=y)
    COMM.Barrier()
    results = {}
    for choice in choices:
        parser = argparse.ArgumentParser()
        cli.add_arguments(parser)
        words = ["--data", str(folder / "data.npz"), "--epochs", "2", "--batch", "40", "--lr", "0.01", "--no-control"]
        words += ["--strategy", choice, "--json", str(folder / "found.json")]
        assert cli.main(parser.parse_args(words), COMM) == 0, choice
        if COMM.rank == 0:
            found = json.loads((folder / "found.json").read_text())
            net = train.mlp((100,), 4, rng=rng, dtype=np.float32)
            size = sum(p.data.nbytes for p in net.parameters())
            results[choice] = {"steps": found["steps"], "sent": found["bytes_sent"], "parameters": size}
    COMM.Barrier()
if COMM.rank == 0:
    Path(file).write_text(json.dumps(results))
