"""``distribute``: lets a strategy act in the training of a network on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from .agree import communicator, on_all_ranks, same_as_rank_0
from .buckets import Buckets
from .models.nn import Sequential
from .optim.sgd import SGD
from .strategies import AllReduce, Strategy


def distribute(
    net: Sequential, opt: SGD, strategy: Strategy | None = None, *, comm: Any = None
) -> tuple[Sequential, SGD]:
    """Let `strategy` (default: `AllReduce`) act in ``loss.backward()`` and ``opt.step()``.

    Changes `net` and `opt` in place and returns them. Rank 0's parameters are broadcast, and gradients move into
    buckets. Collective over `comm` (default: a ``collectives.Communicator`` of the world).

    Raises on all ranks, before any array is sent: TypeError for a network whose parameters are not NumPy arrays;
    ValueError if the ranks' networks or settings differ, if a parameter is read-only or has gaps, if `opt` is not over
    the parameters of `net`, or if `opt` or `strategy` is in use already.
    """
    strategy = AllReduce() if strategy is None else strategy
    comm = communicator(comm)
    on_all_ranks(comm, lambda: _check(net, opt, strategy))
    parameters = net.parameters()
    shapes = {f"parameter {p.name}": (p.data.shape, p.data.dtype.str, p.data.strides) for p in parameters}
    same_as_rank_0(comm, {**strategy.settings(), **opt.settings(), **shapes}, "distribute")

    for p in parameters:
        comm.Bcast(p.data, root=0)
    strategy.setup(net, opt, comm)
    buckets = Buckets(net, strategy.bucket_bytes, strategy.on_bucket, comm)

    def before_step(*_: Any) -> None:
        buckets.complete()
        strategy.before_step()

    opt.strategy = strategy
    opt.register_step_pre_hook(before_step)
    opt.register_step_post_hook(lambda *_: strategy.after_step())
    return net, opt


def _check(net: Sequential, opt: SGD, strategy: Strategy) -> None:
    """Raise TypeError or ValueError unless they can be distributed together."""
    parameters = net.parameters()
    for p in parameters:
        if not isinstance(p.data, np.ndarray):
            raise TypeError(f"distribute takes networks whose parameters are NumPy arrays, not {type(p.data).__name__}")
        if not p.data.flags.forc or not p.data.flags.writeable:
            raise ValueError(f"parameter {p.name} is read-only, or has gaps between its elements")
    if {id(p) for p in parameters} != {id(p) for p in opt.parameters}:
        raise ValueError("the optimizer is not over the parameters of this network")
    if opt.strategy is not None:
        raise ValueError("this optimizer is distributed already")
    if isinstance(getattr(strategy, "net", None), Sequential):
        raise ValueError("this strategy serves another network already")
