"""Linear layers cut apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import linear

from ...tensor.cuts import Cut, layer_cut, place
from ...tensor.pairs import COPY, GATHER, GATHER_PARTIAL, REDUCE, REDUCE_SCATTER, SPLIT
from .pairs import paired


def part(whole: torch.Tensor, cut: Cut, comm: Any) -> torch.nn.Parameter:
    """A parameter that is a copy of this rank's part of `whole`, and is trained if that is."""
    rank, _ = place(comm)
    mine = cut.part(whole.detach(), rank).clone(memory_format=torch.contiguous_format)
    return torch.nn.Parameter(mine, requires_grad=whole.requires_grad)


class ColumnParallelLinear(torch.nn.Module):
    """A linear layer of which each rank computes a part of the outputs (Shoeybi et al. 2019, sec. 3).

    `whole` is the whole layer, equal on all ranks of `comm`: made with the same seed, for example. Rank r keeps copies
    of ``sizes[r]`` rows of its weight and bias; by default the outputs are cut evenly, sizes differ by at most 1.
    Without `comm` one rank has all.

    ``layer(x)``: x (..., inputs) is the same on all ranks, the result is this rank's part (..., sizes[r]); with
    `gather_output` it is whole, (..., outputs). ``layer(x, sequence)``: x is this rank's part of the activations, cut
    along an axis of positions as the `Cut` `sequence` says (Korthikanti et al. 2022, sec. 4.2.2). They are gathered
    first, and in the backward pass their gradient is reduced and scattered.

    ``cuts`` has the `Cut` of each parameter. Making one is collective. Raises ValueError on all ranks if their layers
    differ, if `sizes` do not fit, or if a rank would get no output.
    """

    def __init__(
        self,
        whole: torch.nn.Linear,
        comm: Any = None,
        *,
        sizes: Sequence[int] | None = None,
        gather_output: bool = False,
    ) -> None:
        super().__init__()
        settings = {"inputs": whole.in_features, "bias": whole.bias is not None, "gather": gather_output}
        cut = layer_cut("ColumnParallelLinear", "outputs", whole.out_features, comm, sizes, **settings)
        self.comm, self.cuts = comm, {"weight": cut}
        self.output = Cut(-1, cut.sizes) if gather_output else None
        self.weight = part(whole.weight, cut, comm)
        if whole.bias is None:
            self.register_parameter("bias", None)
        else:
            self.cuts["bias"] = cut
            self.bias = part(whole.bias, cut, comm)

    def forward(self, x: torch.Tensor, sequence: Cut | None = None) -> torch.Tensor:
        """See the class."""
        x = paired(COPY if sequence is None else GATHER_PARTIAL, x, self.comm, sequence)
        y = linear(x, self.weight, self.bias)
        return y if self.output is None else paired(GATHER, y, self.comm, self.output)


class RowParallelLinear(torch.nn.Module):
    """A linear layer of which each rank has a part of the inputs (Shoeybi et al. 2019, sec. 3).

    `whole` is the whole layer, equal on all ranks of `comm`. Rank r keeps a copy of ``sizes[r]`` columns of its weight,
    and the whole bias; by default the inputs are cut evenly, sizes differ by at most 1. Without `comm` one rank has
    all.

    ``layer(x)``: x is this rank's part (..., sizes[r]), as a `ColumnParallelLinear` returns it; with `split_input` it
    is whole, (..., inputs). The result (..., outputs) is the same on all ranks. ``layer(x, sequence)`` returns this
    rank's part of it, cut along an axis of positions as the `Cut` `sequence` says (Korthikanti et al. 2022, sec.
    4.2.2); the gradient of the bias is then summed over the ranks in the backward pass.

    ``cuts`` has the `Cut` of each parameter that is cut. Making one is collective. Raises ValueError on all ranks if
    their layers differ, if `sizes` do not fit, or if a rank would get no input.
    """

    def __init__(
        self,
        whole: torch.nn.Linear,
        comm: Any = None,
        *,
        sizes: Sequence[int] | None = None,
        split_input: bool = False,
    ) -> None:
        super().__init__()
        settings = {"outputs": whole.out_features, "bias": whole.bias is not None, "split": split_input}
        cut = layer_cut("RowParallelLinear", "inputs", whole.in_features, comm, sizes, axis=1, **settings)
        self.comm, self.cuts = comm, {"weight": cut}
        self.input = Cut(-1, cut.sizes) if split_input else None
        self.weight = part(whole.weight, cut, comm)
        bias = whole.bias
        if bias is not None:
            bias = torch.nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
        self.register_parameter("bias", bias)

    def forward(self, x: torch.Tensor, sequence: Cut | None = None) -> torch.Tensor:
        """See the class."""
        if self.input is not None:
            x = paired(SPLIT, x, self.comm, self.input)
        y = linear(x, self.weight)
        y = paired(REDUCE if sequence is None else REDUCE_SCATTER, y, self.comm, sequence)
        if self.bias is None:
            return y
        return y + (self.bias if sequence is None else paired(COPY, self.bias, self.comm))
