"""How ranks combine what they learn: one short file each."""

from .allreduce import AllReduce
from .base import Strategy
from .nocomm import NoComm

__all__ = ["AllReduce", "NoComm", "Strategy"]
