"""Errors that concern several ranks.

Wrong arguments raise TypeError or ValueError instead, before anything is sent.
"""


class CollectiveError(RuntimeError):
    """A collective could not be completed; its communicator is broken from then on, unless nothing was sent for it.

    ``origin`` is the first line of the other rank's error that caused this one, or None.
    """

    origin: str | None = None


class CollectiveMismatch(CollectiveError):
    """The ranks' calls differ in collective, length, type, op, root or algorithm."""


class CollectiveTimeout(CollectiveError):
    """A collective was not complete within its timeout.

    The message names the ranks that it waits for, unless the MPI library serves the call, which does not tell.
    """


class PeerFailure(CollectiveError):
    """A rank makes no more calls: its process died, its program ended, or it became another program (by exec)."""


def brief(error: BaseException) -> str:
    """The class of an exception and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
