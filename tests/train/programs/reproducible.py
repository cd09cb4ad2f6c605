"""Training whose bits do not depend on the number of ranks; rank 0 prints a hash of the parameters, and the loss."""

import hashlib
import sys

import numpy as np

from collectives import train

KINDS = {"mlp": (train.mlp, np.float32), "mlp64": (train.mlp, np.float64), "cnn": (train.cnn, np.float32)}
kind, ordinary = sys.argv[1], "ordinary" in sys.argv
comm = train.communicator()
rng = np.random.default_rng(3)
y = rng.integers(0, 5, 50)
if kind == "torch":
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = rng.standard_normal((50, 12)).astype(np.float32)
    net = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5))
    opt = torch.optim.Adam(net.parameters(), 0.01)
    wrap, loss_fn = torch.tensor, torch.nn.CrossEntropyLoss()
else:
    model, dtype = KINDS[kind]
    x = rng.standard_normal((50, 1, 8, 8)).astype(dtype)
    net = model((1, 8, 8), 5, rng=np.random.default_rng(0), dtype=dtype)
    opt = train.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    wrap, loss_fn = np.asarray, train.CrossEntropyLoss()
if ordinary:
    net, opt = train.distribute(net, opt, comm=comm)
data = train.Loader((x, y), 16, seed=1, comm=comm)
for _ in range(3):
    for a, b in data:
        opt.zero_grad()
        if ordinary:
            loss_fn(net(a), b).backward()
        else:
            train.reproducible_backward(net, loss_fn, wrap(a), wrap(b), comm=comm)
        opt.step()
train.check_weights(net, comm)
weights = [np.asarray(p.detach() if kind == "torch" else p.data) for p in net.parameters()]
if comm.rank == 0:
    loss = float(loss_fn(net(wrap(x)), wrap(y)))
    print(f"loss {loss:.5f} {hashlib.sha256(b''.join(w.tobytes() for w in weights)).hexdigest()}", flush=True)
