"""``Strategy``, the base class of all strategies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..buckets import Bucket
    from ..models.nn import Sequential
    from ..optim.sgd import SGD


class Strategy:
    """Decides when the ranks exchange data, and which. The methods here do nothing; a strategy overrides those it
    needs.

    `distribute` calls `setup` once, after the parameters were broadcast. ``replicated`` says whether all ranks hold the
    same parameters after every step (default: False). ``bucket_bytes`` is the longest bucket, in bytes (default: 1
    MiB).
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
        """Called when a bucket's gradients are complete, in the same order on all ranks. It should start to send them,
        and not wait."""

    def before_step(self) -> None:
        """Called before the optimizer uses the gradients."""

    def after_step(self) -> None:
        """Called after the optimizer has changed the parameters."""

    def finish(self) -> None:
        """Called when training has ended, before the parameters are evaluated or saved."""

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {"strategy": type(self).__name__, "bucket_bytes": self.bucket_bytes}

    def state_dict(self) -> dict[str, Any]:
        """The state of the strategy for a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
