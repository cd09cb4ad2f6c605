"""Graphs of ranks, and the mixing matrices by which neighbours average.

A graph is a function of the number of ranks p. Its result is a list of rounds, which repeat; a static graph has one. A
round is a set of links (source, target). So a new graph is a function of a few lines.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable
from operator import index
from typing import Any

import numpy as np

from ..counts import count
from ..models.nn import Array

Links = set[tuple[int, int]]
Graph = Callable[[int], list[Links]]
NEAR = 1e-9


def _both_ways(links: Iterable[tuple[int, int]]) -> Links:
    """Links and their reverses, without those of a rank to itself."""
    return {pair for i, j in links if i != j for pair in ((i, j), (j, i))}


def ring(size: int) -> list[Links]:
    """Rank r and ranks r - 1 and r + 1, both ways. Static."""
    return [_both_ways((r, (r + 1) % size) for r in range(size))]


def torus(size: int) -> list[Links]:
    """A grid of a x b ranks, each with four neighbours, both ways: a is the largest divisor of p up to sqrt(p). Static.

    For a prime number of ranks it is a ring.
    """
    rows = max(a for a in range(1, math.isqrt(size) + 1) if size % a == 0)
    columns = size // rows
    place = [divmod(r, columns) for r in range(size)]
    right = [(i * columns + j, i * columns + (j + 1) % columns) for i, j in place]
    down = [(i * columns + j, (i + 1) % rows * columns + j) for i, j in place]
    return [_both_ways(right + down)]


def complete(size: int) -> list[Links]:
    """Every rank and every other one. Static; one round makes the mean."""
    return [_both_ways((i, j) for i in range(size) for j in range(i))]


def _hops(size: int) -> list[int]:
    return [1 << k for k in range((size - 1).bit_length())]


def exponential(size: int) -> list[Links]:
    """Rank r to ranks r + 1, r + 2, r + 4, ..., modulo p. Directed, static (Ying et al., NeurIPS 2021, sec. 3)."""
    return [{(r, (r + hop) % size) for r in range(size) for hop in _hops(size)}]


def one_peer_exponential(size: int) -> list[Links]:
    """Rank r to rank r + 2^k in round k, modulo p. Directed (Assran et al., ICML 2019, appendix A).

    After log2(p) rounds, if p is a power of 2, every rank has the mean (Ying et al., NeurIPS 2021, lemma 1).
    """
    return [{(r, (r + hop) % size) for r in range(size)} for hop in _hops(size)] or [set()]


def random(degree: int = 2, seed: int = 0, rounds: int = 8, directed: bool = False) -> Graph:
    """A graph of `rounds` rounds, which are drawn by `seed`: with one, it is static.

    By default a round is the union of ``degree / 2`` random rings, both ways. If `directed`, each rank sends to
    `degree` other ranks, and may hear from fewer or from more: that is for `PushSum`. Raises ValueError for bad
    arguments.
    """
    degree, rounds, seed = count("degree", degree), count("rounds", rounds), count("seed", seed, 0)
    if degree % 2 and not directed:
        raise ValueError(f"degree must be even unless the graph is directed, not {degree}")

    def one(size: int, rng: np.random.Generator) -> Links:
        if directed:
            count = min(degree, size - 1)
            drawn = [rng.choice(size - 1, count, replace=False).tolist() for _ in range(size)]
            return {(r, (r + 1 + other) % size) for r, others in enumerate(drawn) for other in others}
        rings = [rng.permutation(size).tolist() for _ in range(degree // 2)]
        return _both_ways((ring[r - 1], ring[r]) for ring in rings for r in range(size))

    def drawn(size: int) -> list[Links]:
        return [one(size, np.random.default_rng([seed, number])) for number in range(rounds)]

    return drawn


#: Graphs by the names that strategies take.
GRAPHS: dict[str, Graph] = {
    "ring": ring,
    "exponential": exponential,
    "one_peer_exponential": one_peer_exponential,
    "torus": torus,
    "random": random(),
    "complete": complete,
}


def named(graph: str | Graph | Array) -> Graph | Array:
    """The graph of that name; what is no name is returned as it is. ValueError for an unknown name."""
    if not isinstance(graph, str):
        return graph
    if graph not in GRAPHS:
        raise ValueError(f"unknown graph {graph!r}; there are {', '.join(GRAPHS)}")
    return GRAPHS[graph]


def _checked(rounds: Any, size: int) -> list[Links]:
    """What a graph has returned. ValueError unless it is rounds of links between the ranks."""
    try:
        found = [{(index(source), index(target)) for source, target in links} for links in rounds]
    except (TypeError, ValueError):
        raise ValueError(f"a graph returns a list of sets of links (source, target), not {rounds!r}") from None
    for link in {link for links in found for link in links}:
        if min(link) < 0 or max(link) >= size or link[0] == link[1]:
            raise ValueError(f"a link of a graph is from one of {size} ranks to another one, not {link}")
    return found


def weights(links: Links, size: int) -> Array:
    """The mixing matrix of a round, (p, p): its element (i, j) is the part of rank j's vector that rank i takes.

    If the links go both ways, ranks i and j take ``1 / (1 + max(d_i, d_j))`` of each other, where d are their numbers
    of neighbours (Metropolis weights; Xiao, Boyd & Lall, IPSN 2005): the matrix is symmetric and doubly stochastic.
    Otherwise each rank deals its vector in equal parts to itself and its targets: the matrix is column stochastic.
    """
    matrix = np.zeros((size, size))
    for source, target in links:
        matrix[target, source] = 1
    degrees = matrix.sum(axis=0)
    matrix /= 1 + (np.maximum.outer(degrees, degrees) if (matrix == matrix.T).all() else degrees)
    np.fill_diagonal(matrix, 1 - matrix.sum(axis=0))
    return matrix


class Mixing:
    """The mixing matrices of a graph on `size` ranks. Round k uses ``matrices[k % len(matrices)]``.

    `graph` is a name of GRAPHS, a function as above, or matrices of your own, of shape (p, p) or (rounds, p, p).
    ``doubly`` says whether all are doubly stochastic: they preserve the ranks' mean. Raises ValueError unless all are
    column stochastic with a positive diagonal, and the links of all rounds together lead from each rank to each.
    """

    def __init__(self, graph: str | Graph | Array, size: int) -> None:
        found = named(graph)
        if callable(found):
            self.matrices = [weights(links, size) for links in _checked(found(size), size)]
        else:
            try:
                array = np.asarray(found, np.float64)
            except (TypeError, ValueError):
                raise TypeError(f"graph must be a name, a function of the ranks or matrices, not {graph!r}") from None
            self.matrices = list(array if array.ndim == 3 else array[None])
        if not self.matrices:
            raise ValueError("a graph needs at least one round")
        self.size = size
        for matrix in self.matrices:
            self._check(matrix)
        self.doubly = all(np.abs(matrix.sum(axis=1) - 1).max() < NEAR for matrix in self.matrices)
        self.linked = np.logical_or.reduce([matrix > 0 for matrix in self.matrices])
        for linked, text in ((self.linked, "hear from"), (self.linked.T, "reach")):
            if (apart := np.flatnonzero(_distances(linked) < 0)).size:
                raise ValueError(f"the graph is not connected: ranks {apart.tolist()} never {text} rank 0")

    def _check(self, matrix: Array) -> None:
        if matrix.shape != (self.size, self.size):
            raise ValueError(f"{self.size} ranks need mixing matrices of shape {(self.size,) * 2}, not {matrix.shape}")
        if not (np.isfinite(matrix).all() and (matrix >= 0).all() and (matrix.diagonal() > 0).all()):
            raise ValueError("a mixing matrix has elements of at least 0, and above 0 on the diagonal")
        if np.abs(matrix.sum(axis=0) - 1).max() > NEAR:
            raise ValueError("a mixing matrix is column stochastic: what is taken of each rank adds up to 1")

    def rows(self, rank: int) -> list[dict[int, float]]:
        """For each round, the other ranks of whose vectors `rank` takes a part, with these parts."""
        return [{int(j): float(m[rank, j]) for j in np.flatnonzero(m[rank]) if j != rank} for m in self.matrices]

    def targets(self, rank: int) -> list[list[int]]:
        """For each round, the other ranks to which `rank` sends."""
        return [[int(i) for i in np.flatnonzero(matrix[:, rank]) if i != rank] for matrix in self.matrices]

    @property
    def digest(self) -> str:
        """Equal for equal matrices, unlike for others."""
        return hashlib.sha256(np.stack(self.matrices).tobytes()).hexdigest()[:16]

    @property
    def contraction(self) -> float:
        """The rate, from 0 to 1, at which a round reduces the ranks' distance from their mean. 1 - rate is the gap.

        For doubly stochastic matrices, whose product over all T rounds is W, the rate is ``|W - 11'/p|^(1/T)`` in the
        spectral norm: T rounds multiply the distance by at most rate^T. For symmetric matrices and exponential graphs
        this norm is the second largest modulus of the eigenvalues of W. For other matrices the rate is that modulus to
        the power of 1/T, which push-sum approaches after many rounds.
        """
        product = functools.reduce(lambda product, matrix: matrix @ product, self.matrices)
        if self.doubly:
            found = float(np.linalg.norm(product - 1 / self.size, 2))
        else:
            found = float(np.sort(np.abs(np.linalg.eigvals(product)))[-2])
        return (found if found > 1e-14 else 0.0) ** (1 / len(self.matrices))


def _distances(linked: Array) -> Array:
    """The number of links from rank 0 to each rank, -1 without a way; ``linked[i, j]``: there is a link from j to i."""
    distances, new, links = np.full(len(linked), -1), np.arange(len(linked)) == 0, 0
    while new.any():
        distances[new] = links
        new = linked[:, new].any(axis=1) & (distances < 0)
        links += 1
    return distances


def roles(mixing: Mixing) -> list[bool]:
    """For each rank, whether it is active. Each of its partners is then passive (Lian et al., ICML 2018, sec. 3).

    Active are the even ranks, or the ranks at an even distance from rank 0: of these two, those that leave more links
    between active and passive ranks. Links within a role are not used. What is left must be connected; it always is for
    the second, which leaves the links along which distances grow. So any graph will do, also a ring of 3 ranks.
    """
    linked = mixing.linked | mixing.linked.T
    even, near = np.arange(mixing.size) % 2 == 0, _distances(linked) % 2 == 0
    left_even, left_near = (linked & (active[:, None] != active[None, :]) for active in (even, near))
    best = even if left_even.sum() >= left_near.sum() and (_distances(left_even) >= 0).all() else near
    return [bool(active) for active in best]
