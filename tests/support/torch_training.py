"""A small torch network, trained by one process or by all ranks, for the programs that compare both."""

import torch
from mpi4py import MPI

import collectives
from collectives import train

torch.set_num_threads(1)
COMM = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
SAMPLES, INPUTS, CLASSES = 30, 12, 4
NEAR = 1e-12
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(SAMPLES, INPUTS, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(CLASSES, (SAMPLES,), generator=GENERATOR)
SHARES = [SAMPLES, *[0] * (SIZE - 1)] if SIZE == 1 else [SAMPLES - 11, 11, *[0] * (SIZE - 2)]  # uneven, some are empty
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
}


def mlp(dtype=torch.float64, seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES)).to(dtype)


def mine():
    """This rank's share of the samples."""
    start = sum(SHARES[:RANK])
    return X[start : start + SHARES[RANK]], Y[start : start + SHARES[RANK]]


def flat(net):
    return torch.cat([p.detach().reshape(-1).double() for p in net.parameters()])


def backward(net, x, y, strategy=None):
    loss = torch.nn.functional.cross_entropy(net(x.to(next(net.parameters()).dtype)), y)
    (loss if strategy is None else strategy.scale(loss)).backward()


def alone(optimizer, steps=6, clip=None, dtype=torch.float64):
    """What one process computes with all samples."""
    net = mlp(dtype)
    opt = OPTIMIZERS[optimizer](net.parameters())
    for _ in range(steps):
        opt.zero_grad()
        backward(net, X, Y)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        opt.step()
    return flat(net)


def steps(net, opt, count, micro=1):
    """Train with this rank's share, in micro-batches of different lengths."""
    strategy = opt.strategy
    x, y = mine()
    cuts = [0, len(x) // 3, len(x) // 2, len(x)][-micro:] if micro > 1 else [len(x)]
    cuts = [0, *[cut for cut in cuts if cut]] if len(x) else [0] * (micro + 1)
    for _ in range(count):
        opt.zero_grad()
        for i, (start, stop) in enumerate(zip(cuts, cuts[1:], strict=False)):
            if i < len(cuts) - 2:
                with strategy.no_sync():
                    backward(net, x[start:stop], y[start:stop], strategy)
            else:
                backward(net, x[start:stop], y[start:stop], strategy)
        opt.step()


def together(optimizer, count=6, micro=1, dtype=torch.float64, seed=None, **options):
    net = mlp(dtype, RANK if seed is None else seed)
    if seed is None and RANK == 0:
        net = mlp(dtype)
    strategy = train.AllReduce(bucket_bytes=1024, **options)
    net, opt = train.distribute(net, OPTIMIZERS[optimizer](net.parameters()), strategy, comm=COMM)
    steps(net, opt, count, micro)
    return net, opt
