"""The parameters that all ranks of a tensor axis hold: equal at the beginning, and counted once in norms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..flat.model import Model
from ..models.nn import Array
from ..tensors import as_numpy, is_tensor
from .states import cuts_of


def replicated(net: Any) -> Iterator[tuple[str, Array]]:
    """Name and memory of each parameter of `net` that is not cut."""
    cuts = cuts_of(net)
    if hasattr(net, "named_parameters"):
        named = ((name, as_numpy(p) if is_tensor(p) else p.data) for name, p in net.named_parameters())
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


def count_copies(net: Any, model: Model, ranks: int) -> None:
    """Let `model`, the interface of `net`, know which parameters all `ranks` of a tensor axis hold: those not cut."""
    cuts = cuts_of(net)
    for slot in model.slots:
        if slot.name not in cuts:
            slot.copies *= ranks
