"""Checkpoints: the state of a run in a folder, written by all ranks and read by any number of ranks."""

from .sharded import Shard, Stored

__all__ = ["Shard", "Stored"]
