"""Measures messages between pairs of ranks: latency of one message, bandwidth of many, in one direction or both."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from .operands import difference, operand
from .timing import clock_overhead
from .workloads import page_aligned

__all__ = ["Pair"]

TAG, ACK = 1, 2


class Pair:
    """``slots`` buffers of ``nbytes`` bytes, used in turn, and the measurements with them.

    The first half of the ranks of ``comm`` are the first ranks of pairs, whose others are as many ranks further.
    """

    def __init__(self, comm: Any, nbytes: int, dtype: Any, slots: int = 1):
        half = comm.size // 2
        self.comm, self.first = comm, comm.rank < half
        self.peer = comm.rank + half if self.first else comm.rank - half
        dtype = np.dtype(dtype)
        self.count = nbytes // dtype.itemsize
        self.sends = [page_aligned(self.count, dtype) for _ in range(slots)]
        self.recvs = [page_aligned(self.count, dtype) for _ in range(slots)]
        self.fill()

    def fill(self) -> None:
        """Fill the send buffers with this rank's data, and the receive buffers with values that no message has."""
        for number, (send, recv) in enumerate(zip(self.sends, self.recvs, strict=True)):
            send[:] = operand(send.dtype, self.comm.rank, self.comm.size, 0, self.count, number)
            wanted = operand(send.dtype, self.peer, self.comm.size, 0, self.count, number)
            np.invert(wanted.view(np.uint8), out=recv.view(np.uint8))

    def difference(self) -> str | None:
        """A text with the first wrong element that this rank received, or None."""
        for number, recv in enumerate(self.recvs):
            found = difference(recv, operand(recv.dtype, self.peer, self.comm.size, 0, self.count, number))
            if found is not None:
                return f"rank {self.comm.rank}: element {found[0]} is {found[1]}"
        return None

    def latency(self, iterations: int, warmup: int) -> np.ndarray:
        """Seconds of one way, float64: half of each round trip, which the pair's first rank times.

        The other rank answers, and is sent the times, so that both return them. Uses MPI_Send and MPI_Recv in turn.
        Reading the clock is subtracted, as in :func:`.timing.sample`.
        """
        send, recv, peer = self.comm.Send, self.comm.Recv, self.peer
        now, slots = time.perf_counter_ns, len(self.sends)
        times = []
        self.comm.Barrier()
        for i in range(warmup + iterations):
            there, back = self.sends[i % slots], self.recvs[i % slots]
            if self.first:
                begin = now()
                send(there, peer, TAG)
                recv(back, peer, TAG)
                times.append(now() - begin)
            else:
                recv(back, peer, TAG)
                send(there, peer, TAG)
        if not self.first:
            seconds = np.empty(iterations)
            recv(seconds, peer, TAG)
            return seconds
        seconds = np.maximum(np.array(times[warmup:], np.float64) - clock_overhead(), 0) * 0.5e-9
        send(seconds, peer, TAG)
        return seconds

    def windows(self, iterations: int, warmup: int, window: int, both_ways: bool = False) -> np.ndarray:
        """Seconds of each window of messages from the first rank to the other one, or in both directions.

        The messages of a window are under way together (MPI_Isend, MPI_Irecv); then the window is acknowledged. The
        buffers follow one another across windows.
        """
        from mpi4py import MPI

        slots, ack, peer = len(self.sends), np.zeros(1, np.int8), self.peer
        posts = []
        if both_ways or not self.first:
            posts.append((self.comm.Irecv, self.recvs))
        if both_ways or self.first:
            posts.append((self.comm.Isend, self.sends))
        self.comm.Barrier()
        ends = []
        for i in range(warmup + iterations):
            if i >= warmup:
                ends.append(time.perf_counter())
            turn = range(i * window, (i + 1) * window)
            MPI.Request.Waitall([post(buffers[j % slots], peer, TAG) for post, buffers in posts for j in turn])
            if self.first:
                self.comm.Recv(ack, peer, ACK)
            else:
                self.comm.Send(ack, peer, ACK)
        return np.diff([*ends, time.perf_counter()])
