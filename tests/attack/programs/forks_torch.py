"""Forked children that hold DistributedDataParallel's buckets on the heap: what they write to them is their own.

Usage: forks_torch.py STEPS. Gradients are views of buckets that the ranks share; workers of a DataLoader and plain
children write to those, to the parameters, and to the buckets themselves, while the parents train. The parents'
parameters must be those of one process with all samples, but for rounding.
"""

import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import collectives.torch
from collectives.system import heap
from collectives.torch.gradients import address_of

steps = int(sys.argv[1])


class Scribbling(Dataset):
    """Samples from workers, which write to all that they have of their parent's first."""

    def __init__(self, held):
        self.held = held

    def __len__(self):
        return 2 * steps

    def __getitem__(self, index):
        scribble(self.held)
        return torch.full((64,), float(rank + index % 2))


def scribble(held):
    """Read and write the child's own copies."""
    for number, tensor in enumerate(held):
        seen = tensor.clone()  # the parent still writes to what the child has not written, and isfinite reads it twice
        assert torch.isfinite(seen).all(), f"tensor {number} is not finite"
        tensor.fill_(float(os.getpid()))
        kept = tensor == float(os.getpid())
        assert kept.all(), f"tensor {number} lost {int((~kept).sum())} of its elements: {tensor[~kept][:3]}"


def child(held):
    """A plain child that scribbles for a while, as its parent goes on; its process."""
    pid = os.fork()
    if pid == 0:
        try:
            for _ in range(5):
                scribble(held)
                time.sleep(0.002)
            os._exit(0)
        except BaseException as e:
            print(f"rank {rank}, a child: {e!r}", flush=True)
        finally:
            os._exit(1)
    return pid


def expect(right, what):
    """Count and tell what is wrong."""
    global wrong
    if not right:
        wrong += 1
        print(f"rank {rank}: {what}", flush=True)


def hook(group, bucket):  # without annotations: torch takes none that are text
    """The heap's hook, which also shows the buckets."""
    buffer = bucket.buffer()
    future = collectives.torch.heap_hook(group, bucket)
    buckets[bucket.index()] = buffer
    return future


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Linear(512, 8))


def step(net, optimizer, samples):
    optimizer.zero_grad()
    net(samples).mean().backward()
    optimizer.step()


dist.init_process_group("collectives")
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
buckets: dict[int, torch.Tensor] = {}
net = DistributedDataParallel(model(), gradient_as_bucket_view=True)
net.register_comm_hook(None, hook)
optimizer = torch.optim.SGD(net.parameters(), 0.0625)
for _ in range(2):  # torch makes the buckets anew in the second step
    step(net, optimizer, torch.full((2, 64), float(rank)))
mine = [*(p.detach() for p in net.parameters()), *(p.grad for p in net.parameters()), *buckets.values()]
shared = sum(address_of(tensor) in heap.process_heap() for tensor in mine)
children, wrong = [], 0
for samples in DataLoader(Scribbling(mine), batch_size=2, num_workers=2, multiprocessing_context="fork"):
    before = [tensor.clone() for tensor in mine]
    expect(os.waitpid(child(mine), 0)[1] == 0, "a child failed before the step")
    changed = [i for i, (old, tensor) in enumerate(zip(before, mine, strict=True)) if not torch.equal(old, tensor)]
    expect(not changed, f"a child changed tensors {changed}")
    children.append(child(mine))
    step(net, optimizer, samples)
    others = [torch.empty_like(tensor) for tensor in dist.get_world_size() * [mine[0]]]
    dist.all_gather(others, mine[0].contiguous())
    differ = [int((other != mine[0]).sum()) for other in others]
    expect(not any(differ), f"parameters of ranks differ: {differ}")
    if len(children) > 3:
        expect(os.waitpid(children.pop(0), 0)[1] == 0, "a child failed beside a step")
for pid in children:
    expect(os.waitpid(pid, 0)[1] == 0, "a child failed beside the last steps")

alone = model()  # the mean over ranks of what each had
optimizer = torch.optim.SGD(alone.parameters(), 0.0625)
for number in range(steps + 2):
    first = 0 if number < 2 else 1
    step(alone, optimizer, torch.stack([torch.full((64,), float(r + k * first)) for r in range(size) for k in (0, 1)]))
pairs = zip(net.parameters(), alone.parameters(), strict=True)
expect(all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs), "the parameters are not those of one process")
expect(shared > 0, "nothing of it was on the heap: nothing was tried")
del mine, net
gc.collect()
print(f"attack: {steps} trials, {wrong} wrong ({shared} of the tensors on the heap)", flush=True)
dist.barrier()
dist.destroy_process_group()
