"""``python -m collectives train``: data-parallel training on real data, with a control that does not communicate."""

from .job import main
from .options import add_arguments

__all__ = ["add_arguments", "main"]
