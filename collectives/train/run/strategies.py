"""All strategies of a run as one."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from ..strategies import Strategy


class Strategies:
    """The strategies of the optimizers among `objects`, in the order of their names, which is the same on all ranks.

    There may be several, as in a GAN, or none. The methods are those of `Strategy`.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        found = [getattr(objects[name], "strategy", None) for name in sorted(objects)]
        self._all = list({id(one): one for one in found if isinstance(one, Strategy)}.values())

    @property
    def lockstep(self) -> bool:
        """Whether ranks wait for each other in every step of all strategies."""
        return all(one.lockstep for one in self._all)

    @property
    def accumulating(self) -> bool:
        """Whether this rank is between the micro-batches of a step of any."""
        return any(one.accumulating for one in self._all)

    @property
    def hands_out(self) -> bool:
        """Whether `take` deals samples: not for several strategies, for which all ranks make the same steps.

        Else a rank could meet the others by one strategy while these wait for its next step by another one.
        """
        return len(self._all) == 1 and self._all[0].hands_out

    def take(self, series: object) -> int:
        """See `Strategy.take`."""
        (one,) = self._all
        return one.take(series)

    def meet(self) -> None:
        """See `Strategy.meet`. Collective."""
        for one in self._all:
            one.meet()

    def finish(self) -> None:
        """See `Strategy.finish`. Collective."""
        for one in self._all:
            one.finish()

    def close(self) -> None:
        """See `Strategy.close`. Collective over all ranks."""
        for one in self._all:
            one.close()

    def same_as(self, other: Strategies) -> bool:
        """Whether these are the same objects as those of `other`."""
        return len(self._all) == len(other._all) and all(map(operator.is_, self._all, other._all))
