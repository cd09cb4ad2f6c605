"""A whole network with its linear layers cut apart, for NumPy's networks."""

from __future__ import annotations

from typing import Any

from ..models.layers import Linear, ReLU
from ..models.nn import Sequential
from .layers import ColumnParallelLinear, RowParallelLinear


def cut_linear(net: Sequential, comm: Any) -> Sequential:
    """`net` with every `Linear` cut over the ranks of `comm`; other layers stay whole, and are those of `net`.

    Two linear layers with nothing but ReLU between them are cut by columns and by rows, so that what is between them
    is cut, too (Shoeybi et al. 2019, sec. 3). A layer without such a partner is cut by columns, and its result is
    gathered.

    `net` is equal on all ranks. Names of parameters stay. Collective. ValueError on all ranks if a layer has fewer
    outputs, or inputs, than there are ranks, and for a layer of a class derived from `Linear`, such as one that is cut
    already.
    """
    layers: list[Any] = list(net.layers)
    linear = [number for number, layer in enumerate(layers) if isinstance(layer, Linear)]
    for number in linear:
        if type(layers[number]) is not Linear:
            raise ValueError(f"layer {number} is a {type(layers[number]).__name__}, and only a Linear can be cut")
    while linear:
        first = linear.pop(0)
        if linear and all(isinstance(layer, ReLU) for layer in layers[first + 1 : linear[0]]):
            second = linear.pop(0)
            layers[first] = ColumnParallelLinear(layers[first], comm)
            layers[second] = RowParallelLinear(layers[second], comm)
        else:
            layers[first] = ColumnParallelLinear(layers[first], comm, gather_output=True)
    return Sequential(*layers)
