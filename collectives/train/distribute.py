"""``distribute``: lets a strategy act in the training of a network on all ranks."""

from __future__ import annotations

import contextlib
import weakref
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

from .agree import communicator, role_of, same_as_rank_0, together
from .deaths import naming_the_dead
from .flat.adapt import Adaptable, adapt
from .flat.buckets import LONGEST, ON_ONE_MACHINE, UNUSED, Buckets
from .flat.model import Handle, Model
from .mesh import Mesh
from .strategies import AllReduce, Strategy
from .tensor import cuts_of
from .tensor.replicas import count_copies
from .tensor.states import cut_parameters

Net = TypeVar("Net")
Opt = TypeVar("Opt")
#: What ranks that average gradients have alike; of ranks of a tensor axis it tells what they should not average.
PIECES = "piece of each cut parameter (has distribute got mesh=, or comm=mesh.data?)"
#: Parameters whose gradients a strategy gets, by their ``id``. An attribute would go into pickles.
TAKEN: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def distribute(
    net: Net, opt: Opt, strategy: Strategy | None = None, *, comm: Any = None, mesh: Mesh | None = None,
    unused: str = "error",
) -> tuple[Net, Opt]:  # fmt: skip
    """Let `strategy` (default: `AllReduce`) act in ``loss.backward()`` and ``opt.step()``.

    `net` is a `Sequential` with an optimizer of this package, or a ``torch.nn.Module`` with one of ``torch.optim``
    (not LBFGS). Both are changed in place and returned. Parameters and gradients move into flat arrays: load states
    into the network, but do not move it to another type or device. Rank 0's parameters are broadcast. So are torch's
    buffers, the statistics of BatchNorm for example, now but not later: each rank then has statistics of its own
    samples. Collective over `comm` (default: a ``collectives.Communicator`` of the world).

    With a strategy that is ``on_device``, the parameters of a torch network may be on a CUDA device. They stay there,
    and flat arrays are copies (docs/gpu.md).

    With `mesh` instead of `comm`, the strategy acts over ``mesh.data``; `net` is then this rank's part of the model: a
    `Pipeline`, or a network with pieces of layers. What a step decides for the whole model (the norm of the gradient
    for ``clip_norm``, and whether it is finite) `AllReduce` agrees on over ``mesh.comm``.

    `unused` is what happens in ``opt.step()`` if parameters got no gradient: "error" (default) raises RuntimeError,
    which names them; "zero" gives them a gradient of zeros, with which weight decay and momentum still change them.

    With a strategy that exchanges gradients, these are under way between ``backward()`` and ``step()``: read them after
    the step, and let the strategy clip them, or call ``strategy.wait()`` first, if it has that. A torch network whose
    gradients were changed nevertheless is an error in the step, which says what else to do. With other strategies a
    program may change them. ``opt.step(closure)`` calls the closure once, before the step.

    With a parameter server on ranks of its own (see `ParameterServer`), these ranks serve here, and return when
    training has ended.

    Raises on all ranks, before any array is sent: TypeError for what is no network or no optimizer, for tensors that
    are sparse or of a type that cannot be averaged; ValueError if the ranks' networks or settings differ, if a
    parameter is read-only or on a device that is not served, if `opt` is not over the parameters of `net`, or if `opt`,
    `strategy` or a parameter is in use already; RuntimeError if an earlier training on these ranks has servers still.
    """
    if mesh is not None and comm is not None:
        raise TypeError("distribute takes comm or mesh, not both")
    strategy = AllReduce() if strategy is None else strategy
    if mesh is not None:
        comm = mesh.data
    if role_of(comm) is not None:
        raise RuntimeError("the servers of an earlier training are still set apart: end it by opt.strategy.close()")
    comm = communicator(comm)
    model, handle = together(comm, lambda: _check(net, opt, strategy, comm, mesh, unused))
    if mesh is not None:
        count_copies(net, model, mesh.tensor.size)
    together(comm, lambda: strategy.check_copies(model))
    settings = {**strategy.settings(), **handle.describe(), **model.describe(), "unused": unused}
    same_as_rank_0(comm, {PIECES: _pieces(net), **settings}, "distribute")

    TAKEN.update({id(slot.parameter): slot.parameter for slot in model.slots})
    strategy.buckets = _buckets(model, strategy, comm, unused)
    strategy.model, strategy.handle = model, handle
    strategy.setup(net, opt, comm)
    setattr(opt, "strategy", strategy)  # noqa: B010  torch's optimizers have no such attribute
    _connect(strategy, mesh, net)
    strategy.begin()
    return net, opt


def _buckets(model: Model, strategy: Strategy, comm: Any, unused: str) -> Buckets:
    """The buckets of a network, with rank 0's parameters on all ranks, as its other arrays. Collective."""
    for data, put in model.extras():
        comm.Bcast(data, root=0)
        put(data)
    buckets = Buckets(
        model,
        strategy.bucket_bytes or (LONGEST if strategy.saves_buckets(model) else _longest(comm)),
        comm,
        keep_grads=strategy.keep_grads,
        share_data=strategy.sends_parameters,
        every_pass=strategy.every_pass,
        unused=unused,
    )
    for bucket in buckets.list:
        comm.Bcast(bucket.data.view(np.uint8), root=0)
    buckets.deliver()
    return buckets


def _connect(strategy: Strategy, mesh: Mesh | None, net: Any) -> None:
    """Let the strategy be called by the buckets and by the optimizer, and the network know its mesh."""
    if mesh is not None:
        mesh.serve(strategy)
        if isinstance(net, Adaptable):
            net.join(mesh)
    buckets = strategy.buckets
    buckets.on_bucket = lambda bucket: strategy.on_bucket(bucket)

    def naming() -> AbstractContextManager[None]:
        """On a mesh, ranks learn here of the death of ranks that they do not wait for."""
        return contextlib.nullcontext() if mesh is None else naming_the_dead(mesh.comm, mesh.give_up)

    def arrive(wait: bool) -> None:
        if mesh is not None and isinstance(net, Adaptable):
            net.arrive(wait)

    def before() -> bool:
        arrive(strategy.replicated)
        with naming():
            strategy.problem = buckets.close(strategy.instead)
            go = strategy.before_step()
        if strategy.problem is not None:
            raise RuntimeError(strategy.problem)
        buckets.deliver_grads()
        return go is not False

    def after() -> None:
        with naming():
            strategy.after_step()

    def clear() -> None:
        arrive(wait=False)
        with naming():
            if buckets.discard():
                strategy.discard()
        strategy.model.clear()

    strategy.handle.take_over(before, after, clear)


def _longest(comm: Any) -> int:
    """The longest bucket in bytes, for a strategy that leaves it open and saves nothing by bucket. Collective."""
    from mpi4py import MPI

    machines = set(comm.allgather(MPI.Get_processor_name()))
    return ON_ONE_MACHINE if len(machines) == 1 else LONGEST


def _check(
    net: Any, opt: Any, strategy: Strategy, comm: Any, mesh: Mesh | None, unused: str
) -> tuple[Model, Handle]:  # fmt: skip
    """The interface of network and optimizer. Raises TypeError or ValueError unless they can be distributed."""
    if not isinstance(strategy, Strategy):
        raise TypeError(f"strategy must be an object of a class derived from train.Strategy, not {strategy!r}")
    if mesh is not None:
        strategy.whole, strategy.in_parts = mesh.comm, mesh.in_parts
    model, handle = adapt(net, opt)
    if strategy.in_parts:
        strategy.check_parts(type(strategy).__name__)
    if unused not in UNUSED:
        raise ValueError(f"unused must be one of {', '.join(UNUSED)}, not {unused!r}")
    if getattr(opt, "strategy", None) is not None:
        raise ValueError("this optimizer is distributed already")
    if strategy.net is not None:
        raise ValueError("this strategy serves another network already")
    if taken := [slot.name for slot in model.slots if TAKEN.get(id(slot.parameter)) is slot.parameter]:
        raise ValueError(
            f"{', '.join(taken)}: distributed already, with another optimizer; for another training, distribute a copy "
            "of the network (copy.deepcopy)"
        )
    if any(slot.on_device for slot in model.slots):
        _check_device(net, strategy, comm)
    strategy.check(model, handle, comm)
    return model, handle


def _pieces(net: Any) -> list[int]:
    """This rank's place in each cut of the network's layers."""
    inner = net.net if isinstance(net, Adaptable) else net
    layers = [inner] if hasattr(inner, "named_modules") else getattr(inner, "layers", [])
    return [place for _, _, place in cut_parameters(layers)]


def _check_device(net: Any, strategy: Strategy, comm: Any) -> None:
    """Raise ValueError unless this network, which is on a device, can be distributed with this strategy."""
    from mpi4py import MPI

    if cuts_of(net):
        raise ValueError("distribute takes networks with cut layers on the CPU only: net.cpu()")
    if not strategy.on_device:
        raise ValueError(
            f"{type(strategy).__name__} serves networks on the CPU only: call net.cpu(), or take a strategy with "
            "on_device, AllReduce() for example"
        )
    threads = hasattr(comm, "same_ranks")  # ranks that are threads, which do not use MPI
    if not threads and MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ValueError(
            "a network on a GPU needs MPI.THREAD_SERIALIZED, which this MPI was not initialized with: torch runs the "
            "backward pass in a thread of its own"
        )
