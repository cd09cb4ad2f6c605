"""Cuts that are balanced: the largest cost of a stage, and stages without parameters, against all cuts there are."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from pipeline_training import X, chain

from collectives.train.pipeline.layout import Layout
from collectives.train.pipeline.partition import balanced
from collectives.train.pipeline.placement import Placement


def quality(bounds, costs, workers, parameters):
    """The largest cost of a run, and how many runs have no parameters."""
    sums = np.cumsum([0.0, *costs])
    shares = [(sums[end] - sums[start]) / ranks for (start, end), ranks in zip(pairwise(bounds), workers, strict=True)]
    return max(shares), sum(not any(parameters[start:end]) for start, end in pairwise(bounds))


@pytest.mark.parametrize("seed", range(200))
def test_no_cut_is_better(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 10))
    workers = rng.integers(1, 3, rng.integers(1, count + 1)).tolist()
    costs = rng.choice([0, 0, 0.1, 0.7, 1, 2, 9], count).tolist()
    parameters = costs if seed % 2 else rng.integers(0, 2, count).tolist()
    cuts = [[0, *inner, count] for inner in combinations(range(1, count), len(workers) - 1)]
    found = balanced(costs, workers, parameters)
    assert found in cuts
    assert quality(found, costs, workers, parameters) == min(quality(c, costs, workers, parameters) for c in cuts)
    by_costs_alone = balanced(costs, workers, [1] * count)
    if quality(by_costs_alone, costs, workers, parameters) == quality(found, costs, workers, parameters):
        assert found == by_costs_alone


def test_parameters_are_the_costs_unless_given():
    assert balanced([4, 2, 0, 2], [1, 1, 1]) == [0, 1, 2, 4]
    assert balanced([4, 2, 0, 2], [1, 1, 1], [1, 0, 0, 1]) == [0, 1, 2, 4]
    assert balanced([4, 2, 0, 2], [1, 1, 1], [1, 0, 1, 1]) == [0, 1, 3, 4]


@pytest.mark.parametrize("by", ["parameters", "flops"])
@pytest.mark.parametrize("stages", range(1, 10))
def test_every_stage_of_a_chain_has_parameters(stages, by):
    """9 of the 16 layers have parameters: with 8 stages, costs alone leave one stage without."""
    Layout(chain(), Placement(0, stages), 1, by, X, "relay").check()
