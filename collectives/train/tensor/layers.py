"""Linear layers cut apart, for NumPy's networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..models.layers import Linear
from ..models.nn import Array, Parameter
from .cuts import Cut, layer_cut
from .pairs import COPY, GATHER, REDUCE, SPLIT


class ColumnParallelLinear(Linear):
    """A `Linear` of which each rank computes a part of the outputs (Shoeybi et al. 2019, sec. 3: A = [A1, A2]).

    `whole` is the whole layer, equal on all ranks of `comm`: made with the same seed, for example. Rank r keeps copies
    of ``sizes[r]`` rows of its weight and bias; by default the outputs are cut evenly, sizes differ by at most 1.

    The input x (samples, inputs) is the same on all ranks. The result is this rank's part (samples, sizes[r]); with
    `gather_output` it is whole, (samples, outputs). A rank gives an all-reduce ``samples * inputs`` elements in the
    backward pass, and with `gather_output` an all-gather its part of the result in the forward pass.

    ``cuts`` has the `Cut` of each parameter. Collective. Raises ValueError on all ranks if their layers differ, if
    `sizes` do not fit, or if a rank would get no output.
    """

    def __init__(
        self, whole: Linear, comm: Any, *, sizes: Sequence[int] | None = None, gather_output: bool = False
    ) -> None:
        outputs, inputs = whole.weight.data.shape
        cut = layer_cut("ColumnParallelLinear", "outputs", outputs, comm, sizes, inputs=inputs, gather=gather_output)
        self.cuts, self.comm = {"weight": cut, "bias": cut}, comm
        self.output = Cut(-1, cut.sizes) if gather_output else None
        self.weight = Parameter(cut.part(whole.weight.data, comm.rank).copy())
        self.bias = Parameter(cut.part(whole.bias.data, comm.rank).copy())

    def forward(self, x: Array) -> tuple[Array, Array]:
        """See the class."""
        y, saved = super().forward(COPY.forward(x, self.comm, None))
        return y if self.output is None else GATHER.forward(y, self.comm, self.output), saved

    def backward_weight(self, saved: Array, grad: Array) -> None:
        """See `Layer.backward_weight`. `grad` is that of the result, equal on all ranks if the result is whole."""
        super().backward_weight(saved, self._own(grad))

    def backward_input(self, saved: Array, grad: Array) -> Array:
        """See `Layer.backward_input`; `grad` as in `backward_weight`."""
        return COPY.backward(super().backward_input(saved, self._own(grad)), self.comm, None)

    def _own(self, grad: Array) -> Array:
        """The gradient of this rank's part of the result."""
        return grad if self.output is None else GATHER.backward(grad, self.comm, self.output)


class RowParallelLinear(Linear):
    """A `Linear` of which each rank has a part of the inputs (Shoeybi et al. 2019, sec. 3: A = [A1; A2]).

    `whole` is the whole layer, equal on all ranks of `comm`. Rank r keeps a copy of ``sizes[r]`` columns of its weight,
    and the whole bias; by default the inputs are cut evenly, sizes differ by at most 1.

    The input is this rank's part, (samples, sizes[r]), as a `ColumnParallelLinear` returns it; with `split_input` it is
    whole, (samples, inputs), and the layer takes its part. The result (samples, outputs) is the same on all ranks. A
    rank gives an all-reduce ``samples * outputs`` elements in the forward pass, and with `split_input` an all-gather
    its part of the input's gradient in the backward pass.

    ``cuts`` has the `Cut` of each parameter that is cut. Collective. Raises ValueError on all ranks if their layers
    differ, if `sizes` do not fit, or if a rank would get no input.
    """

    def __init__(
        self, whole: Linear, comm: Any, *, sizes: Sequence[int] | None = None, split_input: bool = False
    ) -> None:
        outputs, inputs = whole.weight.data.shape
        cut = layer_cut("RowParallelLinear", "inputs", inputs, comm, sizes, 1, outputs=outputs, split=split_input)
        self.cuts, self.comm = {"weight": cut}, comm
        self.input = Cut(-1, cut.sizes) if split_input else None
        self.weight = Parameter(cut.part(whole.weight.data, comm.rank).copy())
        self.bias = Parameter(whole.bias.data.copy())

    def forward(self, x: Array) -> tuple[Array, Array]:
        """See the class. Raises ValueError for an input of another shape."""
        if self.input is not None:
            x = SPLIT.forward(x, self.comm, self.input)
        if x.ndim != 2 or x.shape[1] != self.weight.data.shape[1]:
            raise ValueError(f"RowParallelLinear takes (samples, {self.weight.data.shape[1]}) here, got {x.shape}")
        return REDUCE.forward(x @ self.weight.data.T, self.comm, None) + self.bias.data, x

    def backward_weight(self, saved: Array, grad: Array) -> None:
        """See `Layer.backward_weight`. `grad` is equal on all ranks, and so is the gradient of the bias."""
        super().backward_weight(saved, REDUCE.backward(grad, self.comm, None))

    def backward_input(self, saved: Array, grad: Array) -> Array:
        """See `Layer.backward_input`; `grad` as in `backward_weight`."""
        below = super().backward_input(saved, REDUCE.backward(grad, self.comm, None))
        return below if self.input is None else SPLIT.backward(below, self.comm, self.input)
