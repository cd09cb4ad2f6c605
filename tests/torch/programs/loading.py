"""DataLoader's workers, forked, in a program whose NumPy arrays lie on the heap: every batch is right, and collectives
go on beside them."""

import sys

import numpy as np
import torch
import torch.distributed as dist

import collectives.torch
from collectives.system import heap


class Rows(torch.utils.data.Dataset):
    """Rows of an array on the heap, worked on in arrays of many lengths."""

    def __init__(self, rows: int):
        self.rows = np.arange(rows * 1000.0).reshape(rows, 1000)
        assert self.rows.ctypes.data in heap.process_heap()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[int, np.ndarray]:
        made = [np.full(1000 * (i % 7 + 1), float(i + k)) for k in range(4)]
        assert all((array == i + k).all() for k, array in enumerate(made))
        return i, self.rows[i] + made[0][:1000]


def main() -> None:
    collectives.share_arrays()
    dist.init_process_group("collectives")
    data, wrong, trials = Rows(400), 0, 0
    for _ in range(2):
        for numbers, batch in torch.utils.data.DataLoader(data, 8, num_workers=2, multiprocessing_context="fork"):
            beside = np.full(20_000, 3.0)
            for i, row in zip(numbers.tolist(), batch.numpy(), strict=True):
                wrong += bool((row != np.arange(i * 1000.0, i * 1000 + 1000) + i).any())
                trials += 1
            dist.all_reduce(torch.from_numpy(beside))
            wrong += bool((beside != 3 * dist.get_world_size()).any())
    sys.stdout.write(f"{trials} rows, {wrong} wrong\n")  # torchrun's ranks are unbuffered: print writes the end apart
    dist.destroy_process_group()
    sys.exit(int(wrong > 0))


main()
