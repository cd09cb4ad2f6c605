"""The order of a call on arrays of a GPU with what the program has its streams do before and after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .arrays import DEFAULT_STREAM, Array
from .lanes import Lane

__all__ = ["Order"]


@dataclass(eq=False)
class Order:
    """The ``arrays`` of a call on ``lane``, in order with ``stream``, or with the streams that the arrays name.

    ``followed``: the lane's streams wait already for what the program's have to do before the call.
    """

    lane: Lane
    arrays: Sequence[Array]
    stream: int | None
    followed: bool = False

    @property
    def streams(self) -> set[int | None]:
        """The streams of the arrays; None stands for one that is not known."""
        return {self.stream} if self.stream is not None else {array.stream for array in self.arrays}

    def follow(self, *own: int) -> None:
        """Let own streams wait for what the arrays' streams have to do now."""
        if self.followed:
            return
        with self.lane.moment() as event:
            for stream in self.streams:
                self.lane.driver.record(event, DEFAULT_STREAM if stream is None else stream)
                for one in own:
                    self.lane.driver.order(one, event)
        for array in self.arrays:
            if None in self.streams and array.exports:
                for one in own:
                    array.export(one)

    def lead(self, own: int, deadline: float | None) -> None:
        """Let the arrays' streams wait for an own stream; where a stream is unknown, wait here."""
        with self.lane.moment() as event:
            self.lane.driver.record(event, own)
            for stream in self.streams:
                if stream is None:
                    self.lane.wait(event, deadline)
                else:
                    self.lane.driver.order(stream, event)
