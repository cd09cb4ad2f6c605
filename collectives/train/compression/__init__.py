"""Gradient compression: fewer bytes for the mean of the ranks' gradients. One file for each method."""

from .base import Compression
from .int8 import Int8
from .powersgd import PowerSGD
from .topk import TopK
from .wire import BFloat16Wire, Float16Wire

__all__ = ["BFloat16Wire", "Compression", "Float16Wire", "Int8", "PowerSGD", "TopK"]
