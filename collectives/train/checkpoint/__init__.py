"""Checkpoints: the state of a run in a folder, written by all ranks and read by any number of ranks.

A checkpoint is a folder of ``manifest.json`` and the ranks' arrays in the format safetensors. It appears by one rename
when the disk has all of it. Nothing in it is executed when it is read.
"""

from .folder import Folder
from .manifest import Corrupt
from .reading import Checkpoint, load
from .sharded import Shard, Stored
from .slices import Slice, StoredArray
from .writing import save

__all__ = ["Checkpoint", "Corrupt", "Folder", "Shard", "Slice", "Stored", "StoredArray", "load", "save"]
