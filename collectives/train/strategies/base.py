"""What a strategy is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..buckets import Bucket
    from ..nn import Sequential
    from ..optim import SGD


class Strategy:
    """When and what the ranks exchange. These methods do nothing; a strategy overrides the ones it needs.

    `distribute` calls `setup` once, after the parameters were broadcast. ``replicated`` says whether all ranks hold the
    same parameters after every step; ``bucket_bytes`` is the size at which buckets are cut.
    """

    replicated = False
    bucket_bytes = 1 << 20

    net: Sequential
    opt: SGD
    comm: Any

    def setup(self, net: Sequential, opt: SGD, comm: Any) -> None:
        """Take the network, its optimizer and the communicator. An override calls this one first."""
        self.net, self.opt, self.comm = net, opt, comm

    def on_bucket(self, bucket: Bucket) -> None:
        """A bucket's gradients are complete: start sending, do not wait."""

    def before_step(self) -> None:
        """The optimizer is about to use the gradients."""

    def after_step(self) -> None:
        """The optimizer has changed the parameters."""

    def finish(self) -> None:
        """Training has ended: the parameters are about to be evaluated or saved."""

    def settings(self) -> dict[str, Any]:
        """What all ranks must have in common."""
        return {"strategy": type(self).__name__, "bucket_bytes": self.bucket_bytes}

    def state_dict(self) -> dict[str, Any]:
        """What must be remembered in a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave."""
