"""allreduce_tree on arrays of JAX, on all ranks.

Run on any number of ranks: ``mpiexec -n 3 python -m pytest tests/train/programs/jax_trees.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import collectives
from collectives import train

COMM = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
TOTAL = SIZE * (SIZE + 1) // 2


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.uint8, jnp.complex64])
def test_every_type_is_added_up_and_stays_what_it_is(dtype):
    tree = {
        "x": [jnp.full((2, 3), RANK + 1, dtype), None],
        "y": (jnp.asarray(RANK + 1, dtype), jnp.zeros((0, 2), dtype)),
    }
    got = train.allreduce_tree(tree, COMM)
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    for mine, leaf in zip(jax.tree.leaves(tree), jax.tree.leaves(got), strict=True):
        assert isinstance(leaf, jax.Array)
        assert (leaf.dtype, leaf.shape) == (mine.dtype, mine.shape)
        assert (np.asarray(leaf) == TOTAL).all()
    assert (np.asarray(tree["x"][0]) == RANK + 1).all()


def test_leaves_of_several_libraries_lie_in_one_tree():
    got = train.allreduce_tree({"jax": jnp.ones(3), "numpy": np.ones(2, np.float32)}, COMM)
    assert isinstance(got["jax"], jax.Array)
    assert isinstance(got["numpy"], np.ndarray)
    assert got["jax"].tolist() == [SIZE] * 3
    assert got["numpy"].tolist() == [SIZE] * 2


def test_the_mean_gradient_of_ranks_is_that_of_all_samples():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6 * SIZE, 4)).astype(np.float32), rng.standard_normal(6 * SIZE).astype(np.float32)
    params = {"w": jnp.ones(4), "b": jnp.zeros(())}
    gradient = jax.jit(jax.grad(lambda p, x, y: ((x @ p["w"] + p["b"] - y) ** 2).mean()))
    mine = gradient(params, x[RANK::SIZE], y[RANK::SIZE])
    got, expected = train.allreduce_tree(mine, COMM, collectives.AVG), gradient(params, x, y)
    for name in params:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-5, atol=1e-6)
    if SIZE > 1:
        assert np.abs(np.asarray(mine["w"] - expected["w"])).max() > 1e-2


def test_within_jit_it_is_an_error():
    with pytest.raises(TypeError, match="traced|Tracer"):
        jax.jit(lambda x: train.allreduce_tree([x], COMM))(jnp.ones(3))
    assert COMM.allreduce(1) == SIZE


def test_an_array_that_was_deleted_on_one_rank_is_an_error_on_all():
    x = jnp.ones(3)
    if RANK == SIZE - 1:
        x.delete()
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        train.allreduce_tree([x], COMM)
    assert COMM.allreduce(1) == SIZE
