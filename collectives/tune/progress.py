"""Shows the progress of measurements: a bar on a terminal if tqdm is installed, else one line per phase."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

__all__ = ["Progress"]


class Progress:
    """Progress of ``total`` steps on standard error, on ranks where ``shown`` is true."""

    def __init__(self, total: int, shown: bool):
        self._shown = shown
        self._bar: Any = None
        if shown and sys.stderr.isatty() and importlib.util.find_spec("tqdm") is not None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit="size", dynamic_ncols=True)

    def begin(self, name: str) -> None:
        """Show ``name`` as what is measured from now on."""
        if self._bar is not None:
            self._bar.set_description(name)
        elif self._shown:
            print(f"measuring {name}", file=sys.stderr, flush=True)

    def step(self) -> None:
        """Count one step."""
        if self._bar is not None:
            self._bar.update()

    def close(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
