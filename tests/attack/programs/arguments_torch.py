"""Elements that MPI has no datatype for, moved by MPI's own algorithms; and tensors that are not what memory says."""

import ml_dtypes
import numpy as np
import torch
from mpi4py import MPI

import collectives

COMM = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size


def moves_and_refuses(full):
    """Arrays of bfloat16, made by `full`: what needs no arithmetic runs as bytes, the rest is refused in words."""
    mine, all_ = full(4, RANK + 1), full(4 * SIZE, 0)
    COMM.Allgather(mine, all_, algorithm="mpi")
    yield "allgather", [float(x) for x in all_] == [q + 1 for q in range(SIZE) for _ in range(4)]
    COMM.Ibcast(mine, SIZE - 1, algorithm="mpi").Wait()
    yield "ibcast", [float(x) for x in mine] == [SIZE] * 4
    mine[:] = RANK
    COMM.Bcast(mine, SIZE - 1, algorithm="mpi")
    yield "bcast", [float(x) for x in mine] == [SIZE - 1] * 4
    yield "allreduce", refused(TypeError, "bfloat16", COMM.Allreduce, MPI.IN_PLACE, mine, algorithm="mpi")


def lazy():
    """Views whose sign or conjugate is only noted."""
    conjugate = torch.full((4,), RANK + 1j).conj()
    for view, cure in ((conjugate, "resolve_conj"), (torch._neg_view(torch.full((4,), RANK + 0.0)), "resolve_neg")):
        yield cure, refused(ValueError, cure, COMM.Bcast, view)
        yield cure, refused(ValueError, cure, COMM.Ibcast, view)
        yield cure, refused(ValueError, cure, COMM.Bcast, view, algorithm="mpi")
        yield cure, refused(ValueError, cure, COMM.Allreduce, MPI.IN_PLACE, view)
        yield cure, refused(ValueError, cure, COMM.Allgather, view, torch.zeros(4 * SIZE, dtype=view.dtype))
        whole = getattr(view, cure)()
        COMM.Bcast(whole, SIZE - 1)
        yield (
            cure,
            torch.equal(whole, torch.full((4,), SIZE - 1 - 1j) if view.is_complex() else torch.full((4,), 1.0 - SIZE)),
        )


def refused(error, words, call, *arguments, **options):
    """Whether a call raises that error in these words."""
    try:
        call(*arguments, **options)
    except error as e:
        return words in str(e)
    return False


def main():
    found = [
        *moves_and_refuses(lambda n, value: np.full(n, value, ml_dtypes.bfloat16)),
        *moves_and_refuses(lambda n, value: torch.full((n,), float(value), dtype=torch.bfloat16)),
        *lazy(),
    ]
    wrong = [what for what, good in found if not good]
    print(f"attack: {len(found)} trials, {len(wrong)} wrong", wrong, flush=True)


main()
