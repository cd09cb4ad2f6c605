"""What all pictures of this package need: matplotlib, figures without global state, files that are reproducible, and
ticks on every axis, however short its range."""

from __future__ import annotations

import importlib.util
import math
import os
from typing import Any

from .files import replacing

__all__ = ["even_ticks", "figure", "log_ticks", "require_matplotlib", "save"]


def require_matplotlib() -> None:
    """ImportError, which says what to install, if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("drawing needs matplotlib, which is not installed: pip install matplotlib")


def figure(width: float, height: float, **options: Any) -> Any:
    """A matplotlib figure of this size in inches, without pyplot: no global state, no display. ``options`` are those of
    matplotlib's Figure. ImportError without matplotlib."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), **{"dpi": 150, **options})
    FigureCanvasAgg(made)
    return made


def save(made: Any, path: str | os.PathLike[str], **style: Any) -> None:
    """Write a figure to ``path`` (.png, .svg, .pdf), without a date, so that equal figures give equal files.

    ``style`` are parameters of matplotlib's rc. OSError if ``path`` cannot be written; a file there stays as it was.
    """
    from matplotlib import rc_context

    kind = os.path.splitext(path)[1]
    dated = {".svg": "Date", ".pdf": "CreationDate"}.get(kind)
    rc: Any = {"svg.hashsalt": "collectives", **style}
    with rc_context(rc), replacing(path, "wb") as file:
        made.savefig(file, format=kind[1:] or None, metadata={dated: None} if dated else None)


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks for a logarithmic axis, two or more: powers of 10, or 1, 2 and 5 times these, or multiples of one step."""
    first, last = math.floor(math.log10(low)), min(math.ceil(math.log10(high)), 308)
    exponents = range(first, last + 1, max(1, (last - first) // 7))
    for factors in ((1,), (1, 2, 5)):
        found = [factor * 10.0**i for i in exponents for factor in factors if low <= factor * 10.0**i <= high]
        if len(found) > 1:
            return found
    return even_ticks(low, high)


def even_ticks(low: float, high: float) -> list[float]:
    """Two to six multiples of a step, which is 1, 2 or 5 times a power of 10; ``low`` must be less than ``high``."""
    unit = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    step = next(factor * unit for factor in (1, 2, 5, 10, 20, 50) if (high - low) / (factor * unit) <= 5)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
