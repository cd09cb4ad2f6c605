"""Which results of blocks go from which stage to which, if a graph is cut into stages."""

from __future__ import annotations

from collections.abc import Sequence

from .graph import Graph

__all__ = ["ROUTES", "Wiring"]

ROUTES = ("relay", "direct")
Edge = tuple[int, int]


class Wiring:
    """The edges between the virtual stages of a graph that is cut at `bounds`, and the values that go along each.

    ``values[source, target]`` are the blocks whose results virtual stage `source` sends to `target`, in order; their
    gradients go back. `route` says how a value gets to a stage that is not the next one: "relay" hands it on from
    stage to stage, so that only neighbours talk, "direct" sends it at once to every stage that reads it.

    Raises ValueError for another route.
    """

    def __init__(self, graph: Graph, bounds: Sequence[int], route: str) -> None:
        if route not in ROUTES:
            raise ValueError(f"route must be one of {', '.join(ROUTES)}, not {route!r}")
        self.bounds, self.stages = list(bounds), len(bounds) - 1
        self._home = [stage for stage in range(self.stages) for _ in range(bounds[stage], bounds[stage + 1])]
        self.values: dict[Edge, list[int]] = {}
        for block in range(len(graph)):
            for edge in self._way(block, graph.readers(block), route):
                self.values.setdefault(edge, []).append(block)

    def _way(self, block: int, readers: Sequence[int], route: str) -> list[Edge]:
        home = self._home[block]
        targets = sorted({self._home[reader] for reader in readers} - {home})
        if route == "direct" or not targets:
            return [(home, target) for target in targets]
        return [(stage, stage + 1) for stage in range(home, targets[-1])]

    @property
    def edges(self) -> list[Edge]:
        """The pairs (source, target) of virtual stages between which something goes, in order."""
        return sorted(self.values)

    def blocks(self, stage: int) -> range:
        """The blocks of a virtual stage."""
        return range(self.bounds[stage], self.bounds[stage + 1])

    def received(self, stage: int) -> list[int]:
        """The values that come to a virtual stage, each once."""
        return [value for (_, target), values in sorted(self.values.items()) if target == stage for value in values]

    def sent(self, stage: int) -> dict[int, list[int]]:
        """The values that a virtual stage sends, by target."""
        return {target: values for (source, target), values in sorted(self.values.items()) if source == stage}
