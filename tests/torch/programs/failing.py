"""Calls that cannot end: ``torchrun --nproc-per-node 3 failing.py CASE RESULTS``.

A line of JSON for each rank that got an error: rank, seconds, the error's type and words.
"""

import datetime
import json
import logging
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import collectives.torch  # noqa: F401

CASE, RESULTS = sys.argv[1:]
dist.init_process_group("collectives")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
LAST = SIZE - 1
x, HALF = torch.ones(1000), datetime.timedelta(seconds=0.5)


def leave():
    """End this process when the other ranks have their errors."""
    while not os.path.exists(RESULTS) or len(open(RESULTS).readlines()) < LAST:
        time.sleep(0.05)
    os._exit(0)


def poll(work):
    while not work.is_completed():
        time.sleep(0.01)
    work.wait()


def call():
    if CASE == "timeout":
        dist.all_reduce(x)
    elif CASE == "asynchronous":
        dist.all_reduce(x, async_op=True).wait()
    elif CASE == "future":
        dist.all_reduce(x, async_op=True).get_future().wait()
    elif CASE == "of_the_call":
        dist.barrier(timeout=HALF)
    elif CASE == "of_the_call_sparse":
        dist.group.WORLD.allreduce(x.to_sparse(), timeout=HALF)
    elif CASE == "destroyed":
        logged, group = [], dist.group.WORLD
        logging.getLogger("collectives").addFilter(lambda record: logged.append(record.getMessage()))
        dist.all_reduce(x, async_op=True)
        dist.destroy_process_group()
        raise RuntimeError(f"{dist.is_initialized()}, {type(group.failure).__name__}, {logged[0]}")
    elif CASE == "message":
        dist.recv(x, LAST)
    elif CASE == "death_in_a_message":
        dist.recv(long, LAST)
    elif CASE == "death_of_all_senders":
        dist.recv(x)
    elif CASE == "death_polled":
        poll(dist.all_reduce(x, async_op=True))
    elif CASE == "death_of_a_sender_polled":
        poll(dist.irecv(x, LAST))
    elif CASE == "monitored":
        dist.monitored_barrier(wait_all_ranks=True)
    elif CASE == "splits":
        dist.all_to_all_single(torch.empty(1000), x, *[[1000 // SIZE] * SIZE] * 2 if RANK == LAST else [])
    elif CASE in ("mismatch", "death"):
        dist.all_reduce(x[: len(x) - RANK] if CASE == "mismatch" else x)


dist.all_reduce(x)
dist.group.WORLD.set_timeout(datetime.timedelta(seconds=20 if "death_" in CASE or "of_the_call" in CASE else 1))
if CASE == "death_in_a_message":
    long = torch.ones(1 << 26)
    work = dist.isend(long, 0) if RANK == LAST else None
    dist.barrier()
began = time.monotonic()
if RANK == LAST and "death" in CASE:
    time.sleep(0.03)  # part of a long message has gone
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGKILL)
if RANK == LAST and CASE not in ("mismatch", "splits"):
    if CASE == "monitored":
        time.sleep(4)
    else:
        threading.Thread(target=leave, daemon=True).start()
        time.sleep(30)  # where it is instead
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, when another rank has ended
    try:
        call()
    except Exception as e:
        with open(RESULTS, "a") as file:
            print(json.dumps([RANK, time.monotonic() - began, type(e).__name__, str(e)]), file=file)
if CASE == "monitored":
    time.sleep(1.5 if RANK == LAST else 4)
    dist.all_reduce(x)
time.sleep(1)  # for the others to ask
os._exit(0)
