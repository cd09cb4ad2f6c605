"""An elastic run under kill -9: ``elastic.py FOLDER KILLS``, and options.

FOLDER counts the kills. Rank 0 prints the loss over all samples at the end, the ranks, and how many recoveries it saw.
"""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np

import collectives
from collectives import train
from collectives.train.run.elastic import Elastic, joining

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("kills", type=int)
parser.add_argument("--replace", action="store_true")
parser.add_argument("--algorithm")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--every", type=int, default=5)
parser.add_argument("--stumble", action="store_true", help="the first recovery fails on rank 0")
parser.add_argument("--seed", type=int, default=5)
args = parser.parse_args()


def schedule(total):
    """Steps and moments of the kills, and a number that chooses the victim: the same in all processes."""
    rng = train.Random(args.seed, "kills", 0).generator
    steps = np.sort(rng.choice(np.arange(5, total - 5, 10), args.kills, replace=False)) + rng.integers(0, 5, args.kills)
    return steps, rng.uniform(0, 0.01, args.kills), rng.integers(0, 1 << 30, args.kills)


def die(moment):
    threading.Timer(moment, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


comm = train.communicator()
rng = np.random.default_rng(0)
y = rng.integers(0, 5, 600)
x = rng.standard_normal((600, 12)) + 1.2 * np.eye(5, 12)[y]
data = train.Loader((x, y), 40, seed=1, comm=comm)
net = train.mlp((12,), 5, rng=np.random.default_rng(0), dtype=np.float64)
opt = train.SGD(net.parameters(), 0.02, momentum=0.9)
net, opt = train.distribute(net, opt, train.AllReduce(bucket_bytes=4096, algorithm=args.algorithm), comm=comm)
elastic = Elastic(comm, {"net": net, "opt": opt, "data": data}, every=args.every, replace=args.replace)
loss_fn = train.CrossEntropyLoss()
when, moments, choices = schedule(args.epochs * len(data))
new = joining()


restore = elastic._restore


def stumble(comm):
    elastic._restore = restore
    restore(comm)
    if comm.rank == 0:
        raise collectives.PeerFailure("as if one more had died")


if args.stumble and not new:
    elastic._restore = stumble


def batches():
    while data.epoch < args.epochs:
        for batch in data:
            yield batch
            elastic.end_step()


for a, b in elastic.steps(batches):
    done = len(list(args.folder.iterdir()))
    if done < args.kills and opt.steps >= when[done] and choices[done] % elastic.comm.size == elastic.comm.rank:
        (args.folder / f"{done} rank {elastic.comm.rank} step {opt.steps}{' new' if new else ''}").touch(exist_ok=False)
        die(moments[done])
    opt.zero_grad()
    loss_fn(net(a), b).backward()
    opt.step()

assert opt.steps == args.epochs * len(data), opt.steps
train.check_weights(net, elastic.comm)
if elastic.comm.rank == 0:
    loss = float(loss_fn(net(x), y))
    print(f"loss {loss:.6f} ranks {elastic.comm.size} recoveries {elastic.losses}", flush=True)
    print("kills:", ", ".join(sorted(file.name for file in args.folder.iterdir())), flush=True)
assert isinstance(elastic.comm, collectives.Communicator)
sys.exit(0)
