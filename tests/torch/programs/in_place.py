"""All-gathers in place and then of other memory, on ranks that take themselves for those of several hosts.

Argument 1 names the host of each rank. The last line is "N passed".
"""

import itertools
import sys

import torch
import torch.distributed as dist
from ranks import RANK, SIZE, run

import collectives.torch  # noqa: F401
from collectives.system import machine

machine.boot_id = lambda: sys.argv[1].split(",")[RANK]
LENGTHS = (3, 20_000)


def test_a_block_in_place_and_then_elsewhere():
    """Each call gathers the block that it is given, whatever calls of the same length there were before."""
    for n, asynchronous in itertools.product(LENGTHS, (False, True)):
        whole = torch.zeros(SIZE, n)
        for turn in range(1, 5):
            block = whole[RANK] if turn in (1, 3) else torch.empty(n)
            block.fill_(10 * turn + RANK)
            work = dist.all_gather_single(whole, block, async_op=asynchronous)
            if asynchronous:
                work.wait()
            assert whole[:, n - 1].tolist() == [10 * turn + rank for rank in range(SIZE)], (n, asynchronous, turn)


if __name__ == "__main__":
    dist.init_process_group("collectives")
    run(globals())
