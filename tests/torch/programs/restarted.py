"""Ranks that torchrun starts anew: ``torchrun --nproc-per-node 2 --max-restarts 3 restarted.py``.

Of the first two attempts rank 1 leaves in the middle, once with an exit code and once killed.
"""

import os
import signal

import torch
import torch.distributed as dist

import collectives.torch  # noqa: F401

ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

dist.init_process_group("collectives")
x = torch.ones(3)
dist.all_reduce(x)
if ATTEMPT < 2 and dist.get_rank() == 1:
    os._exit(3) if ATTEMPT == 0 else os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(x)
dist.all_reduce(x, async_op=True).wait()
if dist.get_rank() == 0:
    print(f"attempt {ATTEMPT}: {x.tolist()}", flush=True)
dist.destroy_process_group()
