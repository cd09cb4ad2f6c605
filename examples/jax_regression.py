"""Data-parallel training of a small network with JAX: every rank has its part of the data, all have the same weights.

``mpiexec -n 2 python examples/jax_regression.py``; the losses are those of one process, up to rounding.
"""

import jax
import jax.numpy as jnp
from mpi4py import MPI

import collectives
import collectives.jax as cj

jax.config.update("jax_enable_x64", True)
comm = collectives.Communicator(MPI.COMM_WORLD)
x = jax.random.uniform(jax.random.key(0), (512, 2), minval=-2, maxval=2)
y = jnp.sin(x[:, 0]) * x[:, 1]
mine = slice(comm.rank * 512 // comm.size, (comm.rank + 1) * 512 // comm.size)


def network(params, x):
    """Two layers."""
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def loss(params, x, y):
    """The mean over the data of all ranks, of which this rank has x and y."""
    params = jax.tree.map(lambda p: cj.replicated(p, comm=comm), params)  # their gradients are sums over the ranks
    return cj.allreduce(jnp.sum((network(params, x) - y) ** 2), comm=comm) / 512


@jax.jit
def step(params, momentum, x, y):
    """One step of gradient descent with momentum."""
    value, gradient = jax.value_and_grad(loss)(params, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda p, m: p - 0.03 * m, params, momentum), momentum, value


w, v = jax.random.normal(jax.random.key(1), (2, 16)), jax.random.normal(jax.random.key(2), (16,)) / 4
params = {"w": w, "b": jnp.zeros(16), "v": v}
momentum = jax.tree.map(jnp.zeros_like, params)
for i in range(301):
    params, momentum, value = step(params, momentum, x[mine], y[mine])
    if comm.rank == 0 and i % 100 == 0:
        print(f"step {i:3} loss {value:.9f}")
