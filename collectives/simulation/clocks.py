"""Simulation of rounds in which no two messages share a port: a clock for each rank, and whole rounds as arrays.

All messages of a round need what the round before has brought. It gives the same times as the events of
csrc/simulate/ where both apply. A round of 100,000 messages takes about a millisecond. When a round that is repeated
has moved all clocks on by one and the same time, it does so for ever: times depend on differences of clocks only. Then
the rest of the repetitions takes one multiplication.
"""

from __future__ import annotations

import numpy as np

from .network import Network
from .rounds import Messages

__all__ = ["Clocks"]

_STEADY = 1e-9  # relative difference of the clocks' steps at which they count as equal


def _alone(messages: Messages, network: Network) -> bool:
    """Whether each port serves one pair of ranks at most in the round, each rank receives from one at most, and no
    message is sent ahead of its round."""
    if network.levels or messages.ahead.any():
        return False
    pairs = np.unique(messages.source * network.size + messages.target)
    source, target = np.divmod(pairs, network.size)
    a, b = network.hosts[source], network.hosts[target]
    away = a != b
    return all(np.bincount(x).max(initial=0) <= 1 for x in (target, a[away], b[away]))


class Clocks:
    """When each rank, its host's ports and its processor have ended what they did; starts at 0.

    Ports serve messages in the order of rounds. ``overtaken`` says whether a message came to a port before one of an
    earlier round, or at the same time from another rank: then the port might serve it first, and the times are not
    exact.
    """

    def __init__(self, network: Network, bytes_per_block: float):
        self.network, self.each = network, bytes_per_block
        self.time, self.began = np.zeros((2, network.size))  # began: of the latest round of each rank
        self.out, self.into, self.sent = np.zeros((3, network.nhosts))
        self._came = np.zeros((2, network.nhosts))  # at the ports out and in: the first byte of the latest message
        self._sender = np.full((2, network.nhosts), -1)  # of that message
        self.overtaken = False
        self.messages = 0
        self._gap, self._slowness = network.host_gap(), network.slowness()
        self._random = np.random.default_rng(network.seed)

    def run(self, messages: Messages, times: int) -> bool:
        """Run one round ``times`` times; False, and nothing is done, if its messages share ports."""
        if not _alone(messages, self.network):
            return False
        waves = self._waves(messages)
        part = messages.reduced > 0
        part[messages.source] = part[messages.target] = True
        self.messages += times * len(messages.source)
        for wave in waves:
            self.sent[wave.from_host] += times * wave.bytes[wave.away]
        for done in range(times):
            before = self.time, self.began[part], self.out.copy(), self.into.copy()
            began = np.where(part, self.time, self.began)
            self._once(messages, waves)
            self.began = began
            if times - done > 1 and not self.network.jitter and self._steady(part, before, times - done - 1):
                break
        return True

    def _steady(self, part: np.ndarray, before: tuple[np.ndarray, ...], rest: int) -> bool:
        """If the last round moved all clocks by one time: moves them by the ``rest`` of the rounds, and is True.

        ``part``: the ranks that have a part in the round; ``before``: times, and begins of these ranks' latest rounds,
        and the ports, before the last round.
        """
        moved = np.concatenate((self.time - before[0], self.began[part] - before[1]))
        low, high = moved.min(), moved.max()
        if high - low > _STEADY * high:
            return False
        for now, then in ((self.out, before[2]), (self.into, before[3])):
            if not np.allclose((now - then)[now > 0], high, rtol=_STEADY, atol=0):
                return False
        for now in (self.out, self.into, self._came):
            now[now > 0] += rest * high
        self.time, self.began = self.time + rest * high, self.began + rest * high
        return True

    def _waves(self, messages: Messages) -> list[_Wave]:
        """The first messages of all ranks, the second ones, and so on."""
        number = _earlier(messages.source)
        return [_Wave(messages, number == i, i, self) for i in range(number.max(initial=-1) + 1)]

    def _once(self, messages: Messages, waves: list[_Wave]) -> None:
        processor = self.time.copy()
        for wave in waves:
            processor[wave.source] += wave.overhead
        ended = processor.copy()
        for wave in waves:
            leaving, arrival = self._through_ports(wave)
            ended[wave.source] = np.maximum(ended[wave.source], leaving)
            processor[wave.target] = np.maximum(processor[wave.target], arrival) + wave.receive_work
        ended = np.maximum(ended, processor)
        if messages.reduced.any():
            ended += messages.reduced * (self.each / self.network.fold) * self._slowness
        self.time = ended

    def _through_ports(self, wave: _Wave) -> tuple[np.ndarray, np.ndarray]:
        """When the last byte of each message leaves its rank and reaches the other."""
        busy = self.time[wave.source] + wave.send_work
        if wave.announced is not None:
            answered = np.maximum(busy + wave.latency, self.began[wave.target]) + wave.latency
            busy = np.where(wave.announced, answered, busy)
        leaving = busy + wave.transfer
        arrival = leaving + self.network.local_alpha
        if len(wave.away):
            ready, saved, source = busy[wave.away], self.network.burst, wave.source[wave.away]
            start = np.maximum(ready - saved * self._gap[wave.from_host], self.out[wave.from_host])
            out = start + wave.transfer[wave.away]
            left = np.maximum(out, ready)
            delay = self._latencies(len(start))
            first = np.maximum(start, ready) + delay
            into = np.maximum(first - saved * self._gap[wave.to_host], self.into[wave.to_host]) + wave.in_transfer
            for port, hosts, came in ((0, wave.from_host, ready), (1, wave.to_host, first)):
                last, sender = self._came[port, hosts], self._sender[port, hosts]
                tied = (came == last) & (sender >= 0) & (sender != source)
                self.overtaken |= bool(((came < last) | tied).any())
                self._came[port, hosts], self._sender[port, hosts] = came, source
            self.out[wave.from_host], self.into[wave.to_host] = out, into
            leaving[wave.away], arrival[wave.away] = left, np.maximum(into, left + delay)
        return leaving, arrival

    def _latencies(self, count: int) -> np.ndarray | float:
        network = self.network
        if not network.jitter:
            return network.alpha
        return network.alpha * (1 + network.jitter * self._random.standard_exponential(count))


class _Wave:
    """Messages of a round, at most one from each rank, and what of them does not depend on the clocks."""

    def __init__(self, messages: Messages, taken: np.ndarray, number: int, clocks: Clocks):
        network, slowness = clocks.network, clocks._slowness
        self.source, self.target = messages.source[taken], messages.target[taken]
        self.bytes = messages.blocks[taken] * clocks.each
        a, b = network.hosts[self.source], network.hosts[self.target]
        self.away = np.flatnonzero(a != b)
        self.from_host, self.to_host = a[self.away], b[self.away]
        self.transfer = self.bytes / network.local_beta
        self.transfer[self.away] = self.bytes[self.away] * clocks._gap[self.from_host]
        self.in_transfer = self.bytes[self.away] * clocks._gap[self.to_host]
        announced = self.bytes >= network.rendezvous
        self.announced = announced if announced.any() else None
        self.latency = np.where(a == b, network.local_alpha, network.alpha)
        self.overhead = network.overhead * slowness[self.source]
        self.send_work = (1 + number) * self.overhead
        folded = np.where(messages.folds[taken], self.bytes, 0) / network.fold
        self.receive_work = (network.overhead + folded) * slowness[self.target]


def _earlier(source: np.ndarray) -> np.ndarray:
    """For each message the number of earlier ones from the same source."""
    order = np.argsort(source, kind="stable")
    sorted_sources = source[order]
    earlier = np.empty(len(source), np.int64)
    earlier[order] = np.arange(len(source)) - np.searchsorted(sorted_sources, sorted_sources)
    return earlier
