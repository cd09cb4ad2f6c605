"""Run on ranks: each compression exchanges two buckets at a time, and does what ranks in lockstep do.

Ends with "ok" on rank 0 when all ranks have the same bits and the numbers that lockstep gives, also after a state was
saved and restored.
"""

import sys
import traceback

import numpy as np
from lockstep import World, bucket, exchange
from mpi4py import MPI

import collectives
from collectives import train

COMM = collectives.Communicator(MPI.COMM_WORLD)
SHAPES = [[(60, 50), (7,), (3, 2, 5)], [(1501,), (40, 33)]]
KINDS = {
    "float16": (train.Float16Wire, 1e-3),
    "bfloat16": (train.BFloat16Wire, 8e-3),
    "int8": (train.Int8, 0.0),
    "topk": (lambda: train.TopK(0.05), 0.0),
    "dense topk": (lambda: train.TopK(1.0), 1e-6),
    "powersgd": (lambda: train.PowerSGD(3, start_after=1), 1e-4),
}


def gradients(step, index, dtype):
    count = sum(int(np.prod(shape)) for shape in SHAPES[index])
    return np.random.default_rng([step, index]).standard_normal((COMM.size, count)).astype(dtype)


def in_turn(generators):
    """Advance several exchanges, always in the same order."""
    under_way = [(generator, next(generator)) for generator in generators]
    while under_way:
        generator, request = under_way.pop(0)
        request.Wait()
        following = next(generator, None)
        if following is not None:
            under_way.append((generator, following))


def step_on_ranks(compression, step, dtype, by_heap):
    """Results of both buckets on this rank."""
    buckets = []
    for index, shapes in enumerate(SHAPES):
        made = bucket(gradients(step, index, dtype)[COMM.rank], shapes, index)
        if by_heap:
            shared = COMM.empty(made.grads.shape, dtype)
            shared[...] = made.grads
            made.grads = shared
        buckets.append(made)
    in_turn([compression.exchange(b, COMM) for b in buckets])
    return [b.grads for b in buckets]


def check(kind, dtype):
    make, tolerance = KINDS[kind]
    ours, other, worlds = make(), make(), [World(COMM.size) for _ in SHAPES]
    simulated = [[make() for _ in range(COMM.size)] for _ in SHAPES]
    for step in range(5):
        if step == 3:  # go on with another object from a saved state
            other.load_state_dict(ours.state_dict())
            ours = other
        results = step_on_ranks(ours, step, dtype, by_heap=step % 2 == 1)
        for index, result in enumerate(results):
            everyone = COMM.allgather(result.tobytes())
            assert all(bits == everyone[0] for bits in everyone), f"{kind}: bits differ in step {step}"
            expected = exchange(
                simulated[index], gradients(step, index, dtype), SHAPES[index], worlds[index], index
            )[COMM.rank]  # fmt: skip
            np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance, err_msg=kind)
    assert ours.sent > 0


def main():
    for kind in KINDS:
        for dtype in (np.float32, np.float64):
            check(kind, dtype)
    COMM.Barrier()
    if COMM.rank == 0:
        print("ok", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
