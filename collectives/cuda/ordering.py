"""The order of a call on arrays of a GPU with what the program has its streams do before and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .arrays import DEFAULT_STREAM, THREADS_STREAM, Array
from .lanes import Lane

__all__ = ["Order"]


@dataclass(eq=False)
class Order:
    """The ``arrays`` of a call on ``lane``, in order with ``stream``, or with the streams that the arrays name now.

    RuntimeError if such a stream is being captured in a graph: a call that the host takes part in cannot be.
    """

    lane: Lane
    arrays: Sequence[Array]
    stream: int | None
    streams: set[int | None] = field(init=False)  # None stands for one that is not known
    followed: tuple[int, ...] = field(init=False, default=())  # own streams that wait already for what comes before

    def __post_init__(self) -> None:
        self.streams = {self.stream} if self.stream is not None else {array.stream for array in self.arrays}
        with self.lane:
            for stream in self.streams:
                if self.lane.driver.capturing(DEFAULT_STREAM if stream is None else stream):
                    raise RuntimeError("the stream is being captured in a CUDA graph, where no collective can be")

    def follow(self, *own: int) -> None:
        """Let own streams wait for what the arrays' streams have to do now."""
        own = tuple(one for one in own if one not in self.followed)
        if not own:
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

    def hand_over(self, *own: int) -> None:
        """Let own streams wait as :meth:`follow` does, before another thread makes the call and leads.

        That thread must not look at streams of which the program may have others by then. Nor has it the default
        stream of this thread, which counts as not known from now on.
        """
        self.follow(*own)
        self.followed = own
        self.streams = {None if stream == THREADS_STREAM else stream for stream in self.streams}

    def lead(self, own: int, deadline: float | None, check: Callable[[], None] | None = None) -> None:
        """Let the arrays' streams wait for an own stream; where a stream is unknown, wait here (:meth:`Lane.wait`)."""
        with self.lane.moment() as event:
            self.lane.driver.record(event, own)
            for stream in self.streams:
                if stream is None:
                    self.lane.wait(event, deadline, check)
                else:
                    self.lane.driver.order(stream, event)
