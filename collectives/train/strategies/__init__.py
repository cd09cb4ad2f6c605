"""Training strategies: how ranks combine gradients or parameters. One file for each strategy."""

from .allreduce import AllReduce
from .base import Strategy
from .nocomm import NoComm

__all__ = ["AllReduce", "NoComm", "Strategy"]
