"""Ranks that are started by torch.multiprocessing and meet by a file or an address: no launcher, no MPI."""

import socket
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import collectives.torch  # noqa: F401  before the ranks are forked, too

SIZE = 2


def work(rank, how, method):
    dist.init_process_group("collectives", init_method=method, rank=rank, world_size=SIZE)
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    assert x.tolist() == [6.0] * 3
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
        print(f"{how}, {method.partition(':')[0]}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for how in ("spawn", "fork"):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            for method in (f"file://{folder}/meeting", f"tcp://127.0.0.1:{port}"):
                multiprocessing.start_processes(work, (how, method), SIZE, start_method=how)
    assert "mpi4py" not in sys.modules
