"""Ranks that are started by torch.multiprocessing and meet by a file or an address: no launcher, no MPI."""

import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from free_port import free_port

import collectives.torch  # noqa: F401  before the ranks are forked, too

SIZE = 2


def work(rank, how, method):
    dist.init_process_group("collectives", init_method=method, rank=rank, world_size=SIZE)
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    assert x.tolist() == [6.0] * 3
    if rank == 0:
        dist.send(x[::5][:1], 1)
    else:
        dist.recv(x[::5][:1], 0)  # contiguous for torch, though its stride is 5
        print(f"{how}, {method.partition(':')[0]}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def meet(rank, ports):
    """Make a default group, and one beside, with whoever has the other rank now, over one store after the other."""
    for port in ports:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("collectives", store=store, rank=rank, world_size=SIZE, timeout=timedelta(seconds=20))
        for group in (None, dist.new_group(range(SIZE))):
            x = torch.ones(1)
            dist.all_reduce(x, group=group)
            assert x == SIZE
        dist.destroy_process_group()


def replace():
    """Rank 0 goes on when rank 1 is another process: over a new store, then over the same one again."""
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    first, second = (store.port for store in stores)
    start = multiprocessing.get_context("spawn").Process
    stays = start(target=meet, args=(0, [first, second, second]))
    stays.start()
    for port in (first, second, second):
        comes = start(target=meet, args=(1, [port]))
        comes.start()
        comes.join()
        assert comes.exitcode == 0
    stays.join()
    assert stays.exitcode == 0
    print("rank 1 replaced twice", flush=True)


if __name__ == "__main__":
    for how in ("spawn", "fork"):
        port = free_port()
        with tempfile.TemporaryDirectory() as folder:
            for method in (f"file://{folder}/meeting", f"tcp://127.0.0.1:{port}"):
                multiprocessing.start_processes(work, (how, method), SIZE, start_method=how)
    replace()
    assert "mpi4py" not in sys.modules
