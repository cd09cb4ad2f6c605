"""A NumPy graph with skips, cut layers and a tied weight, trained on one rank and on a mesh, for tests of pipelines."""

import numpy as np
import pytest
from pipeline_training import LOSS, X, Y, assert_same, linear, sgd

from collectives import train
from collectives.train import threads
from collectives.train.tensor import ColumnParallelLinear, RowParallelLinear

UNEVEN = {1: [], 2: [7], 4: [1, 2, 8]}  # of 13 blocks


def graph(comm, dropout):
    """Whole layers without `comm`. The last cut layer has the weight of the first one."""
    rng = np.random.default_rng(3)

    def column(inputs, outputs, gather=False):
        whole = linear(rng, inputs, outputs)
        return whole if comm is None else ColumnParallelLinear(whole, comm, gather_output=gather)

    def row(inputs, outputs):
        whole = linear(rng, inputs, outputs)
        return whole if comm is None else RowParallelLinear(whole, comm)

    made, first, tied = train.Graph(), column(8, 8, gather=True), column(8, 8, gather=True)
    tied.weight = first.weight
    start = made.add(first, made.input())
    made.add(column(8, 13), start)
    made.add(train.ReLU())
    one = made.add(train.Add(), made.add(row(13, 8)), start)
    noise = train.Random(5, "noise", 0)
    made.add(train.Dropout(0.3, random=noise) if dropout else train.ReLU(), one)
    made.add(column(8, 10))
    made.add(train.ReLU())
    two = made.add(train.Add(), made.add(row(10, 8)), one, start)
    made.add(tied, made.add(train.ReLU(), two))
    made.add(linear(rng, 8, 3))
    return made


def trained(comm, shape, whole=False, dropout=False, clip=0.05, micro_batches=5, **options):
    """Weights, losses of the whole batch, and norms before clipping."""
    mesh = train.Mesh(comm, **shape)
    net = graph(None if whole else mesh.tensor, dropout)
    options.setdefault("cut", UNEVEN.get(mesh.pipeline.size))
    pipe = train.Pipeline(net, mesh.pipeline, micro_batches=micro_batches, **options)
    strategy = train.AllReduce(clip_norm=clip)
    pipe, opt = train.distribute(pipe, sgd(pipe.parameters()), strategy, mesh=mesh)
    rows = np.array_split(np.arange(len(X)), mesh.data.size)[mesh.data.rank]
    losses, norms = [], []
    for _ in range(3):
        opt.zero_grad()
        loss = pipe.step(X[rows], Y[rows], LOSS)
        opt.step()
        losses.append(mesh.data.allreduce(loss * loss.samples) / len(X))
        norms.append(strategy.norm)
    state = train.tensor.whole_state(pipe, mesh.tensor)
    pipe.free()
    mesh.free()
    return state, losses, norms


def alone(**options):
    (found,) = threads.run(1, lambda comm: trained(comm, {}, whole=True, micro_batches=1, schedule="gpipe", **options))
    return found


def compare(found, expected, whole=True):
    """Hold what ranks of `trained` found; all of them have the `whole` model."""
    weights, losses, norms = expected
    assert min(norms) > 0.05  # so that clipping did something
    assert not whole or set().union(*(state for state, _, _ in found)) == set(weights)
    for state, of_steps, before in found:
        assert_same(state, weights)
        assert of_steps == pytest.approx(losses, abs=1e-10)
        assert before == pytest.approx(norms, abs=1e-10)
