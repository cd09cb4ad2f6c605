"""A graph with skips, cut layers and a tied weight on up to 8 ranks: the gradients and weights of one rank."""

import math

import pytest
from mesh_training import alone, compare, trained

from collectives.train import threads


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


SHAPES = [{"data": 2, "pipeline": 2, "tensor": 2}, {"pipeline": 2, "tensor": 2}, {}]
MORE = [{"pipeline": 4, "data": 2}, {"pipeline": 4, "tensor": 2}, {"data": 3, "tensor": 2}]


@pytest.mark.parametrize("shape", [*SHAPES, *map(slow, MORE)], ids=str)
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_uneven_stages_of_a_graph_with_clipping(shape, schedule):
    ranks = math.prod(shape.values())
    compare(threads.run(ranks, lambda comm: trained(comm, shape, schedule=schedule)), alone())


@pytest.mark.parametrize("shape", [*SHAPES[1:], *map(slow, [{"pipeline": 4, "tensor": 2}, {"pipeline": 4}])], ids=str)
@pytest.mark.parametrize("recompute", [False, True])
def test_dropout_with_and_without_recomputation(shape, recompute):
    expected = alone(dropout=True)
    assert expected[1] != alone()[1]
    ranks = math.prod(shape.values())
    compare(threads.run(ranks, lambda comm: trained(comm, shape, dropout=True, recompute=recompute)), expected)


def test_replicas_of_a_stage_with_cut_layers():
    """Stage 0 has one tensor pair, stage 1 two."""
    found = threads.run(6, lambda comm: trained(comm, {"pipeline": 3, "tensor": 2}, replicas=[1, 2], cut=[7]))
    compare(found, alone())
