"""A small NumPy network in float64, trained on ranks that may be threads, for tests of strategies.

In step k all ranks together use SAMPLES samples, which ``shares(ranks, k)`` divides between them.
"""

import numpy as np

from collectives import train

SAMPLES = 24
RNG = np.random.default_rng(3)
X, Y = RNG.standard_normal((96, 8)), RNG.integers(0, 3, 96)
NEAR = 1e-12  # far above what roundings do in a few steps, far below what a wrong weight does


def sgd(parameters):
    return train.SGD(parameters, 0.1)


def momentum(parameters):
    return train.SGD(parameters, 0.05, momentum=0.9, weight_decay=0.01)


def adam(parameters):
    return train.Adam(parameters, 0.01)


def still(parameters):
    """An optimizer that changes nothing."""
    return train.SGD(parameters, 0.0)


def network(dtype=np.float64):
    return train.mlp((8,), 3, rng=np.random.default_rng(1), dtype=dtype)


def flat(net):
    return np.concatenate([p.data.ravel() for p in net.parameters()])


def even(size, step=0):
    return [SAMPLES // size + (rank < SAMPLES % size) for rank in range(size)]


def uneven(size, step=0):
    """Different lengths; the last rank of several has no samples."""
    return [SAMPLES] if size == 1 else [SAMPLES - 5 * (size - 2), *[5] * (size - 2), 0]


def turning(size, step=0):
    """Different lengths, which go round."""
    found = uneven(size)
    return found[step % size :] + found[: step % size]


def batch(step, rank, shares):
    rows = np.random.default_rng(step).permutation(len(X))[:SAMPLES]
    start = sum(shares[:rank])
    mine = rows[start : start + shares[rank]]
    return X[mine], Y[mine]


def backward(net, x, y):
    train.CrossEntropyLoss()(net(x), y).backward()


def begin(comm, strategy, optimizer=sgd, dtype=np.float64):
    net = network(dtype)
    return train.distribute(net, optimizer(net.parameters()), strategy, comm=comm)


def scatter(opt, rank, seed=0):
    """Move this rank's parameters away from those of the others."""
    for data in opt.strategy.parameters:
        data += np.random.default_rng([seed, rank, len(data)]).standard_normal(len(data))


def steps(net, opt, comm, first, last, shares=even):
    for step in range(first, last):
        opt.zero_grad()
        backward(net, *batch(step, comm.rank, shares(comm.size, step)))
        opt.step()


def trained(comm, strategy, count, optimizer=sgd, shares=even):
    """Parameters of this rank after some steps, before `finish`."""
    net, opt = begin(comm, strategy, optimizer)
    steps(net, opt, comm, 0, count, shares)
    return flat(net)


def on_threads(size, strategy, count, optimizer=sgd, shares=even):
    """The parameters of all ranks, (ranks, n), of a new ``strategy()`` each."""
    return np.stack(train.threads.run(size, lambda comm: trained(comm, strategy(), count, optimizer, shares)))


class Alone:
    """Ranks without communication, in one process: what definitions of strategies are computed with."""

    def __init__(self, size, optimizer=sgd, shares=even):
        self.size, self.shares = size, shares
        self.nets = [network() for _ in range(size)]
        self.opts = [optimizer(net.parameters()) for net in self.nets]
        self.step = 0

    def gradients(self):
        for rank, net in enumerate(self.nets):
            self.opts[rank].zero_grad()
            backward(net, *batch(self.step, rank, self.shares(self.size, self.step)))
        self.step += 1

    def update(self):
        for opt in self.opts:
            opt.step()

    @property
    def x(self):
        """The parameters, (ranks, n)."""
        return np.stack([flat(net) for net in self.nets])

    @x.setter
    def x(self, values):
        for net, mine in zip(self.nets, np.broadcast_to(values, self.x.shape), strict=True):
            start = 0
            for p in net.parameters():
                p.data[...] = mine[start : start + p.data.size].reshape(p.data.shape)
                start += p.data.size
