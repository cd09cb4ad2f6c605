"""Messages that no rank sends, at the socket where ranks answer each other: garbage, halves, forgeries, floods.

They come from a child of rank 0, a process of the same user that is no rank, and from rank 1 itself. Meanwhile and
afterwards rank 0 answers rank 1's questions, does not grow, and rests when the flood is over.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

import collectives
from collectives.diagnostics import peer_queries

world = MPI.COMM_WORLD
rank = world.rank
SECONDS = 0.6
STRANGER = """
import socket, sys, time
at, end, messages = bytes.fromhex(sys.argv[1]), time.monotonic() + float(sys.argv[2]), eval(sys.argv[3])
socks = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(200)]
for sock in socks:
    sock.bind("")
sent = 0
while time.monotonic() < end:
    for i, message in enumerate(messages):
        try:
            socks[(sent + i) % len(socks)].sendto(message, socket.MSG_DONTWAIT, at)
        except OSError:
            time.sleep(0.0001)
    sent += len(messages)
"""


def garbage(identity):
    """Messages that mean nothing, and some that nearly do."""
    question = json.dumps({"communicator": identity}).encode()
    forged = peer_queries.pack(peer_queries.Answer(1, None, 0, "here", ("PeerFailure", "forged")))
    failed = json.dumps({"communicator": identity, "failed": json.loads(forged)}).encode()
    return [
        b"", b"\0", b"x" * 100_000, b"[" * 8000, b'{"communicator": ' * 400, question[:-1], failed[: len(failed) // 2],
        question + question, b"\xff\xfe" + question, b'{"communicator": null}', b'{"communicator": {"a": 1}}', b"[]",
        b'{"communicator": "nobody"}', b"1e999999", b"9" * 8000,
        json.dumps({"communicator": identity, "failed": 1}).encode(),
        json.dumps({"communicator": identity, "failed": [1, [], {}, None, 5, 6, 7]}).encode(), forged, question, failed,
    ]  # fmt: skip


def of_a_rank(identity):
    """What rank 1 itself may send: all but word that it failed, which rank 0 would believe."""
    return garbage(identity)[:-1]


def flood(at, messages, end):
    """From many sockets of this process, as fast as they are taken."""
    with contextlib.ExitStack() as opened:
        socks = [opened.enter_context(peer_queries._open()) for _ in range(200)]
        sent = 0
        while time.monotonic() < end:
            for message in messages:
                with contextlib.suppress(OSError):
                    socks[sent % len(socks)].sendto(message, socket.MSG_DONTWAIT, at)
                sent += 1
            time.sleep(0.0002)


def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def state():
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def asked(context, other):
    """What another rank says, and the seconds until it does."""
    begin = time.monotonic()
    with peer_queries.PeerQuery(context) as asking:
        (answer,) = asking.settle([other], again=False, seconds=2)
    return answer, time.monotonic() - begin


comm = collectives.Communicator(world)
comm.Barrier()
context = comm._context
wrong, trials = [], 0
addresses = world.allgather(peer_queries.address())
for source in ("a stranger", "rank 1"):
    world.Barrier()
    before, size = state(), memory()
    end = time.monotonic() + SECONDS
    if rank == 0 and source == "a stranger":
        words = addresses[0].socket.hex(), str(SECONDS), repr(garbage(context.identity))
        subprocess.Popen([sys.executable, "-c", STRANGER, *words])
    if rank == 1 and source == "rank 1":
        thread = threading.Thread(target=flood, args=(addresses[0].socket, of_a_rank(context.identity), end))
        thread.start()
    while rank == 1 and time.monotonic() < end:
        answer, seconds = asked(context, 0)
        trials += 1
        if answer.silent or answer.failure or seconds > 8:
            wrong.append((source, str(answer), seconds))
    while rank == 0 and time.monotonic() < end:  # a wait that looks at what comes to the asker's own socket, too
        answer, seconds = asked(context, 1)
        trials += 1
        wrong += [(source, "rank 0 asks", str(answer))] if answer.silent or answer.failure else []
    if rank == 1 and source == "rank 1":
        thread.join()
    world.Barrier()
    time.sleep(0.6)  # the queue is taken
    used = time.process_time()
    time.sleep(0.5)
    used = time.process_time() - used
    if rank == 0:
        trials += 3
        wrong += [(source, "it does not rest", used)] if used > 0.2 else []
        wrong += [(source, "it grew", memory() - size)] if memory() > size + (16 << 20) else []
        wrong += [(source, "it keeps", state(), before)] if state() != before else []
    comm.Allreduce(np.ones(1000), found := np.empty(1000))  # nobody believes that anybody has failed
    wrong += [(source, "a sum")] if (found != comm.size).any() or context.heard else []
print(f"attack: {trials} trials, {len(wrong)} wrong", *wrong[:5], flush=True)
