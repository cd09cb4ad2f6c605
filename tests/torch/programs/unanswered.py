"""A receive that nobody answers: ``torchrun --nproc-per-node 2 unanswered.py`` prints how long its end takes."""

import atexit
import time

ended: list[float] = []
atexit.register(lambda: print(f"the end took {time.monotonic() - ended[0]:.1f} s", flush=True))  # called last

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import collectives.torch  # noqa: E402, F401

dist.init_process_group("collectives")
work = dist.irecv(torch.zeros(3), 1 - dist.get_rank())
dist.barrier()
ended.append(time.monotonic())
