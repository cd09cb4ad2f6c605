"""A text that comes with Python, as samples for a model of its characters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..models.nn import Array


class Text(NamedTuple):
    """Samples of a text: ``x`` and ``y`` (samples, context) are numbers of characters in ``alphabet``.

    ``y[i, j]`` is the character that follows ``x[i, j]``.
    """

    x: Array
    y: Array
    alphabet: str


def characters(context: int, *, limit: int = 100_000) -> Text:
    """The first `limit` characters of Python's help texts (the module ``pydoc_data.topics``), in samples of `context`.

    Samples do not overlap; the last one that would be shorter is left out. Other versions of Python have other texts.
    Raises ValueError for a `context` below 1 or as long as the text.
    """
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))[:limit]
    count = (len(text) - 1) // context if context >= 1 else 0
    if count < 1:
        raise ValueError(f"context must be from 1 to {len(text) - 1}, not {context}")
    alphabet = "".join(sorted(set(text)))
    number = {character: i for i, character in enumerate(alphabet)}
    codes = np.array([number[character] for character in text[: count * context + 1]], np.int64)
    return Text(codes[:-1].reshape(count, context), codes[1:].reshape(count, context), alphabet)
