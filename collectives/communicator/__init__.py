"""What users hold in their hands."""

from .communicator import Cartcomm, Communicator, Distgraphcomm, Graphcomm, Record

__all__ = ["Cartcomm", "Communicator", "Distgraphcomm", "Graphcomm", "Record"]
