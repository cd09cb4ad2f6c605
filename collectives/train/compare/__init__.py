"""``python -m collectives compare``: several strategies on the same data, with ranks that may be slow."""

from .job import main
from .options import add_arguments

__all__ = ["add_arguments", "main"]
