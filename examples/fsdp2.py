"""PyTorch's fully_shard (FSDP2) on this library's backend: each rank keeps a part of every parameter.

    mpiexec -n 4 python examples/fsdp2.py --out out

Parameters are gathered layer by layer when they are needed, and gradients are reduced and scattered. Prints the bytes
of parameters that rank 0 keeps, after it has trained the same network alone on whole batches and found the same
weights. Draws the bytes of each rank in out/fsdp2.png. `torchrun --nproc-per-node 4 examples/fsdp2.py` works, too.
"""

import argparse
import copy
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

import collectives.torch  # noqa: F401 - the import makes the backend known

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--batch", type=int, default=16, help="samples of a rank in a step")
parser.add_argument("--out", type=Path, help="a folder for the picture")
args = parser.parse_args()

torch.set_num_threads(1)  # the ranks of a machine share its cores
dist.init_process_group("collectives")
rank, size = dist.get_rank(), dist.get_world_size()


def train(net, part):
    """Train on a part of each batch."""
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    for step in range(args.steps):
        x = torch.rand(args.batch * size, 32, generator=torch.Generator().manual_seed(step))
        opt.zero_grad()
        mse_loss(net(x[part]), x[part].square()).backward()
        opt.step()


torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 32)
)
alone = copy.deepcopy(net)
whole = sum(p.numel() * p.element_size() for p in net.parameters())
mesh = init_device_mesh("cpu", (size,))
for layer in net:
    if isinstance(layer, torch.nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
train(net, slice(rank * args.batch, (rank + 1) * args.batch))

trained = [p.full_tensor() for p in net.parameters()]  # gathered: all ranks take part
kept = [0] * size
dist.all_gather_object(kept, sum(p.to_local().numel() * p.element_size() for p in net.parameters()))
if rank == 0:
    train(alone, slice(None))
    for mine, theirs in zip(trained, alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-3, atol=1e-4)
    assert sum(kept) == whole
    print(f"rank 0 keeps {kept[0]} of {whole} bytes of parameters; the weights of one process")
    if args.out:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.bar(range(size), [n / 1024 for n in kept], label="a rank's part")
        axes.axhline(whole / 1024, color="tab:orange", label="the whole network")
        axes.set(title=f"fully_shard on {size} ranks", xlabel="rank", ylabel="parameters / KiB", xticks=range(size))
        axes.legend()
        args.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.out / "fsdp2.png", dpi=100)
dist.destroy_process_group()
