"""Tensors that claim to be on a GPU, in memory of the stand-in for NVIDIA's driver, through the backend over MPI.

torch makes no CUDA tensors where there is no GPU. So these are tensors of the CPU that name another address and device,
and torch's stream and event are replaced by those of the stand-in.
"""

import types

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from stand_in import LAUNCHES, Array, driver, use_kernels
from values import refused

from collectives.communicator import device_peers
from collectives.torch import devices, failed

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
GPU = torch.device("cuda", 0)
STREAM = driver.stream(1)


class OnGPU(torch.Tensor):
    """A tensor with the values of ``array``, which is on the stand-in's device."""

    is_cpu, is_cuda, device = False, True, GPU

    def data_ptr(self):
        return self.array.address

    def detach(self):
        return self


def on_gpu(values):
    made = torch.from_numpy(np.array(values)).as_subclass(OnGPU)
    made.array = Array(np.array(values), STREAM)
    return made


class Event:
    """torch's event, which says who waits for it."""

    waits = 0

    def record(self, stream):
        assert stream.cuda_stream == STREAM

    def wait(self, stream):
        Event.waits += stream.cuda_stream == STREAM

    def query(self):
        return False


class Future(failed.Future):
    """torch's future for values on a GPU, which torch makes with CUDA only."""

    def __init__(self, devices):
        super().__init__()
        assert devices == [GPU]


def same(tensor, right):
    found = tensor.array.get()
    assert np.array_equal(found, np.asarray(right, found.dtype)), (found, right)


def calls(n):
    """Each collective once, on blocks of n elements."""
    mine = np.arange(n, dtype="f4") + RANK
    x = on_gpu(mine)
    dist.all_reduce(x)
    same(x, SIZE * np.arange(n) + SIZE * (SIZE - 1) / 2)
    x = on_gpu(mine)
    before = Event.waits
    work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    assert Event.waits == before + 1
    assert not work.is_completed()
    assert work.get_future().done()  # as NCCL's; so callbacks make their calls where they are attached
    assert work.get_future().wait()[0] is x
    same(x, np.arange(n) + SIZE - 1)
    x = on_gpu(mine)
    dist.broadcast(x, src=SIZE - 1)
    same(x, np.arange(n) + SIZE - 1)
    x, y = on_gpu(mine), on_gpu(np.zeros(n * SIZE, "f4"))
    dist.all_gather_into_tensor(y, x)
    same(y, np.concatenate([np.arange(n) + r for r in range(SIZE)]))
    dist.reduce_scatter_tensor(x, y)
    same(x, SIZE * (np.arange(n) + RANK))
    dist.reduce(x, dst=0)
    same(x, SIZE * (SIZE * np.arange(n) + SIZE * (SIZE - 1) / 2) if RANK == 0 else SIZE * (np.arange(n) + RANK))
    half = on_gpu(np.ones(n, "f2"))
    dist.all_reduce(half, op=dist.ReduceOp.AVG)
    same(half, np.ones(n))


def main():
    use_kernels()
    device_peers.LEAST = 1 << 14
    devices.SERVED.append("cuda")
    devices.stream_of = lambda gpu: STREAM
    devices.failed = types.SimpleNamespace(Future=Future)
    torch.cuda.current_stream = lambda gpu=None: types.SimpleNamespace(cuda_stream=STREAM)
    torch.cuda.Event = Event
    torch.cuda.get_device_capability = lambda gpu=None: (8, 0)
    dist.init_process_group("cpu:collectives,cuda:collectives")
    before = driver.count(LAUNCHES)
    calls(100)  # through the host
    assert driver.count(LAUNCHES) == before
    calls(20_000)  # peers
    assert driver.count(LAUNCHES) > before
    on_cpu = torch.ones(3)
    dist.all_reduce(on_cpu)
    assert (on_cpu == SIZE).all()
    x = on_gpu(np.ones(10, "f4"))
    refused(TypeError, "this call takes tensors on the CPU only", lambda: dist.send(x, dst=(RANK + 1) % SIZE))
    refused(ValueError, "several devices", lambda: dist.all_gather_into_tensor(torch.ones(10 * SIZE), x))
    print(f"rank {RANK}: all calls on GPU tensors are right", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
