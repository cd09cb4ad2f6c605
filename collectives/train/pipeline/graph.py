"""``Graph``: a model as blocks in order, each of which reads inputs of the model or results of earlier blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..models.nn import Sequential
from ..tensors import loaded

__all__ = ["Graph", "graph_of", "is_torch_block"]


class Graph:
    """A directed acyclic graph of blocks, which a pipeline cuts between blocks.

    A block is a layer of this package, or a ``torch.nn.Module`` that takes and returns tensors; a graph has blocks of
    one kind. Each `add` returns a number, by which later blocks name the result as something they read::

        graph = train.Graph()
        x = graph.input()
        hidden = graph.add(Linear(8, 8, rng=rng), x)
        graph.add(Add(), graph.add(ReLU(), hidden), hidden)     # a skip connection

    The result of the last block is that of the model. ``graph.input(1)`` is the second one of a model with several
    inputs. Parameters are named ``<number of the block>.<name in the block>``. Blocks may share parameters.
    """

    def __init__(self) -> None:
        self.blocks: list[Any] = []
        self.sources: list[tuple[int, ...]] = []  # what each block reads: blocks from 0, inputs of the model below 0

    def __len__(self) -> int:
        return len(self.blocks)

    def input(self, number: int = 0) -> int:
        """The number by which blocks read an input of the model, counted from 0. ValueError for a negative one."""
        if number < 0:
            raise ValueError(f"inputs are counted from 0, not {number}")
        return -1 - number

    def add(self, block: Any, *sources: int) -> int:
        """Add a block that reads `sources` (default: the block before, or the first input). Returns its number.

        Raises ValueError for a source that is no earlier block and no input.
        """
        number = len(self.blocks)
        sources = sources or (number - 1,)
        for source in sources:
            if source >= number:
                raise ValueError(f"block {number} cannot read block {source}: there are {number} blocks before it")
        self.blocks.append(block)
        self.sources.append(sources)
        return number

    def readers(self, value: int) -> list[int]:
        """The blocks that read a result or an input, in order."""
        return [block for block, sources in enumerate(self.sources) if value in sources]

    @property
    def inputs(self) -> int:
        """The number of inputs of the model."""
        return max((-source for sources in self.sources for source in sources if source < 0), default=0)


def is_torch_block(block: Any) -> bool:
    """Whether `block` is a ``torch.nn.Module``. torch is not imported for that."""
    torch = loaded()
    return torch is not None and isinstance(block, torch.nn.Module)


def graph_of(net: Any) -> Graph:
    """`net` as a graph: a `Graph`, a `Sequential`, or a ``torch.nn.Sequential``.

    Raises TypeError for another module, since its blocks are not known; ValueError for a graph without blocks, or one
    with a block whose result nobody reads.
    """
    graph = net if isinstance(net, Graph) else _chain(_children(net))
    if not graph.blocks:
        raise ValueError("a pipeline needs a model with at least one block")
    for block in range(len(graph) - 1):
        if not graph.readers(block):
            raise ValueError(f"nothing reads the result of block {block}; that of the model is the last block's")
    if len({is_torch_block(block) for block in graph.blocks}) > 1:
        raise TypeError("a graph has layers of this package or torch modules, not both")
    return graph


def _children(net: Any) -> Iterable[Any]:
    if isinstance(net, Sequential):
        return net.layers
    torch = loaded()
    if torch is not None and isinstance(net, torch.nn.Sequential):
        return list(net)
    raise TypeError(
        f"a pipeline cuts a train.Sequential, a torch.nn.Sequential or a train.Graph, not {type(net).__name__}"
    )


def _chain(blocks: Iterable[Any]) -> Graph:
    graph = Graph()
    for block in blocks:
        graph.add(block)
    return graph
