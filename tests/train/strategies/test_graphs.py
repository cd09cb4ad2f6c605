"""Graphs and their mixing matrices, against definitions and published rates."""

import math

import numpy as np
import pytest

from collectives.train.strategies import graphs
from collectives.train.strategies.graphs import GRAPHS, Mixing, roles

SIZES = [1, 2, 3, 4, 5, 6, 8, 12, 16, 17]
DIRECTED = graphs.random(degree=2, seed=5, rounds=3, directed=True)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph_mixes_and_preserves_the_mean(name, size):
    mixing = Mixing(name, size)
    assert mixing.doubly
    for matrix in mixing.matrices:
        np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-12)
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
    assert 0 <= mixing.contraction < 1
    if name in ("ring", "torus", "complete", "random"):
        assert all((matrix == matrix.T).all() for matrix in mixing.matrices)


def neighbours(name, size, rank):
    (row,) = Mixing(name, size).rows(rank)
    return sorted(row)


def test_who_is_linked_with_whom():
    assert neighbours("ring", 6, 0) == [1, 5]
    assert neighbours("ring", 2, 0) == [1]
    assert neighbours("torus", 12, 0) == [1, 3, 4, 8]  # 3 x 4
    assert neighbours("torus", 7, 3) == neighbours("ring", 7, 3)
    assert neighbours("complete", 5, 2) == [0, 1, 3, 4]
    assert neighbours("exponential", 8, 0) == [4, 6, 7]  # it hears from ranks 4, 2 and 1 before it
    assert Mixing("exponential", 8).targets(0) == [[1, 2, 4]]
    assert Mixing("one_peer_exponential", 8).targets(3) == [[4], [5], [7]]
    assert all(len(row) == 2 for row in Mixing("random", 9).rows(4))
    assert Mixing("ring", 1).rows(0) == [{}]


@pytest.mark.parametrize("size", [4, 6, 8, 16, 32])
def test_rates_that_are_published(size):
    """Ring: 1/3 + 2/3 cos(2 pi / p) (eigenvalues of a circulant matrix). Exponential: 1 - 2 / (1 + ceil(log2 p)) for
    even p (Ying et al. 2021, proposition 1). One-peer exponential: 0 for powers of 2 (there, lemma 1)."""
    eigenvalues = [1 / 3 + 2 / 3 * math.cos(2 * math.pi * k / size) for k in range(1, size)]
    assert Mixing("ring", size).contraction == pytest.approx(max(map(abs, eigenvalues)), abs=1e-12)
    assert Mixing("exponential", size).contraction == pytest.approx(1 - 2 / (1 + math.ceil(math.log2(size))))
    if size & (size - 1) == 0:
        assert Mixing("one_peer_exponential", size).contraction == 0
    assert Mixing("complete", size).contraction == 0


@pytest.mark.parametrize("name", ["ring", "torus", "exponential", "random", "one_peer_exponential"])
def test_the_rate_is_the_smallest_that_holds_for_a_whole_period(name):
    mixing = Mixing(name, 12)
    product = np.eye(12)
    for matrix in mixing.matrices:
        product = matrix @ product
    most = mixing.contraction ** len(mixing.matrices)
    for x in np.random.default_rng(0).standard_normal((50, 12)):
        gap = x - x.mean()
        assert np.linalg.norm(product @ gap) <= most * np.linalg.norm(gap) * (1 + 1e-9)
    slowest = np.linalg.svd(product - 1 / 12)[2][0]
    assert np.linalg.norm(product @ slowest) == pytest.approx(most)


def test_the_rate_of_a_matrix_that_is_only_column_stochastic():
    mixing = Mixing(DIRECTED, 7)
    assert not mixing.doubly
    total = np.eye(7)
    for _ in range(8):
        for matrix in mixing.matrices:
            total = matrix @ total
    debiased = total / total.sum(axis=1, keepdims=True)  # row i: what z_i takes of each x_j
    left = np.abs(debiased - 1 / 7).max()
    assert 0.1 < left / mixing.contraction**24 < 10


def test_graphs_are_drawn_by_the_seed():
    one, other = (Mixing(graphs.random(4, seed), 10) for seed in (1, 2))
    assert one.digest == Mixing(graphs.random(4, 1), 10).digest != other.digest
    assert len({matrix.tobytes() for matrix in one.matrices}) == 8
    assert len(Mixing(graphs.random(rounds=1), 10).matrices) == 1


PAIRS = np.kron(np.eye(2), np.full((2, 2), 0.5))
SENDS = np.array([[0.5, 0.0], [0.5, 1.0]])


@pytest.mark.parametrize(
    ("graph", "size", "words"),
    [
        ("star", 4, "unknown graph 'star'; there are ring, exp"),
        (PAIRS, 4, r"not connected: ranks \[2, 3\] never hear from rank 0"),
        (SENDS, 2, r"not connected: ranks \[1\] never reach rank 0"),
        (lambda size: [{(0, 1), (1, 0)}], 3, r"ranks \[2\] never hear"),
        (np.eye(3), 4, r"need mixing matrices of shape \(4, 4\), not \(3, 3\)"),
        (SENDS.T, 2, "is column stochastic"),
        (np.array([[0.0, 1.0], [1.0, 0.0]]), 2, "above 0 on the diagonal"),
        (np.array([[1.5, -0.5], [-0.5, 1.5]]), 2, "at least 0"),
        (np.full((2, 2), np.nan), 2, "at least 0"),
        (np.zeros((0, 2, 2)), 2, "a graph needs at least one round"),
        (lambda size: [], 2, "a graph needs at least one round"),
        (lambda size: None, 2, "a graph returns a list of sets of links .* not None"),
        (lambda size: [{(0, 1.5)}], 2, "a graph returns a list of sets of links"),
        (lambda size: [{(0, 2)}], 2, r"from one of 2 ranks to another one, not \(0, 2\)"),
        (lambda size: [{(-1, 0)}], 2, r"from one of 2 ranks to another one, not \(-1, 0\)"),
        (lambda size: [{(1, 1)}], 2, r"from one of 2 ranks to another one, not \(1, 1\)"),
    ],
)
def test_graphs_that_are_refused(graph, size, words):
    with pytest.raises(ValueError, match=words):
        Mixing(graph, size)


def test_rounds_are_connected_together_or_not_at_all():
    other = PAIRS[np.ix_([0, 2, 1, 3], [0, 2, 1, 3])]
    assert Mixing(np.stack([PAIRS, other]), 4).contraction < 1e-7


@pytest.mark.parametrize("options", [{"degree": 0}, {"degree": 3}, {"rounds": 0}, {"seed": -1}])
def test_random_graphs_need_arguments_that_make_sense(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        graphs.random(**options)


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("graph", [*GRAPHS, DIRECTED])
def test_roles_leave_a_connected_bipartite_graph(graph, size):
    mixing = Mixing(graph, size)
    active = np.array(roles(mixing))
    left = (mixing.linked | mixing.linked.T) & (active[:, None] != active[None, :])
    reached = np.linalg.matrix_power(left + np.eye(size), size) > 0
    assert reached.all()
    if graph == "complete":
        assert active.sum() == math.ceil(size / 2)
