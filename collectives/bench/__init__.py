"""Benchmarks in the format of the OSU Micro-Benchmarks: ``python -m collectives bench NAME``."""

from __future__ import annotations

from .cli import script as main

__all__ = ["main"]
