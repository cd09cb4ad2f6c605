"""An elastic run under kill -9: ``elastic.py FOLDER KILLS``, and options.

FOLDER counts the kills. Rank 0 prints the loss over all samples at the end, the ranks, and how many recoveries it saw.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from jobs import environment

import collectives
from collectives import train
from collectives.train.run.replacing import joining

SAMPLES = 600

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("kills", type=int)
parser.add_argument("--replace", action="store_true")
parser.add_argument("--algorithm")
parser.add_argument("--shard", type=int, default=0)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--every", type=int, default=5)
parser.add_argument("--out", type=Path, help="folder of checkpoints and records")
parser.add_argument("--stumble", action="store_true", help="the first recovery fails on rank 0")
parser.add_argument("--hinder", choices=("start", "join", "first", "last"), help="what a new process does, see hinder")
parser.add_argument("--seed", type=int, default=5)
parser.add_argument("--sleep", type=float, default=0, help="seconds of each step")
args = parser.parse_args()


def schedule(total):
    """Steps and moments of the kills, and a number that chooses the victim: the same in all processes."""
    rng = train.Random(args.seed, "kills", 0).generator
    steps = np.sort(rng.choice(np.arange(5, total - 5, 10), args.kills, replace=False)) + rng.integers(0, 5, args.kills)
    return steps, rng.uniform(0, 0.01, args.kills), rng.integers(0, 1 << 30, args.kills)


def die(moment):
    threading.Timer(moment, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


def saving():
    """Options of a run that writes files."""
    if args.out is None:
        return {}
    return {"out": args.out, "checkpoint_every": 7, "callbacks": [train.JSONL(args.out / "records.jsonl")]}


def hinder():
    """In a new process, before MPI: never start it, or kill the first or last rank, which waits for this process."""
    if os.environ.get("PMIX_NAMESPACE", "@1").endswith("@1"):
        return
    if args.hinder == "start":
        time.sleep(1000)
    elif args.hinder in ("first", "last"):
        pids = sorted(int(file.name.split()[-1]) for file in args.folder.glob("at work *"))
        at_work = [pid for pid in pids if environment(pid)]  # a zombie has none
        os.kill(at_work[0 if args.hinder == "first" else -1], signal.SIGKILL)


hinder()
comm = train.communicator()
if args.hinder == "join" and joining():
    time.sleep(1000)
rng = np.random.default_rng(0)
y = rng.integers(0, 5, SAMPLES)
x = rng.standard_normal((SAMPLES, 12)) + 1.2 * np.eye(5, 12)[y]
data = train.Loader((x, y), 40, seed=1, comm=comm)
net = train.mlp((12,), 5, rng=np.random.default_rng(0), dtype=np.float64)
opt = train.SGD(net.parameters(), 0.02, momentum=0.9)
strategy = train.AllReduce(bucket_bytes=4096, algorithm=args.algorithm, shard=args.shard)
net, opt = train.distribute(net, opt, strategy, comm=comm)
new = joining()
run = train.Run(
    comm=comm, state={"net": net, "opt": opt, "data": data}, evaluate=lambda: train.evaluate(net, x, y, comm=run.comm),
    every=4, best=("accuracy", "max"), check_weights=3, lr=lambda samples: 0.02,
    elastic=True, commit_every=args.every, replace_ranks=args.replace, **saving(),
)  # fmt: skip
loss_fn = train.CrossEntropyLoss()
when, moments, choices = schedule(args.epochs * len(data))
restore = run._elastic._restore


def stumble(comm):
    run._elastic._restore = restore
    restore(comm)
    if comm.rank == 0:
        raise collectives.PeerFailure("as if one more had died")


if args.stumble and not new:
    run._elastic._restore = stumble

for a, b in run.steps(data, epochs=args.epochs):
    (args.folder / f"at work {os.getpid()}").touch()
    done = len(list(args.folder.glob("* rank *")))
    if done < args.kills and run.step >= when[done] and choices[done] % run.comm.size == run.comm.rank:
        (args.folder / f"{done} rank {run.comm.rank} step {run.step}{' new' if new else ''}").touch(exist_ok=False)
        die(moments[done])
    opt.zero_grad()
    loss = loss_fn(net(a), b)
    loss.backward()
    opt.step()
    run.log(loss=loss)
    time.sleep(args.sleep)

assert run.step == opt.steps == args.epochs * len(data), (run.step, opt.steps)
assert run.samples == args.epochs * SAMPLES, run.samples  # each counts once, also if its rank has died since
train.check_weights(net, run.comm)
if run.comm.rank == 0:
    loss = float(loss_fn(net(x), y))
    print(f"loss {loss:.6f} ranks {run.comm.size} recoveries {run._elastic.losses}", flush=True)
    print("kills:", ", ".join(sorted(file.name for file in args.folder.glob("* rank *"))), flush=True)
    if args.out is not None:
        lines = [json.loads(line) for line in (args.out / "records.jsonl").read_text().splitlines()]
        assert lines == run.records == train.read_log(args.out / "log.json")["runs"]["train"]["records"]
assert isinstance(run.comm, collectives.Communicator)
sys.exit(0)
