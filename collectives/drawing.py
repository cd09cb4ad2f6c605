"""What all pictures of this package need: matplotlib, figures without global state, and files that are reproducible."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

__all__ = ["figure", "require_matplotlib", "save"]


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

    ``style`` are parameters of matplotlib's rc. OSError if ``path`` cannot be written.
    """
    from matplotlib import rc_context

    dated = {".svg": "Date", ".pdf": "CreationDate"}.get(os.path.splitext(path)[1])
    rc: Any = {"svg.hashsalt": "collectives", **style}
    with rc_context(rc):
        made.savefig(path, metadata={dated: None} if dated else None)
