"""Two ready-made classifiers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

from .layers import Conv2d, Flatten, Linear, MaxPool2d, ReLU
from .nn import Sequential


def mlp(shape: tuple[int, ...], classes: int, *, rng: np.random.Generator, dtype: DTypeLike = np.float32) -> Sequential:
    """A perceptron with two hidden layers of 128 and 64 units. `shape` is the shape of one sample, of any dimension."""
    inputs = int(np.prod(shape))
    return Sequential(
        Flatten(),
        Linear(inputs, 128, rng=rng, dtype=dtype),
        ReLU(),
        Linear(128, 64, rng=rng, dtype=dtype),
        ReLU(),
        Linear(64, classes, rng=rng, dtype=dtype),
    )


def cnn(shape: tuple[int, ...], classes: int, *, rng: np.random.Generator, dtype: DTypeLike = np.float32) -> Sequential:
    """Two 3 x 3 convolutions (16 and 32 channels), each followed by 2 x 2 max-pooling, and two dense layers.

    `shape` is the shape of one image: (channels, height, width), at least 4 x 4. Raises ValueError for other shapes.
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(
            f"the cnn takes images (channels, height, width) of at least 4 x 4, not samples of shape {shape}"
        )
    channels, height, width = shape
    return Sequential(
        Conv2d(channels, 16, 3, padding=1, rng=rng, dtype=dtype),
        ReLU(),
        MaxPool2d(2),
        Conv2d(16, 32, 3, padding=1, rng=rng, dtype=dtype),
        ReLU(),
        MaxPool2d(2),
        Flatten(),
        Linear(32 * (height // 4) * (width // 4), 64, rng=rng, dtype=dtype),
        ReLU(),
        Linear(64, classes, rng=rng, dtype=dtype),
    )


MODELS: dict[str, Callable[..., Sequential]] = {"mlp": mlp, "cnn": cnn}
