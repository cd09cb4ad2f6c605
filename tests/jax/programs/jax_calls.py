"""The functions of collectives.jax against NumPy, and the order of calls in programs, on all ranks.

Run on any number of ranks: ``mpiexec -n 4 python -m pytest tests/jax/programs/jax_calls.py``.
"""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import collectives
import collectives.jax as cj

jax.config.update("jax_enable_x64", True)
COMM = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
TYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128",
]  # fmt: skip


def of(rank, shape=(3,), dtype=np.float64):
    """What a rank passes."""
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5 + rank).astype(dtype)


def all_of(shape=(3,), dtype=np.float64):
    return np.stack([of(rank, shape, dtype) for rank in range(SIZE)])


def check(got, expected):
    assert isinstance(got, jax.Array)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert np.array_equal(np.asarray(got), expected)


@pytest.mark.parametrize("name", TYPES)
def test_types(name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    op = MPI.LOR if name == "bool" else MPI.SUM
    total = all_of(dtype=dtype).any(0) if name == "bool" else sum(of(rank) for rank in range(SIZE)).astype(dtype)
    check(cj.allreduce(of(RANK, dtype=dtype), op, comm=COMM), total)
    check(cj.allgather(of(RANK, dtype=dtype), comm=COMM), all_of(dtype=dtype))


@pytest.mark.parametrize(
    ("op", "fold"),
    [
        ("sum", np.add), (MPI.SUM, np.add), ("prod", np.multiply), (MPI.MAX, np.maximum), ("min", np.minimum),
        ("band", np.bitwise_and), (MPI.BXOR, np.bitwise_xor),
    ],
)  # fmt: skip
def test_ops(op, fold):
    check(cj.allreduce(of(RANK, dtype=np.int64), op, comm=COMM), fold.reduce(all_of(dtype=np.int64)))


def test_means_and_user_defined_ops():
    check(cj.allreduce(of(RANK), collectives.AVG, comm=COMM), all_of().mean(0))

    def larger(a, b, datatype):
        x, y = (np.frombuffer(memory, np.float64) for memory in (a, b))
        np.maximum(x, y, out=y)

    op = MPI.Op.Create(larger, commute=True)
    check(jax.jit(lambda x: cj.allreduce(x, op, comm=COMM))(of(RANK)), of(SIZE - 1))
    jax.effects_barrier()
    exact = cj.allreduce(of(RANK), collectives.REPRODUCIBLE_SUM, comm=COMM)
    check(exact, all_of().sum(0))
    op.Free()


@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (40000,)])
def test_functions(shape):
    """Every function, on scalars, on nothing, and on arrays; the root is the last rank."""
    root, mine, every = SIZE - 1, of(RANK, shape), all_of(shape)
    blocks, those = of(RANK, (SIZE, *shape)), all_of((SIZE, *shape))
    here = root == RANK
    check(cj.allreduce(mine, comm=COMM), every.sum(0))
    check(cj.reduce(mine, root=root, comm=COMM), every.sum(0) if here else np.zeros(shape))
    check(cj.reduce_scatter(blocks, comm=COMM), those.sum(0)[RANK])
    check(cj.allgather(mine, comm=COMM), every)
    check(cj.alltoall(blocks, comm=COMM), those[:, RANK])
    check(cj.bcast(mine, root, comm=COMM), every[root])
    check(cj.scatter(blocks if here else mine, root, comm=COMM), those[root][RANK])
    check(cj.gather(mine, root, comm=COMM), every if here else np.zeros((0, *shape)))
    check(cj.sendrecv(mine, dest=RIGHT, source=LEFT, comm=COMM), every[LEFT])
    check(cj.replicated(mine, comm=COMM), mine)
    cj.barrier(comm=COMM)


def test_all_functions_in_one_program():
    """The order that XLA would choose is another one: no result needs an earlier one."""

    @jax.jit
    def program(x):
        found = []
        for i in range(5):
            cj.barrier(comm=COMM)
            found += [
                cj.sendrecv(x * i, dest=RIGHT, source=LEFT, comm=COMM), cj.allreduce(jnp.sin(x) * 0 + i, comm=COMM),
                cj.bcast(x + i, SIZE - 1, comm=COMM), cj.allgather(x + i, comm=COMM),
                cj.allreduce(x[:1] - i, "max", comm=COMM),
            ]  # fmt: skip
        return found

    for _ in range(3):
        found = program(of(RANK))
    for i in range(5):
        moved, total, root, every, most = map(np.asarray, found[5 * i : 5 * i + 5])
        assert np.array_equal(moved, of(LEFT) * i)
        assert np.array_equal(total, np.full(3, i * SIZE))
        assert np.array_equal(root, of(SIZE - 1) + i)
        assert np.array_equal(every, all_of() + i)
        assert np.array_equal(most, of(SIZE - 1)[:1] - i)


def test_messages_without_a_result_that_is_used():
    """Rank 0 sends what the next rank waits for before it sends; nothing but the order keeps them apart."""

    @jax.jit
    def program(x):
        if RANK > 0:
            x = x + cj.recv(x, RANK - 1, comm=COMM)
        if RANK + 1 < SIZE:
            cj.send(x, RANK + 1, comm=COMM)
            cj.send(x * 2, RANK + 1, tag=1, comm=COMM)
        if RANK > 0:
            return x, cj.recv(jax.ShapeDtypeStruct((3,), np.float64), RANK - 1, tag=1, comm=COMM)
        return x, x

    for _ in range(3):
        x, doubled = program(of(RANK))
    before = [sum(of(rank) for rank in range(end + 1)) for end in range(SIZE)]
    check(x, before[RANK])
    check(doubled, before[RANK - 1] * 2 if RANK else before[0])


def test_programs_follow_each_other():
    """Programs that JAX runs in the background keep the order in which they were called."""
    summed = jax.jit(lambda x: cj.allreduce(x, comm=COMM))
    slow = jax.jit(lambda x: cj.allreduce(jnp.linalg.matrix_power(x, 20)[0, :3] * 0 + 1, "max", comm=COMM))
    square = jnp.eye(100) * (1 + 1e-3 * RANK)
    found = [(slow(square), summed(jnp.full(3, float(i)))) for i in range(10)]
    for i, (one, total) in enumerate(found):
        check(one, np.ones(3))
        check(total, np.full(3, float(i * SIZE)))


def test_loops_and_branches():
    def step(carry, x):
        total = cj.allreduce(carry + x, comm=COMM) / SIZE
        return total, cj.allgather(total[:1], comm=COMM)

    @jax.jit
    def program(x):
        last, each = jax.lax.scan(step, x, jnp.arange(4.0)[:, None])
        doubled = jax.lax.while_loop(
            lambda y: cj.allreduce(y[0], "max", comm=COMM) < 100, lambda y: cj.allreduce(y, comm=COMM) + 1, last
        )
        branched = jax.lax.cond(
            last[0] >= 0, lambda y: cj.allreduce(y, comm=COMM), lambda y: y - cj.allreduce(y, "min", comm=COMM), last
        )
        return last, each, doubled, branched

    carry, each = all_of().mean(0), []
    for i in range(4):
        carry = carry + i
        each.append(np.full((SIZE, 1), carry[0]))
    end = carry
    while end[0] < 100:
        end = end * SIZE + 1
    for got, expected in zip(program(of(RANK)), (carry, np.stack(each), end, carry * SIZE), strict=True):
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-14)


def test_batches():
    """One call serves a batch, wherever its axis lies."""
    x, blocks = of(RANK, (4, 3)), of(RANK, (SIZE, 4, 3))
    every, those = all_of((4, 3)), all_of((SIZE, 4, 3))
    for axis in (0, 1):
        batched = functools.partial(jax.vmap, in_axes=axis, out_axes=axis)
        check(jax.jit(batched(lambda x: cj.allreduce(x, comm=COMM)))(x), every.sum(0))
        check(batched(lambda x: cj.bcast(x, SIZE - 1, comm=COMM))(x), every[-1])
        check(batched(lambda x: cj.sendrecv(x, dest=RIGHT, source=LEFT, comm=COMM))(x), every[LEFT])
        check(batched(lambda x: cj.reduce(x, comm=COMM))(x), every.sum(0) if RANK == 0 else np.zeros((4, 3)))
        gathered = jax.vmap(lambda x: cj.allgather(x, comm=COMM), in_axes=axis, out_axes=1 + axis)(x)
        check(gathered, every)
        rooted = jax.vmap(lambda x: cj.gather(x, comm=COMM), in_axes=axis, out_axes=1 + axis)(x)
        check(rooted, every if RANK == 0 else np.zeros((0, 4, 3)))
        over = functools.partial(jax.vmap, in_axes=1 + axis)
        check(over(lambda x: cj.alltoall(x, comm=COMM), out_axes=1 + axis)(blocks), those[:, RANK])
        check(over(lambda x: cj.reduce_scatter(x, comm=COMM), out_axes=axis)(blocks), those.sum(0)[RANK])
        dealt = jax.vmap(lambda x: cj.scatter(x, comm=COMM), in_axes=axis + (RANK == 0), out_axes=axis)
        check(dealt(blocks if RANK == 0 else x), those[0][RANK])
    with pytest.raises(NotImplementedError, match="sendrecv"):
        jax.vmap(lambda x: cj.send(x, RIGHT, comm=COMM))(x)


def test_batches_whose_axis_lies_elsewhere_on_each_rank():
    axis = RANK % 2
    here, every = (of(RANK, (4, 3)).T if axis else of(RANK, (4, 3))), all_of((4, 3))
    for call, expected in (
        (lambda x: cj.allreduce(x, comm=COMM), every.sum(0)),
        (lambda x: cj.bcast(x, SIZE - 1, comm=COMM), every[-1]),
        (lambda x: cj.reduce(x, "max", SIZE - 1, comm=COMM), every[-1] if RANK == SIZE - 1 else np.zeros((4, 3))),
        (lambda x: cj.sendrecv(x, dest=RIGHT, source=LEFT, comm=COMM), every[LEFT]),
    ):
        check(jax.vmap(call, in_axes=axis)(here), expected)


def test_loops_and_branches_that_the_batch_decides():
    """All ranks have the same batch, in which elements end at different times."""
    x = np.array([1.0, 5.0, 40.0])

    def doubled(y):
        return cj.allreduce(y, comm=COMM) / SIZE * 2

    ended = jax.jit(jax.vmap(lambda y: jax.lax.while_loop(lambda y: y < 100, doubled, y)))(x)
    check(ended, np.array([128.0, 160.0, 160.0]))
    branched = jax.jit(
        jax.vmap(lambda y: jax.lax.cond(y > 3, doubled, lambda y: cj.allreduce(-y, "min", comm=COMM), y))
    )
    check(branched(x), np.array([-1.0, 10.0, 80.0]))

    def until(y):
        return jax.lax.while_loop(lambda y: cj.allreduce(y, "max", comm=COMM) < 100, lambda y: y * 2, y)

    check(jax.jit(until)(x[1]), np.array(160.0))
    with pytest.raises(
        NotImplementedError, match=r"^collectives\.jax: vmap of a while_loop with a call in its condition"
    ):
        jax.jit(jax.vmap(until))(x)


def test_without_compilation():
    """Calls are programs of their own then."""
    with jax.disable_jit():
        check(jax.jit(lambda x: cj.allreduce(x * 2, comm=COMM))(of(RANK)), 2 * all_of().sum(0))
        check(jax.grad(lambda x: cj.allreduce(jnp.sum(x**2), comm=COMM))(of(RANK)), 2 * of(RANK))
        cj.barrier(comm=COMM)


def test_nothing_is_traced_twice():
    traced = []

    @jax.jit
    def program(x):
        traced.append(x)
        return cj.reduce(cj.allreduce(x, MPI.SUM, comm=COMM), MPI.MAX, 0, comm=COMM)

    for _ in range(5):
        program(of(RANK))
    assert len(traced) == 1
    calls = [str(jax.make_jaxpr(lambda x: cj.allreduce(x, MPI.SUM, comm=COMM))(of(RANK))) for _ in range(2)]
    assert calls[0] == calls[1]


def test_the_engine_works_on_the_memory_of_xla():
    jax.block_until_ready(cj.allreduce(of(RANK, (40000,)), comm=COMM))
    assert COMM.last.collective == "allreduce"
    assert COMM.last.nbytes == 320000
    assert COMM.last.algorithm == "shm"


def test_several_communicators():
    part = COMM.Split(RANK % 2, RANK)
    doubled = jax.jit(lambda x: (cj.allreduce(x, comm=part), cj.allreduce(x, comm=COMM)))(of(RANK))
    check(doubled[0], sum(of(rank) for rank in range(RANK % 2, SIZE, 2)))
    check(doubled[1], all_of().sum(0))
    jax.effects_barrier()
    part.Free()
    with pytest.raises(collectives.CollectiveError, match="freed"):
        cj.allreduce(of(RANK), comm=part)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, comm: cj.allgather(x, comm=comm),
        lambda x, comm: cj.bcast(x, comm=comm),
        lambda x, comm: cj.barrier(comm=comm),
        lambda x, comm: jax.grad(lambda x: jnp.sum(cj.replicated(x, comm=comm)))(x),
    ],
)
def test_a_communicator_is_set_up_by_the_thread_that_traces(call):
    """And not by XLA's, while the program may do so, too."""
    part, request = COMM.Idup()
    request.Wait()
    assert "not set up" in repr(part)
    jax.make_jaxpr(lambda x: call(x, part))(of(RANK))
    assert "not set up" not in repr(part)
    part.Free()


def test_the_default_is_all_ranks():
    check(jax.jit(cj.allreduce)(of(RANK)), all_of().sum(0))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: cj.allreduce(x, comm=MPI.COMM_WORLD), TypeError, "allreduce: comm: expected a collectives.Comm"),
        (lambda x: cj.allreduce(x, "plus"), ValueError, "allreduce: op: 'plus' is not one of sum"),
        (lambda x: cj.allreduce(x, 3, comm=COMM), TypeError, "allreduce: op must be"),
        (lambda x: cj.reduce(x, MPI.BAND, comm=COMM), TypeError, "reduce: op: band does not apply to float64"),
        (lambda x: cj.bcast(x, SIZE, comm=COMM), ValueError, rf"bcast: root: {SIZE} is not a rank"),
        (lambda x: cj.bcast(x, "a", comm=COMM), TypeError, "bcast: root: must be an integer"),
        (lambda x: cj.alltoall(x[:0], comm=COMM), ValueError, "alltoall: x: the first axis"),
        (lambda x: cj.scatter(x[0], RANK, comm=COMM), ValueError, "scatter: x: the first axis"),
        (lambda x: cj.send(x, -1, comm=COMM), ValueError, "send: dest: -1 is not a rank"),
        (lambda x: cj.recv(x, 0, tag=-1, comm=COMM), ValueError, "recv: tag: -1 is negative"),
        (lambda x: cj.send(x, RANK, tag=2**31, comm=COMM), ValueError, "send: tag: 2147483648 is larger than"),
        (lambda x: cj.allgather(jax.random.key(0), comm=COMM), TypeError, "allgather: x: .*key_data"),
        (lambda x: cj.allgather(jnp.zeros(3, "int4"), comm=COMM), TypeError, "allgather: x: .*shorter than a byte"),
    ],
)  # fmt: skip
def test_wrong_arguments(call, error, words):
    with pytest.raises(error, match=rf"^collectives\.jax\.{words}"):
        call(of(RANK))


def test_a_root_that_the_program_computes():
    with pytest.raises(TypeError, match="known before the program runs"):
        jax.jit(lambda root: cj.bcast(jnp.ones(3), root, comm=COMM))(0)
