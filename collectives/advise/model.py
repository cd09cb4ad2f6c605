"""What is trained, as a chain of blocks: parameters, operations, and what is kept and sent for a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Block", "Model", "Precision", "Shape", "perceptron", "shape_of", "transformer"]

ASPECT = 128  # width over layers, of a transformer of which only the parameters are known


@dataclass(frozen=True)
class Precision:
    """Bytes for each parameter: of the weights, of the gradients, and of what the optimizer keeps.

    The default is Adam in mixed precision (Rajbhandari et al. 2020, "ZeRO", sec. 3.1): weights and gradients of 16
    bits, and 12 bytes of float32 weights and moments. Megatron-LM adds up gradients in float32, so has 4 bytes there.
    """

    weight: float = 2
    gradient: float = 2
    optimizer: float = 12


@dataclass(frozen=True)
class Block:
    """A part of the model that no pipeline cuts. Operations and bytes are those of one sample.

    * ``cut``, ``whole``: parameters of which each tensor rank has a part, and those that all of them have.
    * ``flops``: operations of the forward pass; the backward pass has twice as many.
    * ``kept_cut``, ``kept_whole``: bytes kept for the backward pass, which tensor ranks share or all have.
    * ``attention``: bytes that tensor ranks share, which can be computed again by ``attention_flops``.
    * ``border``: bytes of the block's input; 0 for the first one.
    * ``reduced``: bytes of an all-reduce of tensor ranks, of which a pass makes ``forward_calls`` or
      ``backward_calls``.
    """

    name: str
    cut: float = 0
    whole: float = 0
    flops: float = 0
    kept_cut: float = 0
    kept_whole: float = 0
    attention: float = 0
    attention_flops: float = 0
    border: float = 0
    reduced: float = 0
    forward_calls: int = 0
    backward_calls: int = 0

    @property
    def parameters(self) -> float:
        """All parameters of the block."""
        return self.cut + self.whole


@dataclass(frozen=True, eq=False)  # models are keys of caches, and not compared
class Model:
    """A chain of blocks.

    ``tied`` is the number of parameters that the last block shares with the first one: a stage that has both has them
    once. ``heads`` is what tensor ranks must divide, 0 if they need not.
    """

    name: str
    blocks: tuple[Block, ...]
    tied: float = 0
    heads: int = 0
    precision: Precision = field(default_factory=Precision)

    @property
    def parameters(self) -> float:
        """All parameters; shared ones count once."""
        return sum(block.parameters for block in self.blocks) - self.tied

    @property
    def flops(self) -> float:
        """Operations of the forward pass of a sample."""
        return sum(block.flops for block in self.blocks)


@dataclass(frozen=True)
class Shape:
    """A transformer. ``sequence`` is the number of positions of a sample."""

    layers: int
    width: int
    heads: int
    sequence: int = 2048
    vocabulary: int = 51200

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "sequence", "vocabulary"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, not {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"heads: {self.heads} do not divide a width of {self.width}")


def shape_of(parameters: float, sequence: int = 2048, vocabulary: int = 51200) -> Shape:
    """A transformer of about so many parameters, whose width is about 128 times its layers.

    That is GPT-3's form (Brown et al. 2020, table 2.1: 96 layers of 12288). Widths and layers are round numbers, so
    that they can be cut. ValueError for fewer parameters than one layer and the words have.
    """
    ideal = ASPECT * (parameters / (12 * ASPECT**2)) ** (1 / 3) if 0 < parameters < math.inf else 0.0
    unit, head = (1024, 128) if ideal >= 2048 else (128, 64)
    width = max(1, round(ideal / unit)) * unit
    layers = round((parameters - vocabulary * width) / (12 * width**2)) if ideal else 0
    if layers >= 24:
        layers = 4 * round(layers / 4)
    if layers < 1:
        raise ValueError(
            f"{parameters:g} parameters are less than one layer and {vocabulary} words; give --layers and --width"
        )
    return Shape(layers, width, width // head, sequence, vocabulary)


def transformer(shape: Shape, precision: Precision | None = None, element: int = 2, tied: bool = True) -> Model:
    """A transformer as in GPT-2, whose activations have ``element`` bytes.

    Parameters and operations are those of Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
    Clusters Using Megatron-LM", eq. 2 and 3. What is kept is that of Korthikanti et al. 2022, "Reducing Activation
    Recomputation in Large Transformer Models", eq. 1 and 2: for 16 bits, s h (10 + 24 / t) + 5 a s^2 / t bytes in a
    layer on t tensor ranks, and 4 s h (1 + v / h) at the end. A layer has two all-reduces of s h elements in each pass
    (Shoeybi et al. 2019, "Megatron-LM", sec. 3). ``tied``: the last layer uses the words' vectors of the first one.
    """
    s, h, a, v = shape.sequence, shape.width, shape.heads, shape.vocabulary
    border = float(s * h * element)
    first = Block("embedding", cut=v * h, whole=s * h, kept_whole=s * h, reduced=border, forward_calls=1)
    layer = Block(
        "layer",
        cut=12 * h * h + 7 * h,  # of the biases, those of the rows that a rank has
        whole=6 * h,  # two norms, and two biases that are added to sums
        flops=24 * s * h * h + 4 * s * s * h,
        kept_whole=s * h * (4 * element + 2),
        kept_cut=12 * s * h * element,
        attention=a * s * s * (2 * element + 1),
        attention_flops=4 * s * s * h,
        border=border,
        reduced=border,
        forward_calls=2,
        backward_calls=2,
    )
    last = Block(
        "head", cut=v * h, whole=2 * h, flops=2 * s * h * v, kept_whole=2 * border, kept_cut=4 * s * v,
        border=border, reduced=border, backward_calls=1,
    )  # fmt: skip
    blocks = (first, *(layer for _ in range(shape.layers)), last)
    name = f"transformer of {shape.layers} layers, width {h}, {a} heads, {s} positions, {v} words"
    return Model(name, blocks, v * h if tied else 0, a, precision or Precision())


def perceptron(blocks: int, width: int, hidden: int, precision: Precision | None = None, element: int = 4) -> Model:
    """Blocks of two linear layers with a ReLU between them, from ``width`` to ``hidden`` and back; a sample is a row.

    The first layer of a block is cut by columns, the second one by rows (`collectives.train.tensor`). Kept are the
    inputs of both; the ReLU keeps its result, which is the second one's input.
    """
    if min(blocks, width, hidden) < 1:
        raise ValueError(f"a perceptron has at least one block, unit and hidden unit, not {blocks}, {width}, {hidden}")
    nbytes = float(width * element)
    block = Block(
        "block", cut=2 * width * hidden + hidden, whole=width, flops=4 * width * hidden, kept_whole=nbytes,
        kept_cut=hidden * element, border=nbytes, reduced=nbytes, forward_calls=1, backward_calls=1,
    )  # fmt: skip
    first = Block(**{**vars(block), "border": 0.0, "backward_calls": 0})
    name = f"perceptron of {blocks} blocks, width {width}, hidden {hidden}"
    return Model(name, (first, *(block for _ in range(blocks - 1))), 0, 0, precision or Precision(4, 4, 0))
