"""One of the ranks does not come: ``python torch_failures.py HOW[,HOW...] WAY...``; in all ways where none is named.

HOW is what the last rank does while the others call: ``late`` (it sleeps), ``dead`` (SIGKILL), ``stopped`` (SIGSTOP),
``raising`` (an exception ends its program), ``lingering`` (the same, but its process takes 3 s to end, after it has
closed its connections), ``interrupting`` (it sleeps, and rank 0 gets SIGINT). Ranks are forked from this process, which
has torch already, RANKS of them (three if not set), or they are those of an MPI program; then there is one HOW and one
WAY.

A line for each rank that got anything but the error for this HOW and WAY, which names the last rank, and the number of
trials at the end.
"""

from __future__ import annotations

import ctypes
import datetime
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist
import torch_models  # noqa: F401  # further ways
import torch_ways
from free_port import free_port

from collectives import CollectiveError

#: How many there are in an MPI program.
SIZES = [int(os.environ[name]) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") if name in os.environ]
SIZE = max(SIZES, default=1) if max(SIZES, default=1) > 1 else int(os.environ.get("RANKS", "3"))
LAST = SIZE - 1
#: The error that the others get.
KINDS = dict.fromkeys(("late", "stopped"), "CollectiveTimeout") | dict.fromkeys(
    ("dead", "raising", "lingering"), "PeerFailure"
)
#: Where C++ reads the future: what is before the error's own words, in a RuntimeError.
IN_CPP = {
    "ddp": "Cannot extract tensors from value: ",
    "collect_all_then": "Got the following error when running the callback: ",
}
IN_CPP |= {f"ddp_{name}": IN_CPP["ddp"] for name in (
    "find_unused", "static_graph", "bucket_view", "bf16", "builtin_allreduce", "accumulated", "buffers",
)}  # fmt: skip
#: Where several calls are under way: those that begin after the error are refused.
SEVERAL = ("then_calls", "wait_all", "collect_all", "ddp_find_unused")
REFUSED = "this communicator is broken since an earlier call failed ("
#: What waits by itself, and knows nothing of deaths.
BY_TIMEOUT = ("monitored_barrier", "new_group", "new_subgroups")
#: Where rank 0 waits for a rank that waits for the last one: its time may be over before that one gives up.
CHAINED = ("pipeline",)
NAMED = re.compile(rf"ranks? (\d, )*{LAST}\b", re.IGNORECASE)  # the last rank, alone or after others
LIMIT = 30.0  # seconds for a way, most of which take two


def play(rank: int, how: str, way: str, told: Path) -> None:
    """A rank's program, once the ranks have met."""
    timeout = datetime.timedelta(seconds=3.0 if how == "interrupting" else 1.0)
    step = torch_ways.ways[way]()
    (told / f"{rank}.pid").write_text(str(os.getpid()))
    dist.barrier()
    for group in list(dist.distributed_c10d._world.pg_map):
        group.set_timeout(timeout)
    dist.distributed_c10d.default_pg_timeout = timeout
    if rank == LAST:
        miss(how, told)
        return
    began = time.monotonic()
    try:
        found = outcome(step, told / f"{rank}.trace")
    except KeyboardInterrupt as e:  # which torch's C++ kept until it had ended the call with an error
        found = [type(e).__name__, "", True]
    (told / f"{rank}.new").write_text(json.dumps([time.monotonic() - began, *found]))
    (told / f"{rank}.new").rename(told / f"{rank}.json")
    wait_for(told)


def outcome(step: torch_ways.Step, trace: Path) -> list[object]:
    """What the others get: its name, its words, and whether it is what it should be."""
    try:
        step()
    except BaseException as e:
        failure = e if isinstance(e, CollectiveError) else dist.group.WORLD.failure
        told_of = isinstance(failure, CollectiveError) and str(failure).partition("\n")[0] in str(e)
        trace.write_text(traceback.format_exc())
        return [type(e).__name__, str(e), isinstance(e, RuntimeError) and told_of]
    return ["nothing", "", False]


def wait_for(told: Path, limit: float = LIMIT) -> bool:
    """Until all but the last rank have told what they got."""
    end = time.monotonic() + limit
    while len(list(told.glob("*.json"))) < SIZE - 1:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def miss(how: str, told: Path) -> None:
    """Not to come."""
    if how == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how in ("raising", "lingering"):
        if how == "lingering":
            libc = ctypes.CDLL(None)
            for _ in range(3):
                libc.on_exit(libc.sleep, None)  # of as many seconds as the exit code, which is 1, after Python's end
        raise ValueError("the program's own")
    elif how == "interrupting":
        time.sleep(0.5)
        os.kill(int((told / "0.pid").read_text()), signal.SIGINT)
    wait_for(told)


def wrong_of(how: str, way: str, file: Path) -> Iterator[str]:
    """What is wrong with what a rank has told."""
    seconds, kind, words, good = json.loads(file.read_text())
    if os.environ.get("SHOW"):
        print(f"  {how} {way} {file.stem}: {kind} after {seconds:.1f} s: {words}", flush=True)
    interrupted = how == "interrupting" and ("KeyboardInterrupt" in kind + words or "rank 0" in words)
    late = way in CHAINED and int(file.stem) < LAST - 1 and kind == "CollectiveTimeout"
    right = good and NAMED.search(words) and (how == "interrupting" or late or is_expected(how, way, kind, words))
    if not interrupted and not right or seconds > 6:
        yield f"{file.stem}: {kind} after {seconds:.1f} s: {words}"


def is_expected(how: str, way: str, kind: str, words: str) -> bool:
    """Whether an error's kind and first words are those that this way has for it."""
    wanted = "CollectiveTimeout" if way in BY_TIMEOUT else KINDS[how]
    if way in SEVERAL and kind == "CollectiveError":
        return words.startswith(f"{REFUSED}{wanted}: ")
    if way in IN_CPP:
        return kind == "RuntimeError" and words.startswith(f"{IN_CPP[way]}{wanted}: ")
    return kind == wanted


def forked(rank: int, how: str, way: str, port: int, told: Path) -> int:
    """The process of a rank."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        signal.alarm(int(2 * LIMIT))  # whatever happens to the process that forked it
        dist.init_process_group(
            "collectives", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=SIZE,
            timeout=datetime.timedelta(minutes=1),
        )  # fmt: skip
        play(rank, how, way, told)
        os._exit(0)
    return pid


def trial(how: str, way: str) -> list[str]:
    """What is wrong with a way."""
    told = Path(tempfile.mkdtemp(dir=os.environ["SCRATCH"]))
    port = free_port()
    errors = os.dup(2)
    with open(told / "stderr", "wb") as file:
        os.dup2(file.fileno(), 2)
    children = [forked(rank, how, way, port, told) for rank in range(SIZE)]
    os.dup2(errors, 2)
    os.close(errors)
    ended = wait_for(told)
    wrong = [] if ended else [f"{rank}: no word" for rank in range(LAST) if not (told / f"{rank}.json").exists()]
    for rank, pid in enumerate(children):
        if rank == LAST or not ended:
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if rank != LAST and ended and status:
            wrong.append(f"{rank}: status {os.waitstatus_to_exitcode(status)}")
    for file in sorted(told.glob("*.json")):
        wrong += wrong_of(how, way, file)
    if wrong:
        wrong.append((told / "stderr").read_text(errors="replace")[-2000:])
    shutil.rmtree(told)
    return wrong


def over_mpi(how: str, way: str) -> None:
    """One way, on the ranks of an MPI program."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # how MPICH's launcher tells survivors of a death
    dist.init_process_group("collectives")
    told = [tempfile.mkdtemp()]
    dist.broadcast_object_list(told)
    folder, rank = Path(told[0]), dist.get_rank()
    os.environ["SCRATCH"] = told[0]
    play(rank, how, way, folder)
    if rank == 0:
        wrong = [line for file in folder.glob("*.json") for line in wrong_of(how, way, file)]
        print(*wrong, f"attack: 1 trials, {min(1, len(wrong))} wrong", sep="\n", flush=True)
    time.sleep(1)  # a launcher may end all ranks when the first one has ended
    os._exit(0)


def main(hows: str, *names: str) -> None:
    """All ways, one after the other."""
    made, bad = 0, 0
    os.environ["SCRATCH"] = scratch = tempfile.mkdtemp()  # which a forked rank that ends does not remove
    for how, name in itertools.product(hows.split(","), names or torch_ways.ways):
        wrong = trial(how, name)
        made, bad = made + 1, bad + bool(wrong)
        for line in wrong:
            print(f"{how} {name}, rank {line}", flush=True)
    shutil.rmtree(scratch)
    print(f"attack: {made} trials, {bad} wrong", flush=True)


if __name__ == "__main__":
    (over_mpi if max(SIZES, default=1) > 1 else main)(*sys.argv[1:])
