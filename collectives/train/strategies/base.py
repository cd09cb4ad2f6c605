"""``Strategy``, the base class of all strategies."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ..loading import check_mapping
from .consensus import consensus_distance

if TYPE_CHECKING:
    from ..flat.buckets import Bucket, Buckets
    from ..flat.model import Handle, Model
    from .pattern import Pattern

P = ParamSpec("P")
S = TypeVar("S", bound="Strategy")
T = TypeVar("T")

WHOLE = "needs a mesh of data and tasks only, since pipeline and tensor make parts of a network"
HOOK = "change it in a hook of the parameter (register_hook), or scale the loss"  # torch calls hooks before strategies


def with_parameters(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method of a strategy that reads and changes ``data`` of the buckets, also of a network on a device.

    Such a network's parameters are copied into ``data`` before, and back after the method.
    """

    @functools.wraps(method)
    def wrapped(strategy: S, *args: P.args, **kwargs: P.kwargs) -> T:
        strategy.buckets.fetch()
        result = method(strategy, *args, **kwargs)
        strategy.buckets.deliver()
        return result

    return wrapped


class Strategy:
    """Decides when the ranks exchange data, and which. The methods here do nothing; a strategy overrides those it
    needs.

    `distribute` calls `setup` once, after the parameters were broadcast. Before that it sets ``buckets``, whose
    ``list`` has the network's parameters and gradients as flat arrays (``collectives.train.flat.buckets.Bucket``),
    ``model`` and ``handle``, which are the interfaces of network and optimizer. A strategy that works on flat arrays
    serves NumPy's and torch's networks alike.

    ``replicated`` says whether all ranks hold the same parameters after every step (default: False).
    ``sends_parameters`` says whether the arrays ``data`` of buckets are communicated (default: True); if not, they are
    ordinary memory, which networks read faster. ``bucket_bytes`` is the longest bucket, in bytes. None (default) is 1
    MiB; or 25 MiB if all ranks are on one machine, where messages take little time but the cores' own, unless
    `saves_buckets` is True.
    ``lockstep`` says whether ranks wait for each other in every step (default: True). If not, `Run` does not make them
    do so either. ``hands_out`` says whether `take` deals samples to the ranks that have time for them (default: False).
    ``worker`` says whether this rank trains (default: True).
    ``keep_grads`` says whether a bucket has memory of its own for gradients (default: True); if not, the strategy calls
    ``bucket.gather``. ``every_pass`` says whether buckets are handed over in each backward pass, also within `no_sync`
    (default: False).
    ``flat`` says whether the optimizer works on flat arrays of its own instead of parameters (default: False).
    ``on_device`` says whether it serves networks on a GPU (default: False). Their gradients are brought into buckets,
    and back before the optimizer's step. Parameters are not: a strategy calls ``buckets.fetch()`` before it reads
    ``data`` of buckets and ``buckets.deliver()`` after it has changed it, or marks the method by
    ``collectives.train.strategies.base.with_parameters``.
    ``whole`` is the communicator of all ranks that hold parts of the model, with their replicas, if these are more than
    ``comm`` has (see `Mesh`), else None. ``in_parts`` says whether ranks hold parts of the model that others lack.
    ``problem`` is what this rank found wrong with a step when `before_step` is called, or None. If a strategy does not
    raise an error for it on all ranks, `distribute` raises one on this rank.
    """

    replicated = False
    sends_parameters = True
    bucket_bytes: int | None = None
    keep_grads = True
    every_pass = False
    lockstep = True
    hands_out = False
    worker = True
    flat = False
    on_device = False
    whole: Any = None
    in_parts = False
    problem: str | None = None

    net: Any = None
    opt: Any = None
    comm: Any
    buckets: Buckets
    model: Model
    handle: Handle

    @property
    def instead(self) -> str | None:
        """What a program can do instead of changing a gradient between ``backward()`` and ``opt.step()``, when it is on
        its way. None if gradients stay this rank's own until its step, so that they may be changed."""
        return HOOK

    def check(self, model: Model, handle: Handle, comm: Any) -> None:
        """Raise TypeError or ValueError unless this strategy serves the network and its optimizer. It sends nothing."""

    def check_parts(self, name: str) -> None:
        """Raise ValueError unless ranks may hold parts of a model; `name` is what the program calls this strategy."""
        if not self.lockstep:
            raise ValueError(f"{name} {WHOLE}, which must step together")

    def check_copies(self, model: Model) -> None:
        """Raise ValueError unless this strategy keeps parameters alike of which several ranks of a mesh have copies."""

    def saves_buckets(self, model: Model) -> bool:
        """Whether states have arrays by bucket (default: False). Buckets then do not depend on the number of machines,
        so that a state fits when training goes on on others."""
        return False

    def setup(self, net: Any, opt: Any, comm: Any) -> None:
        """Take the network, its optimizer and the communicator. An override calls this one first."""
        self.net, self.opt, self.comm = net, opt, comm

    def begin(self) -> None:
        """Called at the end of `distribute`. A rank that does not train, but serves others, returns when they are done
        with it."""

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context for the backward passes of all micro-batches of a step but the last one. They send nothing.

        The gradient of the step is the mean over the samples of all its micro-batches, also if these differ in length.
        So losses stay means, and are not divided by the number of micro-batches. A micro-batch has one backward pass.
        """
        self.buckets.sync = False
        try:
            yield
        finally:
            self.buckets.sync = True

    def on_bucket(self, bucket: Bucket) -> None:
        """Called when a bucket's gradients are complete, in the same order on all ranks. It should start to send them,
        and not wait."""

    def before_step(self) -> bool | None:
        """Called before the optimizer uses the gradients. If it returns False, this rank's step is skipped. A strategy
        with ``replicated`` returns the same on all ranks."""

    def after_step(self) -> None:
        """Called after the optimizer has changed the parameters."""

    def discard(self) -> None:
        """Called when ``opt.zero_grad()`` drops gradients that buckets have handed over, and that no step has used."""

    @property
    def accumulating(self) -> bool:
        """Whether this rank has made backward passes of a step within `no_sync`, and not yet the step."""
        return self.buckets.accumulating

    def take(self, series: object) -> int:
        """The next number, from 0, of a series; each goes to one rank only. See ``Loader.on_demand``.

        `series` is an object that stands for the series on this rank. The n-th series is the same one on all ranks.
        """
        raise NotImplementedError

    def forget_own(self) -> None:
        """Called on a rank that a saved state does not know, after it has loaded that of another rank: drops what must
        not be there twice."""

    def meet(self) -> None:
        """Called before ranks communicate outside of steps, for a record for example. Collective. A strategy whose
        steps wait for others does not make these wait for this rank."""

    def finish(self) -> None:
        """Called when training has ended, before the parameters are evaluated or saved."""

    def close(self) -> None:
        """Called after the last step, and after all was evaluated and saved. Collective over all ranks. What serves the
        training ends here, and the strategy cannot be used any more."""

    def consensus_distance(self) -> float:
        """The mean squared distance of the ranks' parameters from their mean, the same on all ranks. Collective.

        It is ``1/p sum_r |x_r - m|^2`` for p ranks with parameters x_r and the mean m (Kong et al., ICML 2021, sec. 3,
        without the root). It sends as many bytes as an all-reduce of the parameters in float64. A loop can log it:
        ``run.log(consensus=opt.strategy.consensus_distance())``, on all ranks in the same steps.
        """
        self.buckets.fetch()
        return consensus_distance([bucket.data for bucket in self.buckets.list], self.comm)

    def batches(self, ranks: int) -> int:
        """The mean of how many ranks' batches an update is, if the global batch is that of `ranks` ranks.

        A learning rate that was chosen for the batch of one rank may be scaled by this number, see
        ``train.schedules.scaled``. 1, as here, is right if each rank's gradient is an update of its own.
        """
        return 1

    def give_up(self) -> None:
        """After a loss of ranks: let no live rank wait for messages of this one any longer. A local call."""

    def resize(self, comm: Any) -> None:
        """Go on with the ranks of `comm`, after others were lost. Raises ValueError if the strategy cannot."""
        raise ValueError(f"{type(self).__name__} cannot go on with other ranks than it began with")

    def pattern(self, size: int) -> Pattern:
        """Who talks to whom on `size` ranks. It needs no `setup`, and sends nothing.

        NotImplementedError unless the strategy describes itself; ValueError if it cannot be used on `size` ranks.
        """
        raise NotImplementedError(f"{type(self).__name__} has no pattern(): it does not say who talks to whom")

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {"strategy": type(self).__name__, "bucket_bytes": self.bucket_bytes}

    def state_dict(self) -> dict[str, Any]:
        """The state of the strategy for a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned. TypeError for what is no mapping."""
        check_mapping(type(self).__name__, state)
