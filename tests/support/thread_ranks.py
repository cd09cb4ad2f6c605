"""Ranks of one process, for tests of loaders: each is a thread with a communicator that can gather."""

import threading
from types import SimpleNamespace


def on_ranks(size, work, ranks=None):
    """``work(comm)`` of each rank, or ``work(comm, ranks[r])``: results by rank, or the exceptions it raised."""
    barrier, table, results = threading.Barrier(size, timeout=20), [None] * size, [None] * size

    def communicator(rank):
        def allgather(value):
            table[rank] = value
            barrier.wait()
            every = list(table)
            barrier.wait()
            return every

        return SimpleNamespace(rank=rank, size=size, allgather=allgather)

    def run(rank):
        try:
            results[rank] = work(communicator(rank), *([] if ranks is None else [ranks[rank]]))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
