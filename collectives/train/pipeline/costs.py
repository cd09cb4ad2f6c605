"""What each block of a model costs, for a balanced cut."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from typing import Any

from ..tensor.states import cut_parameters
from .blocks import Block, Framework
from .graph import Graph
from .partition import BALANCES

__all__ = ["costs"]

REPEATS = 5


def costs(graph: Graph, blocks: Mapping[int, Block], framework: Framework, by: str, sample: Any) -> list[float]:
    """A number for each block: its parameters (those that are cut count whole), floating-point operations, or seconds.

    A parameter that several blocks share counts in each. "flops" and "time" need `sample`, an input of the model, of
    shape (n, ...), or a tuple of all inputs. Times are those of a forward pass and of the gradients of inputs, medians
    of 5. Raises ValueError for another word.
    """
    if by not in BALANCES:
        raise ValueError(f"cut must be one of {', '.join(BALANCES)}, or the first blocks of the stages, not {by!r}")
    if by == "parameters":
        return [_size(framework, block, graph.blocks[number]) for number, block in blocks.items()]
    if sample is None:
        raise ValueError(f"cut={by!r} needs a sample of the input: Pipeline(..., sample=x)")
    inputs = sample if isinstance(sample, tuple | list) else (sample,)
    values = {-1 - i: framework.incoming(framework.part(x, 0, len(x))) for i, x in enumerate(inputs)}
    found = []
    for number, block in blocks.items():
        read = [values[source] for source in graph.sources[number]]
        state = framework.passing_state(graph.blocks)
        found.append(block.flops(read) if by == "flops" else _seconds(block, read))
        framework.set_passing_state(graph.blocks, state)
        values[number], _ = block.forward(read, [False] * len(read), False)
        framework.set_passing_state(graph.blocks, state)
    return found


def _size(framework: Framework, block: Block, module: Any) -> float:
    """The number of elements of a block's parameters; of those that are cut over a tensor axis, of whole ones, since
    all ranks of that axis need the same stages."""
    cuts = {id(parameter): cut for parameter, cut, _ in cut_parameters([module])}
    total = 0
    for parameter in block.parameters.values():
        shape = list(framework.values(parameter).shape)
        if (cut := cuts.get(id(parameter))) is not None:
            shape[cut.axis] = cut.total
        total += math.prod(shape)
    return float(total)


def _seconds(block: Block, inputs: list[Any]) -> float:
    """The median time of a forward pass and of the gradients of the inputs, which need no place to be added to."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        output, saved = block.forward(inputs, [True] * len(inputs), True)
        block.backward_input(saved, output)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
