"""The parameters that all ranks of a tensor axis hold: equal at the beginning, and counted once in norms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..models.nn import Array
from ..strategies.model_ranks import ModelRanks
from ..tensors import as_numpy
from .states import cuts_of


def replicated(net: Any) -> Iterator[tuple[str, Array]]:
    """Name and memory of each parameter of `net` that is not cut."""
    cuts = cuts_of(net)
    if hasattr(net, "named_parameters"):
        named = ((name, as_numpy(p)) for name, p in net.named_parameters())
    else:
        named = ((p.name, p.data) for p in net.parameters())
    yield from ((name, data) for name, data in named if name not in cuts)


def replicate(net: Any, comm: Any) -> None:
    """Give all ranks of the tensor axis `comm` rank 0's values of the parameters that are not cut. Collective.

    Networks that were made with the same seed have equal ones already. Needed after each rank loaded weights of its
    own, for example.
    """
    for _, data in replicated(net):
        comm.Bcast(data, root=0)


def duplicates(net: Any, comm: Any) -> frozenset[str]:
    """The names of the parameters that rank 0 of the tensor axis counts for this rank: on rank 0 there are none."""
    return frozenset() if comm.rank == 0 else frozenset(name for name, _ in replicated(net))


def model_ranks(net: Any, comm: Any) -> ModelRanks:
    """What ``train.AllReduce(model_ranks=...)`` needs to know of a network that is cut over the ranks of `comm`."""
    return ModelRanks(comm, duplicates(net, comm))
