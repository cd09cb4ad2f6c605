"""Errors that concern several ranks.

Wrong arguments are plain TypeError and ValueError, raised before anything is sent.
"""


class CollectiveError(RuntimeError):
    """A collective could not be completed; the communicator is broken from then on, unless nothing was sent for it.

    ``origin`` is the first line of another rank's error that this one comes from, or None.
    """

    origin: str | None = None


class CollectiveMismatch(CollectiveError):
    """The ranks' calls differ in collective, length, type, op, root or algorithm."""


class CollectiveTimeout(CollectiveError):
    """The collective was not complete in time; the message names the ranks waited for."""


class PeerFailure(CollectiveError):
    """A rank makes no more calls: its process died, its program ended, or it became another program (by exec)."""
