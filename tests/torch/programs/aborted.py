"""Groups that one rank aborts while it is in a call: ``mpiexec -n 2 python aborted.py``, or by ``torchrun``.

Each rank prints a line for each kind of call: its rank, the kind, and whether the call ended soon by the error. The
group of all ranks works to the end.
"""

import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from ranks import RANK

import collectives.torch
from collectives.diagnostics.diagnosis import Answer

WORDS = "the process group has been aborted"
CALLS = {
    "blocking": lambda group: dist.all_reduce(torch.ones(4), group=group),
    "scattered": lambda group: dist.all_reduce(torch.ones(8)[::2], group=group),
    "work": lambda group: dist.all_reduce(torch.ones(4), group=group, async_op=True).wait(),
    "future": lambda group: dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future().wait(),
    "message": lambda group: group.recv([torch.ones(4)], 1, 0).wait(),
    "any": lambda group: group.recv_anysource([torch.ones(4)], 0).wait(),
}
RECEIVES = {
    "": lambda group: group.recv([torch.ones(4)], 0, 0).wait(),
    " any": lambda group: group.recv_anysource([torch.ones(4)], 0).wait(),
}


def send(group):
    group.send([torch.ones(4)], 0, 0).wait()


def tell(*words):
    """Print in one piece: torchrun's ranks write to one pipe, without a buffer."""
    sys.stdout.write(" ".join(map(str, (RANK, *words))) + "\n")
    sys.stdout.flush()


def ends_by_the_error(call, group):
    began = time.monotonic()
    try:
        call(group)
    except collectives.CollectiveError as e:
        return WORDS in str(e) and time.monotonic() - began < 5
    return False


def aborted(name, call):
    group, found = dist.new_group(timeout=timedelta(seconds=20)), []
    dist.barrier(group=group)
    if RANK == 0:
        thread = threading.Thread(target=lambda: found.append(ends_by_the_error(call, group)))
        thread.start()
        time.sleep(0.1)
        group.abort()
        thread.join()
        dist.barrier()
    else:
        dist.barrier()  # the other calls are shorter than a look at the other ranks
        other = send if name in ("message", "any") else CALLS["work"]
        found.append(ends_by_the_error(other, group))
    tell(name, *found)
    dist.barrier()


def awaited(name, receive, late):
    """A rank waits for a message of one that aborts the group, or begins to when it has heard of that."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    dist.barrier(group=group)
    if RANK == 0:
        work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
        time.sleep(0.3)
        group.abort()
        found = ends_by_the_error(lambda group: work.wait(), group)
        if late:
            dist.barrier()
    else:
        if late:
            dist.barrier()
        found = ends_by_the_error(receive, group)
    tell(name, found)
    dist.barrier()


def told(name, receive):
    """Gloo may miss that a rank has closed its connections. Here none has: only the news can end the wait."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    dist.barrier(group=group)
    if RANK == 1:
        news = Answer(0, place="a.py:1", failure=("CollectiveError", WORDS))
        timer = threading.Timer(0.2, group.engine.context.hear, [news])
        timer.start()
        found = ends_by_the_error(receive, group)
        tell(name, found)
        timer.join()
    dist.barrier()


def idle():
    """Calls that are complete are none under way: the others do not hear of the end of the group."""
    group = dist.new_group()
    dist.all_reduce(torch.ones(4), group=group, async_op=True).wait()
    dist.barrier(group=group)
    if RANK == 0:
        group.abort()
    else:
        time.sleep(0.1)
        tell("idle", group.engine.context.broken)
    dist.barrier()


dist.init_process_group("collectives", timeout=timedelta(seconds=20))
for name, call in CALLS.items():
    aborted(name, call)
for which, receive in RECEIVES.items():
    awaited(f"awaited{which}", receive, late=False)
    awaited(f"later{which}", receive, late=True)
    told(f"told{which}", receive)
idle()
os._exit(0)  # MPI_Finalize is not for a process with a broken communicator
