"""Parameters that several stages share: an embedding that is also the output layer, for example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .blocks import Framework

__all__ = ["Tied", "holders"]


def holders(names: Iterable[tuple[int, str]], ranks: int) -> dict[str, list[int]]:
    """The ranks that hold each parameter, from pairs of a virtual stage and the name of a parameter that it uses."""
    found: dict[str, set[int]] = {}
    for virtual, name in names:
        found.setdefault(name, set()).add(virtual % ranks)
    return {name: sorted(used) for name, used in found.items()}


class Tied:
    """The parameters of which several ranks of `comm` have a copy: `held` has their ranks by name.

    The copies begin equal: they are those of the lowest rank. `reduce` adds up their gradients, so that equal
    optimizers keep them equal. The constructor is collective, `reduce` too, over the ranks that share.
    """

    def __init__(
        self, comm: Any, framework: Framework, parameters: Mapping[str, Any], held: Mapping[str, Sequence[int]]
    ) -> None:
        self._framework = framework
        self._parameters: list[tuple[Any, Any]] = []  # with the communicators of those who share them
        self._comms: list[Any] = []
        self.copies = {name: len(ranks) for name, ranks in held.items() if len(ranks) > 1}
        groups = sorted({tuple(held[name]) for name in self.copies})
        for group in groups:
            made = comm.Split(int(comm.rank in group), comm.rank)
            self._comms.append(made)
            shared = sorted(name for name in self.copies if tuple(held[name]) == group)
            if comm.rank in group:
                self._parameters += [(parameters[name], made) for name in shared]
        for parameter, shares in self._parameters:
            values = framework.values(parameter)
            shares.Bcast(values, root=0)

    def reduce(self) -> None:
        """Make the gradient of each copy the sum over all copies."""
        from mpi4py import MPI

        for parameter, shares in self._parameters:
            shares.Allreduce(MPI.IN_PLACE, self._framework.gradient(parameter), op=MPI.SUM)

    def free(self) -> None:
        """Free the communicators. Collective."""
        for made in self._comms:
            made.Free()
