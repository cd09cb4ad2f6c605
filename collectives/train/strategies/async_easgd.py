"""Asynchronous elastic averaging around a centre on servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..counts import count, real
from ..loading import fields
from ..server.clocks import Policy
from .central import Central
from .finite import check_parameters
from .pattern import PARAMETERS, Pattern

if TYPE_CHECKING:
    from ..flat.buckets import Bucket


class AsyncEASGD(Central):
    """Each worker trains by itself, and every few steps worker and centre are drawn to each other.

    After each `every` (default 4) steps of a worker its parameters x and the centre c become ``x - a (x - c)`` and ``c
    + a (x - c)``, with the same differences (Zhang, Choromanska, LeCun 2015, algorithm 1). `attraction` is a (default:
    0.9 / workers, as in sec. 5 of the paper), in (0, 1). Nobody waits for other workers. `finish` gives the centre to
    all workers.

    The optimizer works on the workers, and may be any; with momentum this is EAMSGD. A worker sends and receives the
    parameters' bytes once in `every` steps. The analysis (sec. 4) is for a quadratic loss, and asks ``0 <= a <= 1`` and
    ``workers a <= 1``. Other arguments are those of `ParameterServer`, but for `tables`. Raises ValueError for an
    `every` below 1, another `attraction`, and `tables`.
    """

    lockstep = False
    hands_out = True
    serves_optimizer = False

    def __init__(self, every: int = 4, servers: int = 1, *, attraction: float | None = None, **how: Any) -> None:
        super().__init__(servers, **how)
        if self.tables:
            raise ValueError("tables: AsyncEASGD sends parameters, not gradients, so rows would never change")
        if attraction is not None and not 0 < real("attraction", attraction) < 1:
            raise ValueError(f"attraction must be between 0 and 1, not {attraction}")
        self.every, self.attraction, self._steps = count("every", every), attraction, 0
        self.policy = Policy(staleness=float("inf"), fold=False, attraction=attraction or 0.0)

    def setup(self, net: Any, opt: Any, comm: Any) -> None:
        """See `Strategy.setup`."""
        if self.attraction is None:
            self.attraction = 0.9 / (comm.size if self.beside else comm.size - self.servers)
            self.policy = Policy(staleness=float("inf"), fold=False, attraction=self.attraction)
        super().setup(net, opt, comm)
        self._centre = [np.empty_like(bucket.data) for bucket in self.buckets.list]

    @property
    def instead(self) -> str | None:
        """None: gradients are this rank's own. See `Strategy.instead`."""
        return None

    def on_bucket(self, bucket: Bucket) -> None:
        """Nothing is pushed: gradients are the worker's own. RuntimeError if the servers have left."""
        self._client.check()

    def discard(self) -> None:
        """Nothing was pushed."""

    def before_step(self) -> bool:
        """Let the worker's optimizer step; before that, centre and workers take parameters that were loaded."""
        self._client.check()
        self._publish_loaded()
        return True

    def after_step(self) -> None:
        """Draw parameters and centre to each other, if it is time. FloatingPointError if a parameter is not finite."""
        self._steps += 1
        if self._steps % self.every:
            return
        check_parameters(self.buckets.list, self.comm.rank)
        for bucket in self.buckets.list:
            self._client.push(bucket.index, 1, bucket.data)
        self._client.step([], self._centre)
        for bucket, centre in zip(self.buckets.list, self._centre, strict=True):
            bucket.data -= bucket.dtype.type(self.attraction) * (bucket.data - centre)

    def meet(self) -> None:
        """See `Central.meet`; workers keep their own parameters."""
        self._client.meet()

    def batches(self, ranks: int) -> int:
        """All ranks': the centre is a mean of the workers, which moves by the mean of their steps."""
        return ranks

    def pattern(self, size: int) -> Pattern:
        """Parameters to all servers after each `every`-th step, and the centre back."""
        return self._exchange(size, PARAMETERS, self.every)

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "every": self.every}

    def state_dict(self) -> dict[str, Any]:
        """The steps of this worker, and the centre on the first one, which takes parameters that were loaded.

        Collective over the workers.
        """
        self._publish_loaded()
        self._client.meet()
        centre = self._client.save() if self._client.place == 0 else None
        self._client.meet()
        return {"servers": centre, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; the workers' own parameters are in the network's. Collective over the workers."""
        (steps,) = fields(type(self).__name__, state, steps=int)
        kept = [bucket.data.copy() for bucket in self.buckets.list]
        super().load_state_dict(state)
        for bucket, data in zip(self.buckets.list, kept, strict=True):
            bucket.data[...] = data
        self._steps = steps
