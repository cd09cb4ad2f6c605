"""Derivatives through the functions of collectives.jax, against those of one process that has all data.

Run on any number of ranks: ``mpiexec -n 4 python -m pytest tests/jax/programs/jax_gradients.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import collectives
import collectives.jax as cj

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # programs are compiled sooner
COMM = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
RANDOM = np.random.default_rng(7)
DATA = RANDOM.normal(size=(SIZE, 6, 4))
LABELS = RANDOM.normal(size=(SIZE, 6))
PARAMETERS = {"w": RANDOM.normal(size=(4, 3)), "b": RANDOM.normal(size=3), "v": RANDOM.normal(size=3)}
POINTS = RANDOM.normal(size=(SIZE, SIZE, 3))  # for each rank a block for each rank
WEIGHTS = RANDOM.normal(size=(SIZE, SIZE, 3))


def near(got, expected):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-10, atol=1e-10)


def errors(params, x, y):
    return jnp.sum((jnp.tanh(x @ params["w"] + params["b"]) @ params["v"] - y) ** 2)


def of_one_process(params):
    return errors(params, DATA.reshape(-1, 4), LABELS.reshape(-1)) / LABELS.size


def test_replicated_arrays_whose_batch_lies_elsewhere_on_other_ranks():
    """The ranks' programs need not be alike between calls: what `replicated` adds up must be."""
    axis, w, weights = RANK % 2, RANDOM.normal(size=(4, 3)), RANDOM.normal(size=4)

    def loss(w):
        one = lambda row, weight: weight * (cj.replicated(row, comm=COMM) * WEIGHTS[RANK, 0]).sum()  # noqa: E731
        return jax.vmap(one, in_axes=(axis, 0))(w, weights).sum()

    found = jax.jit(jax.grad(loss))(w.T if axis else w)
    near(found.T if axis else found, np.outer(weights, WEIGHTS[:, 0].sum(0)))


def test_a_distributed_loss_as_in_mpi4jax():
    """The gradient is this rank's part; the sum of the parts is the gradient."""

    def loss(params):
        return cj.allreduce(errors(params, DATA[RANK], LABELS[RANK]), comm=COMM) / LABELS.size

    value, part = jax.jit(jax.value_and_grad(loss))(PARAMETERS)
    near(value, of_one_process(PARAMETERS))
    near(part, jax.jit(jax.grad(lambda p: errors(p, DATA[RANK], LABELS[RANK]) / LABELS.size))(PARAMETERS))
    summed = jax.jit(lambda part: jax.tree.map(lambda g: cj.allreduce(g, comm=COMM), part))(part)
    near(summed, jax.jit(jax.grad(of_one_process))(PARAMETERS))


def loss_of_replicated(params):
    params = jax.tree.map(lambda p: cj.replicated(p, comm=COMM), params)
    mean = errors(params, DATA[RANK], LABELS[RANK]) / LABELS[RANK].size
    return cj.allreduce(mean, collectives.AVG, comm=COMM)


def test_a_distributed_loss_of_replicated_parameters():
    expected = jax.jit(jax.grad(of_one_process))(PARAMETERS)
    near(jax.jit(jax.grad(loss_of_replicated))(PARAMETERS), expected)
    near(jax.jit(jax.grad(jax.checkpoint(loss_of_replicated)))(PARAMETERS), expected)
    near(jax.grad(lambda v: loss_of_replicated({**PARAMETERS, "v": v}))(PARAMETERS["v"]), expected["v"])


def test_forward_mode():
    direction = jax.tree.map(np.cos, PARAMETERS)
    here, whole = (
        jax.jit(lambda p, d, loss=loss: jax.jvp(loss, (p,), (d,)))(PARAMETERS, direction)
        for loss in (loss_of_replicated, of_one_process)
    )
    near(here, whole)


@pytest.mark.parametrize("order", [(jax.jacfwd, jax.jacrev), (jax.jacrev, jax.jacrev)])
def test_second_derivatives(order):
    outer, inner = order

    def distributed(v):
        return loss_of_replicated({**PARAMETERS, "v": v})

    expected = jax.jit(jax.hessian(lambda v: of_one_process({**PARAMETERS, "v": v})))(PARAMETERS["v"])
    near(jax.jit(outer(inner(distributed)))(PARAMETERS["v"]), expected)


def test_two_layers_of_reductions():
    """A mean over all ranks, with which each rank goes on: batch normalization over all data."""

    def distributed(w):
        h = DATA[RANK] @ cj.replicated(w, comm=COMM)
        mean = cj.replicated(cj.allreduce(h.mean(0), "avg", comm=COMM), comm=COMM)
        spread = cj.replicated(cj.allreduce(((h - mean) ** 2).mean(0), "avg", comm=COMM), comm=COMM)
        return cj.allreduce(jnp.sum(jnp.tanh((h - mean) / jnp.sqrt(spread))[:, 0] * LABELS[RANK]), comm=COMM)

    def whole(w):
        h = DATA.reshape(-1, 4) @ w
        return jnp.sum(jnp.tanh((h - h.mean(0)) / h.std(0))[:, 0] * LABELS.reshape(-1))

    near(jax.jit(jax.grad(distributed))(PARAMETERS["w"]), jax.jit(jax.grad(whole))(PARAMETERS["w"]))


def total(partial):
    """A loss that all ranks have, from a part of each."""
    return cj.allreduce(jnp.sum(partial), comm=COMM)


#: For each function: what a rank computes of its blocks, and what one process computes of all ranks' blocks.
LINEAR = {
    "allgather": (
        lambda x: cj.replicated(cj.allgather(x[0], comm=COMM), comm=COMM) * WEIGHTS[RANK],
        lambda x: [x[:, 0] * WEIGHTS[r] for r in range(SIZE)],
    ),
    "reduce_scatter": (
        lambda x: cj.reduce_scatter(x, comm=COMM) * WEIGHTS[RANK, 0],
        lambda x: [x[:, r].sum(0) * WEIGHTS[r, 0] for r in range(SIZE)],
    ),
    "alltoall": (
        lambda x: cj.alltoall(x, comm=COMM) * WEIGHTS[RANK],
        lambda x: [x[:, r] * WEIGHTS[r] for r in range(SIZE)],
    ),
    "bcast": (
        lambda x: cj.replicated(cj.bcast(x, SIZE - 1, comm=COMM), comm=COMM) * WEIGHTS[RANK],
        lambda x: [x[-1] * WEIGHTS[r] for r in range(SIZE)],
    ),
    "reduce": (
        lambda x: cj.reduce(x, "avg", SIZE - 1, comm=COMM) * WEIGHTS[RANK],
        lambda x: [x.mean(0) * WEIGHTS[-1]],
    ),
    "scatter": (
        lambda x: cj.scatter(x if RANK == SIZE - 1 else x[0], SIZE - 1, comm=COMM) * WEIGHTS[RANK, 0],
        lambda x: [x[-1, r] * WEIGHTS[r, 0] for r in range(SIZE)],
    ),
    "gather": (
        lambda x: cj.gather(x[0], SIZE - 1, comm=COMM) * WEIGHTS[RANK][: SIZE if RANK == SIZE - 1 else 0],
        lambda x: [x[:, 0] * WEIGHTS[-1]],
    ),
    "sendrecv": (
        lambda x: cj.sendrecv(x, dest=RIGHT, source=LEFT, comm=COMM) * WEIGHTS[RANK],
        lambda x: [x[r - 1] * WEIGHTS[r] for r in range(SIZE)],
    ),
    "sendrecv at the ends": (
        lambda x: (
            cj.sendrecv(
                x, dest=RANK + 1 if RANK + 1 < SIZE else None, source=RANK - 1 if RANK else None, comm=COMM
            ) * WEIGHTS[RANK]
        ),
        lambda x: [x[r - 1] * WEIGHTS[r] for r in range(1, SIZE)] or [x * 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_functions(name):
    """First and second derivatives of a nonlinear loss on the results."""
    here, everywhere = LINEAR[name]

    def distributed(x):
        return total(jnp.sin(here(x)))

    def whole(x):
        return sum(jnp.sum(jnp.sin(part)) for part in everywhere(x))

    def all_of(loss, add, weights):
        """Value, gradient, derivative along the weights, and the gradient of that, in reverse mode twice."""

        def along(x):
            return add(jax.grad(loss)(x) * weights)

        return jax.jit(
            lambda x: (*jax.value_and_grad(loss)(x), *jax.jvp(loss, (x,), (weights,)), *jax.value_and_grad(along)(x))
        )

    here = all_of(distributed, total, WEIGHTS[RANK])(POINTS[RANK])
    expected = all_of(whole, jnp.sum, WEIGHTS)(POINTS)
    near(here, [value[RANK] if value.ndim else value for value in expected])


def test_a_rank_that_does_not_use_its_result():
    """All ranks take part in what the gradient sends."""

    def distributed(x):
        y = cj.sendrecv(x, dest=RIGHT, source=LEFT, comm=COMM)
        return total(y**2 if RANK else x * 0)

    expected = 2 * POINTS[RANK] * (RIGHT != 0)
    near(jax.jit(jax.grad(distributed))(POINTS[RANK]), expected)


def test_loops():
    def distributed(w):
        def step(h, x):
            return jnp.tanh(cj.replicated(cj.allreduce(x @ w[:, 0], "avg", comm=COMM), comm=COMM) + h), None

        w = cj.replicated(w, comm=COMM)
        return cj.allreduce(jax.lax.scan(step, 0.1 * (RANK + 1), DATA[RANK])[0], comm=COMM)

    def whole(w):
        def step(h, x):
            return jnp.tanh((x @ w[:, 0]).mean() + h), None

        return jnp.sum(jax.lax.scan(step, 0.1 * jnp.arange(1.0, SIZE + 1), DATA.swapaxes(0, 1))[0])

    near(jax.jit(jax.grad(distributed))(PARAMETERS["w"]), jax.jit(jax.grad(whole))(PARAMETERS["w"]))


def test_batches_of_gradients():
    def loss(x):
        return jnp.sum(cj.allreduce(x**3, comm=COMM) ** 2)

    batched = jax.jit(jax.vmap(jax.grad(loss)))(POINTS[RANK])
    near(batched, 6 * (POINTS**3).sum(0) * POINTS[RANK] ** 2)


def test_a_linear_solve():
    """A matrix whose rows the ranks share, in conjugate gradients: JAX transposes the product."""
    matrix = np.eye(4) * 9 + sum(DATA[r].T @ DATA[r] for r in range(SIZE))
    right = RANDOM.normal(size=4)

    def product(x):
        return 9 * x + cj.allreduce(DATA[RANK].T @ (DATA[RANK] @ x), comm=COMM)

    def solve(b):
        return jax.scipy.sparse.linalg.cg(product, b, tol=1e-14)[0]

    near(jax.jit(solve)(right), np.linalg.solve(matrix, right))
    expected = 2 * np.linalg.solve(matrix, np.linalg.solve(matrix, right))
    near(jax.jit(jax.grad(lambda b: jnp.sum(solve(b) ** 2)))(right), expected)


def test_what_has_no_gradient():
    for call, words in (
        (lambda x: cj.allreduce(x, "max", comm=COMM), r"allreduce: a reduction by max has no gradient"),
        (lambda x: cj.send(x, RIGHT, comm=COMM) or x, r"send: .* sendrecv has one"),
        (
            lambda x: cj.sendrecv(x, np.arange(3), dest=RIGHT, source=LEFT, comm=COMM) * 1.0,
            r"sendrecv: a call that receives int64 has no gradient",
        ),
    ):
        with pytest.raises(NotImplementedError, match=rf"^collectives\.jax\.{words}"):
            jax.grad(lambda x, call=call: jnp.sum(call(x)))(POINTS[RANK])
