"""Local SGD: steps of each rank alone, then the mean of the ranks' parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..counts import count
from .base import HOOK
from .finite import check_gradients
from .local import average
from .means import HasMessagesApart, Means, apart
from .pattern import GRADIENTS, PARAMETERS, Action, Ask, Meet, Pattern
from .rounds import Rounds

if TYPE_CHECKING:
    from ..flat.buckets import Bucket
    from ..flat.model import Handle, Model


class LocalSGD(HasMessagesApart, Rounds):
    """Local SGD (Stich, ICLR 2019, algorithm 1): `every` steps apart, then the mean of the parameters.

    ``x_r <- x_r - lr g_r(x_r)`` in each step of rank r; after `every` steps, ``x_r <- sum_q w_q x_q`` on all ranks.

    * `every` (default 4): steps of a round.
    * `start` (default 0): post-local SGD (Lin et al., ICLR 2020, sec. 3). Before so many steps have been made, training
      is synchronous: gradients are averaged in each step.
    * `stop` (default None: never): from this step on training is synchronous again. So the ranks explore apart from
      `start` to `stop`, and exploit together afterwards.
    * `weighted` (default: True): w_q is in proportion to the samples of rank q in the round; else it is 1/p.
    * `merge_optimizer` (default: False): the arrays of the optimizer, such as momentum, are averaged with the
      parameters (Yu et al., ICML 2019, algorithm 1). Else each rank keeps its own. At `stop` they are always averaged.
    * `master` (default None): the rank that computes the mean and sends it to all. None: by an all-reduce.

    **Hypotheses.** For smooth, strongly convex losses, the rate of synchronous SGD is kept for `every` up to the order
    of sqrt(steps / (p batch)) (Stich 2019, theorem 2.2). If the ranks' data differ in distribution, a long round drifts
    towards each rank's own optimum. With ``every=1`` this is synchronous SGD, up to rounding, if the optimizer is
    linear in the gradient: SGD without momentum; with momentum if it is merged, or if w_q does not change from step to
    step. The same program gives the same bits, also after a stop and a resume.

    **Costs.** For n bytes of parameters a rank gives n / every bytes to an all-reduce per step; as much for each array
    of a merged optimizer; n bytes per step while training is synchronous. No memory.

    Raises ValueError for bad arguments.
    """

    def __init__(
        self, every: int = 4, start: int = 0, stop: int | None = None, *, weighted: bool = True,
        merge_optimizer: bool = False, master: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(every, weighted)
        self.start, self.merge_optimizer = count("start", start, 0), merge_optimizer
        self.stop = None if stop is None else count("stop", stop, 0)
        self.master = None if master is None else count("master", master, 0)
        if self.stop is not None and self.stop < self.start:
            raise ValueError(f"stop must not be before start, {start}, not {stop}")

    def check(self, model: Model, handle: Handle, comm: Any) -> None:
        """Raise ValueError unless the network can be averaged and the master is a rank."""
        super().check(model, handle, comm)
        self._check_master(comm.size)

    def _check_master(self, size: int) -> None:
        if self.master is not None and self.master >= size:
            raise ValueError(f"master must be one of {size} ranks, not {self.master}")

    def setup(self, net: Any, opt: Any, comm: Any) -> None:
        """See `Strategy.setup`."""
        super().setup(net, opt, comm)
        self._begin(comm)

    def _begin(self, comm: Any) -> None:
        ever = self.start > 0 or self.stop is not None  # whether any step is synchronous
        self._messages = apart(comm) if ever else comm
        self._means = Means(self._messages, self._start_mean, None, weighted=True, guess=False)

    def _start_mean(self, bucket: Bucket, op: Any) -> Any:
        from mpi4py import MPI

        return self._messages.Iallreduce(MPI.IN_PLACE, bucket.grads, op=op)

    @property
    def synchronous(self) -> bool:
        """Whether the step under way is synchronous."""
        return self._synchronous_at(self.steps)

    def _synchronous_at(self, step: int) -> bool:
        return step < self.start or (self.stop is not None and step >= self.stop)

    @property
    def instead(self) -> str | None:
        """None, but for a synchronous step. See `Strategy.instead`."""
        return HOOK if self.synchronous else None

    def on_bucket(self, bucket: Bucket) -> None:
        """In a synchronous step, start to average the bucket's gradients."""
        super().on_bucket(bucket)
        if self.synchronous:
            self._means.add(bucket)

    def before_step(self) -> None:
        """In a synchronous step, wait for the mean gradients. FloatingPointError on all ranks if one is not finite."""
        self._means.finish()
        if self.synchronous:
            check_gradients(self.buckets.list)

    def after_step(self) -> None:
        """Count the step, and merge after the last one of a round."""
        if self.synchronous:
            self.steps += 1
        else:
            super().after_step()

    def discard(self) -> None:
        """Wait for gradients that no step will use."""
        self._means.finish()

    def due(self) -> bool:
        """Whether the round ends: after `every` steps, or at `stop`."""
        return super().due() or self.steps == self.stop

    def merge(self, share: float) -> None:
        """Average the parameters, and the optimizer's arrays if they are to be merged."""
        kept = self.handle.kept() if self.merge_optimizer or self.steps == self.stop else None
        average(self.comm, [*self.parameters, *(kept or [])], share, self.master)
        if kept is not None:
            self.handle.put_back(kept)

    def resize(self, comm: Any) -> None:
        """Go on with the ranks of `comm`. ValueError if the master is none of them."""
        self._check_master(comm.size)
        self.leave_messages()
        self._messages = comm
        super().resize(comm)
        self._begin(comm)

    def pattern(self, size: int) -> Pattern:
        """All-reduces of the gradients in synchronous steps; parameters by an all-reduce or the master after rounds."""
        self._check_master(size)
        merge = Meet(PARAMETERS) if self.master is None else Ask(self.master, PARAMETERS)

        def actions(rank: int, step: int) -> tuple[Action, ...]:
            if self._synchronous_at(step):
                return (Meet(GRADIENTS),)
            merges = (step + 1 - self.start) % self.every == 0 or step + 1 == self.stop
            return (merge,) if merges else ()

        return Pattern(actions, () if self.master is None else (self.master,), beside=True)

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        own = ("start", "stop", "merge_optimizer", "master")
        return {**super().settings(), **{key: getattr(self, key) for key in own}}
