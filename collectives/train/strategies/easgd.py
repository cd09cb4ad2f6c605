"""Elastic averaging: ranks train apart, drawn to a common centre."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..counts import count, real
from ..flat.memory import allocate, squares
from ..loading import fields
from ..optim.schedules import get_lr
from .base import with_parameters
from .finite import refuse_parameters
from .local import Local
from .pattern import Pattern, together

if TYPE_CHECKING:
    from ..flat.model import Handle, Model


class EASGD(Local):
    """Elastic averaging SGD, synchronous (Zhang, Choromanska & LeCun, NIPS 2015, sec. 3, equations 5 and 6).

    Before every `every`-th step, rank r with parameters x_r and the centre c are drawn to each other:
    ``x_r <- x_r - alpha (x_r - c)`` and ``c <- c + alpha sum_r (x_r - c)``, both with the old values. Then follows the
    step by the gradient at the old x_r. With ``beta = p alpha`` the centre is a moving average,
    ``c <- (1 - beta) c + beta mean(x_r)``. `finish` gives the centre to all ranks.

    With an optimizer with momentum this is EAMSGD (sec. 3.2); the paper's is ``torch.optim.SGD(nesterov=True)``.

    * `every` (default 1): the communication period, tau of the paper.
    * `alpha`: the attraction. Default: 1 / p, so that the centre becomes the mean of the ranks as they were; 1/2 on one
      rank. The paper's experiments have 0.9 / p. The more, the nearer ranks stay to each other.
    * `rho`: instead of `alpha`, the weight of the penalty ``rho/2 |x_r - c|^2`` in the loss of each rank;
      ``alpha = lr rho`` with the learning rate of the step. The smaller, the further ranks explore.

    **Hypotheses.** ``beta = p alpha`` is at most 1, so that the centre is a mean of its old value and of the ranks;
    more is a ValueError in `distribute`. If alpha would be above 1/p later, as in a warm-up with `rho`, or when ranks
    join an elastic run, it is 1/p. Samples have the same distribution on all ranks: if they have not, ranks are drawn
    apart in every step, and the centre is less accurate than synchronous training. On a quadratic loss with curvature
    h, plain SGD with ``every = 1`` is stable if and only if ``lr h (2 - beta) < 4 - 2 beta (1 + 1/p)``: up to ``lr h <
    2 - 2/p`` with the default. With beta = 1 one rank and the centre would only change places. The same program gives
    the same bits, also after a stop and a resume.

    **Costs.** For n bytes of parameters a rank gives n / every bytes to an all-reduce per step. Memory: 2 n, for the
    centre, of which every rank has a copy with the same bits, and for the differences.

    Raises ValueError for bad arguments.
    """

    on_device = True

    def __init__(self, every: int = 1, alpha: float | None = None, rho: float | None = None) -> None:
        super().__init__()
        if alpha is not None and rho is not None:
            raise ValueError("alpha is lr * rho: give one of both")
        for name, value in {"alpha": alpha, "rho": rho}.items():
            if value is not None and not 0 < real(name, value) < math.inf:
                raise ValueError(f"{name} must be positive and finite, not {value}")
        self.every, self.alpha, self.rho = count("every", every), alpha, rho

    def check(self, model: Model, handle: Handle, comm: Any) -> None:
        """Raise ValueError unless the network can be averaged and the centre is stable."""
        super().check(model, handle, comm)
        _stable(self._attraction(handle.opt, comm.size), comm.size)

    def _attraction(self, opt: Any, size: int) -> float:
        """alpha of this step on `size` ranks, which may be too large."""
        if self.rho is not None:
            return get_lr(opt) * self.rho
        return 1 / max(2, size) if self.alpha is None else self.alpha

    def setup(self, net: Any, opt: Any, comm: Any) -> None:
        """See `Strategy.setup`."""
        super().setup(net, opt, comm)
        self.centre = [data.copy() for data in self.parameters]
        self._gaps = [allocate(comm, len(data), data.dtype) for data in self.parameters]
        self.follow_loads(self.centre)

    def before_step(self) -> None:
        """Draw parameters and centre to each other, if it is time. Parameters that were loaded are the centre."""
        self.begin_at_loaded()
        if self.steps and self.steps % self.every == 0:
            self._draw()

    @with_parameters
    def _draw(self) -> None:
        from mpi4py import MPI

        size = self.comm.size
        alpha, requests = min(self._attraction(self.opt, size), 1 / size), []
        for data, centre, gap in zip(self.parameters, self.centre, self._gaps, strict=True):
            gap[...] = data
            gap -= centre
            data -= data.dtype.type(alpha) * gap
            requests.append(self.comm.Iallreduce(MPI.IN_PLACE, gap, op=MPI.SUM))
        for request in requests:
            request.Wait()
        if not all(math.isfinite(squares(gap)) for gap in self._gaps):  # alike on all ranks
            refuse_parameters(self.buckets.list, self.comm)
        for centre, gap in zip(self.centre, self._gaps, strict=True):
            centre += centre.dtype.type(alpha) * gap

    @with_parameters
    def finish(self) -> None:
        """Draw parameters and centre to each other once more, and let all ranks go on from the centre."""
        self.begin_at_loaded()
        self._draw()
        for data, centre in zip(self.parameters, self.centre, strict=True):
            data[...] = centre

    def pattern(self, size: int) -> Pattern:
        """An all-reduce of the differences from the centre after each `every`-th step.

        ValueError for an `alpha` that is too large for `size` ranks.
        """
        _stable(self.alpha or 0.0, size)
        return together("differences", lambda step: (step + 1) % self.every == 0)

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "every": self.every, "alpha": self.alpha, "rho": self.rho}

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, and the centre."""
        self.begin_at_loaded()
        return {**super().state_dict(), "centre": self.by_name(self.centre)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        (centre,) = fields(type(self).__name__, state, centre=dict)
        super().load_state_dict(state)
        self.take_by_name(self.centre, centre)


def _stable(alpha: float, size: int) -> None:
    """Raise ValueError if with `alpha` the centre of `size` ranks would overshoot their mean."""
    if alpha * size > 1 + 1e-9:
        raise ValueError(f"alpha must be at most 1/{size} for {size} ranks, not {alpha:g}")
