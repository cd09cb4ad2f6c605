"""Parameter servers on real ranks. Usage: central.py CASE [ARGUMENTS]; each rank prints a line."""

import functools
import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives
from collectives import train
from collectives.train.server.lifeline import Survival

COMM = collectives.Communicator(MPI.COMM_WORLD)
RATE = 2.0**-10
GOSSIP = {"ad_psgd": train.ADPSGD, "neighbor_averaging": train.NeighborAveraging, "push_sum": train.PushSum}


def say(*what):
    """Print a line at once, whatever the buffering."""
    os.write(1, (" ".join(map(str, what)) + "\n").encode())


def samples():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((90, 6))
    return x, (x[:, 0] > x[:, 1]).astype(int)


def parameters(comm, strategy, epochs=3):
    """The parameters after training with momentum, on all ranks of `comm`; which are left by servers at the end."""
    data = train.Loader(samples(), 20, seed=1, comm=comm)
    net = train.mlp((6,), 2, rng=np.random.default_rng(comm.rank), dtype=np.float64)
    opt = train.SGD(net.parameters(), 0.05, momentum=0.9)
    net, opt = train.distribute(net, opt, strategy, comm=comm)
    run = train.Run(comm=comm, state={"net": net, "opt": opt, "data": data})
    for x, y in run.steps(data, epochs=epochs):
        opt.zero_grad()
        loss = train.CrossEntropyLoss()(net(x), y)
        loss.backward()
        opt.step()
        run.log(loss=loss)
    assert train.same_bits(net, comm)
    return np.concatenate([p.data.ravel() for p in net.parameters()])


def equal():
    """The synchronous server does what AllReduce does among the workers."""
    for how in ({"servers": 1}, {"servers": 2, "backup": True}, {"servers": 2, "beside": True}):
        workers = COMM.size - (0 if how.get("beside") else how["servers"])
        among = COMM.Split(int(COMM.rank < workers), COMM.rank)
        expected = parameters(among, train.AllReduce())
        found = parameters(COMM, train.ParameterServer(bucket_bytes=700, **how))
        expected = COMM.bcast(expected, root=0)
        assert np.abs(found - expected).max() < 1e-12, np.abs(found - expected).max()
    for strategy in (train.SSP(2), train.AsyncParameterServer(beside=True), train.AsyncEASGD(2), train.PeerAsync()):
        assert np.isfinite(parameters(COMM, strategy)).all()
    say("equal")


class Counting:
    """A linear network at 0 of which each worker's gradient is 1 for its own weight: weights count gradients."""

    def __init__(self, strategy):
        self.net = train.Sequential(train.Linear(COMM.size, 1, rng=np.random.default_rng(0), dtype=np.float64))
        for p in self.net.parameters():
            p.data[...] = 0
        opt = train.SGD(self.net.parameters(), RATE)
        self.net, self.opt = train.distribute(self.net, opt, strategy, comm=COMM)

    def step(self):
        self.opt.zero_grad()
        self.net(np.eye(COMM.size)[COMM.rank : COMM.rank + 1]).backward(np.ones((1, 1)))
        self.opt.step()

    def counts(self):
        return (-self.net.parameters()[0].data.ravel() / RATE).tolist()


def strategy_of(name):
    makers = {
        "sync": functools.partial(train.ParameterServer, 2),
        "async": functools.partial(train.AsyncParameterServer, 2, rate="full"),
        "backup": functools.partial(train.AsyncParameterServer, 2, rate="full", backup=True),
        "syncbackup": functools.partial(train.ParameterServer, 2, backup=True),
        "beside": functools.partial(train.AsyncParameterServer, 2, rate="full", backup=True, beside=True),
        "peers": train.PeerAsync,
        **GOSSIP,
    }
    return makers[name]()


def raises(name):
    """Rank 1 raises in its loop: all ranks end, and say which rank it was."""
    counting = Counting(strategy_of(name))
    for step in range(10_000):
        if COMM.rank == 1 and step == 5:
            raise IndexError("mine")
        counting.step()


def serve_until_killed(serve):
    """Serve for 0.6 s, in which workers make about 20 steps."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, 0.6)
    serve()


def acknowledged(folder):
    """A file to which this rank writes a byte for each step that was acknowledged: a death cannot tear that."""
    return (Path(folder) / f"acknowledged-{COMM.rank}").open("ab", buffering=0)


def dies(name, victim, folder, steps=60):
    """The rank `victim` is killed in the run. A worker notes each step that was acknowledged."""
    strategy = strategy_of(name)
    victim, note = int(victim), acknowledged(folder)
    if victim == COMM.rank and name != "peers" and COMM.rank >= COMM.size - 2:
        strategy.begin = functools.partial(serve_until_killed, strategy.begin)
    counting = Counting(strategy)
    mine = 0
    for _ in range(steps if strategy.worker else 0):
        if COMM.rank == victim and mine == steps // 3:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.03)
        counting.step()
        mine += 1
        if COMM.rank == victim:
            note.write(b".")
    strategy.close()
    say("rank", COMM.rank, "steps", mine, "counts", *counting.counts())


def killed(name, victims, seed, folder, steps=60):
    """The ranks `victims`, "1,3" for example, die at random moments: in the run, or while the ranks part."""
    strategy = strategy_of(name)
    begin, note = strategy.begin, acknowledged(folder)
    dies_in = np.random.default_rng([int(seed), COMM.rank]).uniform(0.05, 2.2)  # the run takes 1.9 s or more
    if str(COMM.rank) in victims.split(","):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # at once, also within MPI
        strategy.begin = lambda: (signal.setitimer(signal.ITIMER_REAL, dies_in), begin())
    counting = Counting(strategy)
    for _ in range(steps if strategy.worker else 0):
        time.sleep(0.03)
        counting.step()
        note.write(b".")
    strategy.close()
    signal.setitimer(signal.ITIMER_REAL, 0)
    say("rank", COMM.rank, "steps", steps, "counts", *counting.counts())


def parts(name, victim):
    """The rank `victim` dies when all have agreed that none has died, and free what they parted with."""
    if COMM.rank == int(victim):
        Survival.close = lambda self: os.kill(os.getpid(), signal.SIGKILL)
    strategy = strategy_of(name)
    counting = Counting(strategy)
    for _ in range(3 if strategy.worker else 0):
        counting.step()
    strategy.close()
    say("rank", COMM.rank, "counts", *counting.counts())


def gossips(name):
    """Rank 1 is killed among ranks that gossip, without a run that is elastic."""
    counting = Counting(GOSSIP[name]())
    for step in range(300):
        if COMM.rank == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.005)
        counting.step()
    counting.opt.strategy.finish()
    say("finished")


def elastic(name, seed):
    """Rank 1 is killed at a random moment of an elastic run."""
    data = train.Loader(samples(), 20, seed=1, comm=COMM)
    net = train.mlp((6,), 2, rng=np.random.default_rng(0), dtype=np.float64)
    net, opt = train.distribute(net, train.SGD(net.parameters(), 0.05), GOSSIP[name](), comm=COMM)
    run = train.Run(comm=COMM, state={"net": net, "opt": opt, "data": data}, elastic=True, commit_every=3)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # at once, also within MPI
    if COMM.rank == 1:
        signal.setitimer(signal.ITIMER_REAL, np.random.default_rng(int(seed)).uniform(0.05, 2.9))
    for x, y in run.steps(data, epochs=60):
        opt.zero_grad()
        train.CrossEntropyLoss()(net(x), y).backward()
        time.sleep(0.01)  # the run takes 3 s or more
        opt.step()
    say("ended on", run.comm.size, "with", run.samples)


def capped():
    """A table of 1.6 GB on 2 servers, of which a worker could not even reserve the memory."""
    rows, width = 25_000_000, 16
    table = train.Table(rows, width, optimizer=functools.partial(train.SGD, lr=0.5))
    net = train.mlp((6,), 2, rng=np.random.default_rng(0))
    opt = train.SGD(net.parameters(), 0.1)
    strategy = train.ParameterServer(2, tables={"table": table})
    train.distribute(net, opt, strategy, comm=COMM)
    if strategy.worker:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
        try:
            np.zeros((rows, width), np.float32)
        except MemoryError:
            pass
        else:
            raise AssertionError("the cap does not hold")
        rng = np.random.default_rng(7)
        keys = rng.choice(rows, 40, replace=False)
        for _ in range(12):
            found = table.pull(keys)
            net(np.zeros((5, 6), np.float32)).backward(np.zeros((5, 2), np.float32))
            table.push(keys, found - np.arange(40)[:, None])
            opt.step()
        found = table.pull(keys)
        assert np.abs(found - np.arange(40)[:, None]).max() < 0.02
        assert not table.pull(keys + 1 if keys.max() < rows - 1 else keys - 1)[~np.isin(keys + 1, keys)].any()
    strategy.close()
    say("capped")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
