"""Which blocks of a model are on which stage, and what goes between them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .activations import Activations
from .blocks import Framework
from .costs import costs
from .graph import graph_of, is_torch_block
from .numpy_blocks import NumpyFramework
from .partition import balanced, bounds_of
from .placement import Placement
from .stage import Stage
from .tied import holders
from .wiring import Wiring

__all__ = ["Layout"]


class Layout:
    """The blocks of a model on the virtual stages of a `Placement`, of which each stage has as many `chunks`.

    Other arguments and errors as those of `Pipeline`.
    """

    def __init__(self, net: Any, placement: Placement, chunks: int, cut: Any, sample: Any, route: str) -> None:
        self._graph = graph_of(net)
        self._placement, self._route = placement, route
        stages = chunks * placement.stages
        self.framework = _framework(self._graph.blocks)
        blocks = {number: self.framework.block(number, block) for number, block in enumerate(self._graph.blocks)}
        self._names = {number: list(block.parameters) for number, block in blocks.items()}
        if isinstance(cut, str):
            found = costs(self._graph, blocks, self.framework, cut, sample)
            bounds = balanced(found, placement.replicas * chunks, [len(names) for names in self._names.values()])
        else:
            bounds = bounds_of(cut, len(self._graph), stages)
        self.bounds = bounds
        self.wiring = Wiring(self._graph, bounds, route)

    def cut_at(self, bounds: Sequence[int]) -> Layout:
        """The same with other bounds."""
        made = copy.copy(self)
        made.bounds, made.wiring = list(bounds), Wiring(self._graph, bounds, self._route)
        return made

    @property
    def inputs(self) -> int:
        """The number of inputs of the model."""
        return self._graph.inputs

    def describe(self) -> dict[str, Any]:
        """What must be equal on all ranks."""
        return {"blocks": len(self._graph), "sources": self._graph.sources, "route": self._route, "names": self._names}

    def stage(self, virtual: int, activations: Activations, recompute: bool) -> Stage:
        """A virtual stage."""
        modules = {number: self._graph.blocks[number] for number in self.wiring.blocks(virtual)}
        received = self.wiring.received(virtual)
        return Stage(self.framework, modules, self._graph.sources, received, activations, recompute=recompute)

    def model(self, virtuals: Iterable[int], names: Mapping[str, Any]) -> Any:
        """The blocks of these virtual stages as a network."""
        numbers = [number for virtual in virtuals for number in self.wiring.blocks(virtual)]
        return self.framework.model({number: self._graph.blocks[number] for number in numbers}, names)

    def check(self) -> None:
        """Raise ValueError if a rank has no parameters, so that it would have nothing to train."""
        used = {self._placement.stage_of(rank) for held in self.holders().values() for rank in held}
        if idle := sorted(set(range(self._placement.stages)) - used):
            raise ValueError(f"cut at {self.bounds[1:-1]}, stage {idle[0]} has no parameters; give cut=[...] by hand")

    def holders(self) -> dict[str, list[int]]:
        """The ranks that hold each parameter."""
        stages = range(self.wiring.stages)
        used = [(stage, name) for stage in stages for block in self.wiring.blocks(stage) for name in self._names[block]]
        return holders(used, self._placement)

    def is_tied(self) -> bool:
        """Whether ranks share a parameter."""
        return any(len(held) > 1 for held in self.holders().values())


def _framework(blocks: Sequence[Any]) -> Framework:
    """The library that the blocks are from, with the names of all parameters. ValueError if there are none."""
    if is_torch_block(blocks[0]):
        from ..torch.pipeline import TorchFramework

        return TorchFramework(blocks)
    names: dict[int, str] = {}
    parameters = []
    for number, layer in enumerate(blocks):
        for name, parameter in layer.parameters().items():
            names.setdefault(id(parameter), f"{number}.{name}")
            parameters.append(parameter)
    if not parameters:
        raise ValueError("a model needs at least one parameter")
    return NumpyFramework(names, parameters[0].data.dtype)
