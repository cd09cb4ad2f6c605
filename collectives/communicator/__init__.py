"""The public communicator classes and the record of a call."""

from .communicator import Cartcomm, Communicator, Distgraphcomm, Graphcomm, Record
from .started_objects import ObjectRequest

__all__ = ["Cartcomm", "Communicator", "Distgraphcomm", "Graphcomm", "ObjectRequest", "Record"]
