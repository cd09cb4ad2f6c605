"""PyTorch's DistributedDataParallel on this library's backend.

    mpiexec -n 4 python examples/ddp.py --out out

Each rank has a quarter of each batch; gradients are averaged in memory that the ranks share (`heap_hook`). Prints the
last loss, after rank 0 has trained the same network alone on whole batches and found the same weights. Draws the loss
of both in out/ddp.png. `torchrun --nproc-per-node 4 examples/ddp.py` does the same without MPI.
"""

import argparse
import copy
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import collectives.torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--batch", type=int, default=16, help="samples of a rank in a step")
parser.add_argument("--out", type=Path, help="a folder for the picture")
args = parser.parse_args()

torch.set_num_threads(1)  # the ranks of a machine share its cores
dist.init_process_group("collectives")
rank, size = dist.get_rank(), dist.get_world_size()


def batch(step):
    """The samples of all ranks in a step: points, and what is to be learnt of them."""
    x = torch.rand(args.batch * size, 2, generator=torch.Generator().manual_seed(step)) * 2 - 1
    return x, (3 * x[:, :1]).sin() * x[:, 1:]


def train(net, part):
    """Train on a part of each batch; the mean loss of all ranks that train, step by step."""
    opt = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = torch.zeros(args.steps)
    for step in range(args.steps):
        x, y = batch(step)
        opt.zero_grad()
        loss = mse_loss(net(x[part]), y[part])
        loss.backward()
        opt.step()
        losses[step] = loss.detach()
    return losses


torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
alone = copy.deepcopy(net)
ddp = DistributedDataParallel(net, gradient_as_bucket_view=True)
ddp.register_comm_hook(None, collectives.torch.heap_hook)
losses = train(ddp, slice(rank * args.batch, (rank + 1) * args.batch))
dist.all_reduce(losses, op=dist.ReduceOp.AVG)

if rank == 0:
    expected = train(alone, slice(None))
    for mine, theirs in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-4)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} on {size} ranks; the weights of one process")
    if args.out:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.plot(losses.tolist(), label=f"DDP, {size} ranks")
        axes.plot(expected.tolist(), ".", label="one process, whole batches")
        axes.set(title="DistributedDataParallel", xlabel="step / 1", ylabel="mean squared error / 1", yscale="log")
        axes.legend()
        args.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.out / "ddp.png", dpi=100)
dist.destroy_process_group()
