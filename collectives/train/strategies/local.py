"""What strategies have in common whose ranks step by their own gradients and exchange parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..flat.model import narrow
from ..loading import fields
from ..models.nn import Array
from .base import Strategy
from .means import averages

if TYPE_CHECKING:
    from ..flat.buckets import Bucket
    from ..flat.model import Handle, Model


class Local(Strategy):
    """Each rank's optimizer steps by the gradient of the rank's own samples. Parameters are what the ranks exchange.

    A step in which a rank has no samples has a gradient of zeros there. ``steps`` counts the steps, ``samples`` are
    those of this rank in the step under way. Parameters of 16 bits are a ValueError: their means would be rounded to
    8 or 11 bits, below which the ranks' differences vanish.

    Parameters that are not finite, as after a gradient that was not, are a FloatingPointError before they reach other
    ranks. Where all ranks exchange, it is raised on all of them; among neighbours, on the rank that has them.
    """

    def __init__(self) -> None:
        self.steps = self.samples = 0
        self._loaded = False  # whether parameters were loaded that `begin_at_loaded` does not know

    def check(self, model: Model, handle: Handle, comm: Any) -> None:
        """Raise ValueError if a parameter has 16 bits."""
        short = narrow(model)
        if short is not None:
            name = type(self).__name__
            raise ValueError(f"parameter {short} has 16 bits; {name} averages parameters of 32 or 64 bits")

    @property
    def parameters(self) -> list[Array]:
        """This rank's parameters: an array of shape (n,) for each bucket."""
        return [bucket.data for bucket in self.buckets.list]

    @property
    def instead(self) -> str | None:
        """None: gradients are this rank's own. See `Strategy.instead`."""
        return None

    def on_bucket(self, bucket: Bucket) -> None:
        """Note the number of samples."""
        self.samples = bucket.samples

    def after_step(self) -> None:
        """Count the step."""
        self.steps += 1

    def batches(self, ranks: int) -> int:
        """All ranks': the ranks' mean moves by the mean of their steps, as one synchronous rank would."""
        return ranks

    def resize(self, comm: Any) -> None:
        """Go on with the ranks of `comm`."""
        self.comm = comm
        self.buckets.reset()

    def state_dict(self) -> dict[str, Any]:
        """The number of steps."""
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        (self.steps,) = fields(type(self).__name__, state, steps=int)
        self._loaded = False

    def follow_loads(self, arrays: Sequence[Array]) -> None:
        """Let `begin_at_loaded` make `arrays`, which are like `parameters`, copies of these after a load.

        That is a load into the network, or into a module of it.
        """
        self._followers = list(arrays)
        self.model.on_load(self._note_load, parts=True)

    def _note_load(self) -> None:
        self._loaded = True  # no copies yet: one load calls this for each module

    def begin_at_loaded(self) -> None:
        """See `follow_loads`. Nothing happens unless there was a load since the last call and the last state."""
        if self._loaded:
            self._loaded = False
            self.buckets.fetch()
            for array, data in zip(self._followers, self.parameters, strict=True):
                array[...] = data

    def by_name(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """Copies of the pieces of `arrays`, which are like `parameters`, by the parameters' names, for a state."""
        return {
            slot.name: array[slot.start : slot.start + slot.size].copy()
            for bucket, array in zip(self.buckets.list, arrays, strict=True)
            for slot in bucket.parameters
        }

    def take_by_name(self, arrays: Sequence[Array], state: Mapping[str, Any]) -> None:
        """Copy into `arrays` what `by_name` returned. ValueError for the state of another network."""
        for bucket, array in zip(self.buckets.list, arrays, strict=True):
            for slot in bucket.parameters:
                found = np.asarray(state.get(slot.name, ()))
                if found.shape != (slot.size,):
                    raise ValueError(f"the state of {type(self).__name__} does not fit to parameter {slot.name}")
                array[slot.start : slot.start + slot.size] = found


def average(comm: Any, arrays: Sequence[Array], share: float = 1.0, master: int | None = None) -> None:
    """Replace each array by the mean of all ranks' arrays, each of them times its rank's `share`. Collective.

    The ranks' shares must add up to the number of ranks. The mean is computed by all-reduces, or by rank `master`, to
    which all others send and which sends the result to all.
    """
    from mpi4py import MPI

    import collectives

    op = collectives.AVG if averages(comm) else MPI.SUM
    for array in arrays:
        if share == 0:
            array.fill(0)
        elif share != 1:
            array *= array.dtype.type(share)
    if master is None:
        for request in [comm.Iallreduce(MPI.IN_PLACE, array, op=op) for array in arrays]:
            request.Wait()
    else:
        for array in arrays:
            comm.Reduce(MPI.IN_PLACE if comm.rank == master else array, array, op=op, root=master)
            comm.Bcast(array, root=master)
    if not averages(comm):
        for array in arrays:
            array /= array.dtype.type(comm.size)
