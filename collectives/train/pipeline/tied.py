"""Parameters that several ranks hold: those of a stage with replicas; an embedding that is also the output layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..models.nn import Array
from .blocks import Framework
from .placement import Placement
from .watch import Watch

__all__ = ["Tied", "holders"]


def holders(names: Iterable[tuple[int, str]], placement: Placement) -> dict[str, list[int]]:
    """The ranks that hold each parameter, from pairs of a virtual stage and the name of a parameter that it uses."""
    found: dict[str, set[int]] = {}
    for virtual, name in names:
        found.setdefault(name, set()).update(placement.ranks(virtual))
    return {name: sorted(used) for name, used in found.items()}


class Tied:
    """The parameters of which several ranks of `comm` have a copy: `held` has their ranks by name.

    The copies begin equal: they are those of the lowest rank. `reduce` adds up the gradients since `begin`, so that
    equal optimizers keep them equal. The constructor is collective, `reduce` too, over the ranks that share.
    """

    def __init__(
        self, comm: Any, framework: Framework, parameters: Mapping[str, Any], held: Mapping[str, Sequence[int]],
        watch: Watch,
    ) -> None:  # fmt: skip
        self._framework, self._watch = framework, watch
        self._shared: list[tuple[Any, list[Any]]] = []  # communicators, with the parameters that their ranks share
        self._comms: list[Any] = []
        self.copies = {name: len(ranks) for name, ranks in held.items() if len(ranks) > 1}
        groups = sorted({tuple(held[name]) for name in self.copies})
        for group in groups:
            made = comm.Split(int(comm.rank in group), comm.rank)
            self._comms.append(made)
            shared = sorted(name for name in self.copies if tuple(held[name]) == group)
            if comm.rank in group:
                self._shared.append((made, [parameters[name] for name in shared]))
        for made, shared_here in self._shared:
            for parameter in shared_here:
                made.Bcast(framework.values(parameter), root=0)

    def begin(self) -> None:
        """Set aside the gradients of earlier passes, which all copies have."""
        self._earlier = [[self._framework.take_gradient(p) for p in parameters] for _, parameters in self._shared]

    def reduce(self) -> None:
        """Add the sum over all copies to the gradient of each: a message for each group of ranks and type."""
        for (comm, parameters), earlier in zip(self._shared, self._earlier, strict=True):
            grads = [self._framework.gradient(parameter) for parameter in parameters]
            for dtype in dict.fromkeys(grad.dtype for grad in grads):
                self._add_up(comm, [grad for grad in grads if grad.dtype == dtype])
            for grad, before in zip(grads, earlier, strict=True):
                if before is not None:
                    grad += before

    def _add_up(self, comm: Any, arrays: Sequence[Array]) -> None:
        """Replace arrays of one type by their sums over the ranks of `comm`."""
        from mpi4py import MPI

        flat = np.concatenate([array.reshape(-1) for array in arrays])
        self._watch.wait(comm.Iallreduce(MPI.IN_PLACE, flat, op=MPI.SUM), message=False)
        ends = np.cumsum([array.size for array in arrays])
        for array, total in zip(arrays, np.split(flat, ends[:-1]), strict=True):
            array[...] = total.reshape(array.shape)

    def free(self) -> None:
        """Free the communicators. Collective."""
        for made in self._comms:
            made.Free()
