"""``Central``: what all strategies with a parameter server have in common."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..agree import together
from ..counts import count
from ..flat.model import check_fresh, narrow
from ..loading import fields
from ..models.nn import Array
from ..optim.schedules import get_lrs
from ..roles import Role, begin, end
from ..run.signals import Signals
from ..server.assembly import Assembly
from ..server.clocks import Policy
from ..server.layout import Places, ranges
from ..server.lifeline import lifeline
from ..server.shard import check_state
from ..server.tables import Table
from ..server.transfers import Pause
from .base import WHOLE, Strategy
from .finite import check_gradients
from .pattern import GRADIENTS, Pattern, central

if TYPE_CHECKING:
    from ..flat.buckets import Bucket
    from ..flat.model import Handle, Model
    from ..server.client import Client


class Central(Strategy):
    """Parameters are held by servers: workers push gradients, and pull parameters (Li et al., OSDI 2014).

    A derived class gives a `Policy`. Arguments, what the program must know, and errors are those of `ParameterServer`.
    """

    policy: Policy
    sends_parameters = False
    serves_optimizer = True  # whether the optimizer works on the servers, instead of on the workers

    def __init__(
        self, servers: int = 1, *, beside: bool = False, backup: bool = False,
        tables: Mapping[str, Table] | None = None, bucket_bytes: int | None = None,
    ) -> None:  # fmt: skip
        self.servers, self.beside, self.backup = count("servers", servers), beside, backup
        if backup and servers < 2:
            raise ValueError("backup needs at least 2 servers")
        self.bucket_bytes = None if bucket_bytes is None else count("bucket_bytes", bucket_bytes)
        if not isinstance(tables, Mapping | None):
            raise TypeError(f"tables must be a dict of train.Table by name, not {tables!r}")
        self.tables = dict(sorted((tables or {}).items(), key=lambda item: str(item[0])))  # servers number them
        self.worker = True
        self._closed, self._loaded = False, False
        self._side: Client | None = None  # of a worker
        self._told = [0, 0, 0]  # gap, lag and dropped, to a rank that has served
        self._pulled: list[int] = []  # marks of the parameters that were read last
        self._series: object = None  # the latest of `take`, and its number
        self._number_of_series = -1
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def check(self, model: Model, handle: Handle, comm: Any) -> None:
        """Raise ValueError unless the ranks, the network and the optimizer are fit for servers."""
        self._places(comm.size)
        short = narrow(model)
        if short is not None:
            raise ValueError(f"parameter {short} has 16 bits; servers hold float32 and float64")
        check_fresh(handle)
        if self.serves_optimizer and not handle.elementwise:
            needs = f"{type(handle.opt).__name__} needs whole parameters in their shapes"
            raise ValueError(f"{needs}; servers have pieces of flat arrays")
        for name, table in self.tables.items():
            if not isinstance(table, Table):
                raise TypeError(f"tables: {name} must be a train.Table, not {table!r}")
            table.check(name)
        if self.beside and not _has_threads(comm):
            raise ValueError("beside=True needs MPI.THREAD_MULTIPLE, which this MPI was not initialized with")

    def check_parts(self, name: str) -> None:
        """See `Strategy.check_parts`."""
        raise ValueError(f"{name} {WHOLE}, and its servers hold whole ones")

    def saves_buckets(self, model: Model) -> bool:
        """True: servers have parts of buckets."""
        return True

    def _places(self, size: int) -> Places:
        """Which of `size` ranks serve. ValueError if none is left to train."""
        if self.servers > (size if self.beside else size - 1):
            left = "more than ranks" if self.beside else "none is left to train"
            raise ValueError(f"servers={self.servers} of {size} ranks: {left}")
        return Places(size, self.servers, self.beside, self.backup)

    def setup(self, net: Any, opt: Any, comm: Any) -> None:
        """See `Strategy.setup`."""
        super().setup(net, opt, comm)
        places = self._places(comm.size)
        self.worker = comm.rank in places.workers
        serves = places.served_by(comm.rank) is not None
        self._messages = comm.Dup()
        self._lifeline = lifeline(comm, comm.rank % 2 if self.beside else int(self.worker))
        self._role: Role | None = None
        if not self.beside:
            self.comm = comm.Split(int(self.worker), comm.rank)
            self._role = Role(self._messages, self.comm, self.worker)
            begin(self._role)
        layout = ranges(self.buckets.list, self.servers)
        parts = Assembly(self._messages, places, self.buckets.list, layout, self.tables)
        self._server = parts.server(self.handle, self.policy, self._lifeline) if serves else None
        if self.serves_optimizer:
            self.handle.replace([])
        self._options = self.handle.options()
        if self.worker:
            self._side = parts.client(self._watch)
            self.model.on_load(self._note_load, parts=True)
            self._note_pulled()

    @property
    def _client(self) -> Client:
        """This worker's side of the servers. RuntimeError on a rank that has served."""
        if self._side is None:
            raise RuntimeError("this rank has served; only ranks with opt.strategy.worker run the loop")
        return self._side

    def begin(self) -> None:
        """Serve, on a rank that does not train, until all workers have left; start the thread of one that does."""
        if self.worker and self._server is not None:
            self._thread = threading.Thread(target=self._serve_beside, name="parameter server", daemon=True)
            self._thread.start()
        elif self._server is not None:
            with Signals():  # launchers pass signals on to all ranks: those that train stop, and then let this one go
                self._server.serve(self._lifeline.leave)
            self._part()

    def _serve_beside(self) -> None:
        try:
            assert self._server is not None
            self._server.serve(self._lifeline.left)
        except BaseException as error:
            self._error = error

    def _watch(self) -> set[int]:
        """The ranks that have died. Raises what ended this rank's thread of a server."""
        if self._error is not None:
            raise self._error
        self._lifeline.look()
        return self._lifeline.dead

    def _note_load(self) -> None:
        self._loaded = True

    def _publish_loaded(self) -> None:
        """Bring parameters that were loaded into the network to the servers. Collective over the workers."""
        if self._loaded:
            self._take_parameters()

    def _take_parameters(self) -> None:
        """Wait for all workers, and take the servers' parameters: those that were loaded into the network, if any were.

        Collective over the workers.
        """
        if self._loaded:
            self._loaded = False
            self._client.meet()
            self.buckets.fetch()
            if self._client.place == 0:
                loaded = {f"bucket {bucket.index}": bucket.data for bucket in self.buckets.list}
                self._client.load({"parameters": loaded})
        self._client.meet(self._targets)
        self._note_pulled()
        self.buckets.deliver()

    def _note_pulled(self) -> None:
        """Note which parameters this worker has from the servers, if these change them."""
        if self.serves_optimizer:
            self._pulled = [_mark(data) for _, data in self._own_memory()]

    def _own_memory(self) -> Iterator[tuple[str, Array]]:
        """The parameters by name, but for those on a device, of which the buckets have copies."""
        for bucket in self.buckets.list:
            for slot in bucket.parameters:
                if not slot.on_device:
                    yield slot.name, bucket.data[slot.start : slot.start + slot.size]

    @property
    def _targets(self) -> list[Array]:
        """Where parameters that are read go, by bucket."""
        return [bucket.data for bucket in self.buckets.list]

    def on_bucket(self, bucket: Bucket) -> None:
        """Push the gradient of this bucket."""
        self._publish_loaded()
        self._client.push(bucket.index, bucket.samples, bucket.grads)

    def discard(self) -> None:
        """Let the servers drop what was pushed and no step has used; those that have left have dropped it."""
        if not self._closed:
            self._client.discard()

    def before_step(self) -> bool:
        """Pull the parameters after all gradients were pushed. The worker's own optimizer has nothing to work on.

        FloatingPointError if a gradient of this worker is not finite; ValueError if an option of the optimizer other
        than the learning rate has changed, or if the program has changed parameters, which would be undone. Servers
        then drop what this worker has pushed.
        """
        self._client.check()
        if self.problem is None:
            self._check_step()
            self._client.step(get_lrs(self.opt), self._targets)
            self._note_pulled()
            self.buckets.deliver()
        return True

    def _check_step(self) -> None:
        try:
            self._check_options()
            self._check_parameters()
            check_gradients(self.buckets.list, self.comm.rank)
        except (FloatingPointError, ValueError):
            self._client.discard()
            raise

    def _check_options(self) -> None:
        """Raise ValueError unless the worker's optimizer has the options that the servers' copies have."""
        now = self.handle.options()
        for name, value in self._options.items():
            if now.get(name) != value:
                raise ValueError(
                    f"{name} of the optimizer was {value} and is {now.get(name)}: servers follow the learning rate "
                    "only; for OneCycleLR, give it cycle_momentum=False"
                )

    def _check_parameters(self) -> None:
        """Raise ValueError if the parameters are others than those that the servers have sent."""
        for (name, data), mark in zip(self._own_memory(), self._pulled, strict=True):
            if _mark(data) != mark:
                raise ValueError(
                    f"parameter {name} was changed since the last step: servers hold the parameters, and would undo "
                    "that; net.load_state_dict() on all workers, before backward(), brings others to them"
                )

    @property
    def gap(self) -> int:
        """The most clocks by which a worker that went on was ahead of the slowest, so far (see `Clocks`)."""
        return self._told[0] if self._side is None else self._side.gap

    @property
    def lag(self) -> int:
        """The most updates by others between a worker's pull and the update by its gradient, so far."""
        return self._told[1] if self._side is None else self._side.lag

    @property
    def dropped(self) -> int:
        """The gradients of all workers that were too old to become updates, so far (see `Policy`)."""
        return self._told[2] if self._side is None else self._side.dropped

    def take(self, series: object) -> int:
        """See `Strategy.take`."""
        if series is not self._series:
            self._series, self._number_of_series = series, self._number_of_series + 1
        return self._client.take(self._number_of_series)

    def meet(self) -> None:
        """Wait for all workers; steps of others do not wait for this one meanwhile. Collective over the workers."""
        if not self.lockstep:
            self._take_parameters()

    def finish(self) -> None:
        """Wait for all workers, and take the servers' parameters. Collective over the workers."""
        if self.worker and not self._closed:
            self._take_parameters()

    def close(self) -> None:
        """Let the servers go, after `finish`. Collective over all ranks; ranks that have served only take note."""
        if self._closed:
            return
        if self.worker:
            self.finish()
            self._client.leave()
            self._part()
        self._closed = True
        if self._role is not None:
            end(self._role)

    def _part(self) -> None:
        """Workers and servers part, with the same parameters if none has died."""
        pause = Pause()
        while not self._lifeline.leave():
            self._watch()
            pause.rest()
        if self._thread is not None:
            self._thread.join()
            self._watch()
        if not self.beside:
            self._hand_over()
        self._lifeline.close()

    def _hand_over(self) -> None:
        """Give the parameters, what the first worker knows, and its buffers such as statistics, to ranks that have
        served."""
        given, extras = [bucket.data.copy() for bucket in self.buckets.list], self.model.extras()
        told = np.array([self.gap, self.lag, self.dropped])

        def broadcast(comm: Any) -> None:
            for data in [*(data.view(np.uint8) for data in (*given, told)), *(data for data, _ in extras)]:
                comm.Bcast(data, root=0)

        if self._lifeline.together(broadcast):
            self._told = told.tolist()
            for bucket, data in zip(self.buckets.list, given, strict=True):
                bucket.data[...] = data
            self.buckets.deliver()
            for data, put in [] if self.worker else extras:  # workers keep their own
                put(data)

    def batches(self, ranks: int) -> int:
        """All ranks', if the gradients of a clock are folded into their mean.

        1 if each gradient is an update of its own: it comes from old parameters, for which a rate that suits the mean
        is too long, also where each gradient has a part of the rate.
        """
        return ranks if self.policy.fold else 1

    def pattern(self, size: int) -> Pattern:
        """Gradients to all servers after each step, and parameters back. Copies for a backup are left out."""
        return self._exchange(size, GRADIENTS, 1)

    def _exchange(self, size: int, what: str, every: int) -> Pattern:
        places = self._places(size)
        servers = [places.homes(shard)[0] for shard in range(self.servers)]
        return central(servers, self.policy.staleness, beside=self.beside, what=what, every=every)

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        tables = {name: table.describe() for name, table in self.tables.items()}
        own = {key: getattr(self, key) for key in ("servers", "beside", "backup", "policy")}
        return {**super().settings(), **own, "tables": tables}

    def state_dict(self) -> dict[str, Any]:
        """The state of the servers, on the first worker. Collective over the workers, which take the parameters."""
        self._take_parameters()
        state = {"servers": self._client.save() if self._client.place == 0 else None}
        self._client.meet()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, for any number of servers. Collective over the workers, which take the parameters.

        On all workers, before anything is sent: TypeError for what is no mapping, ValueError without the servers'
        state, and for that of other buckets or of another optimizer.
        """
        first = self._client.place == 0
        self._client.check()

        def checked() -> Any:
            (servers,) = fields(type(self).__name__, state, servers=dict if first else lambda held: held)
            if first:
                check_state(servers, self.buckets.list, self.handle)
            return servers

        servers = together(self.comm, checked)
        self._loaded = False  # the state has the parameters that count
        self._client.meet()
        if first:
            self._client.load(servers)
        self._take_parameters()
        self._options = self.handle.options()  # those of the state, which the servers have, too


def _mark(data: Array) -> int:
    """A number that becomes another one if one element changes: the sum of the elements' words."""
    return int(np.add.reduce(data.view(np.uint32), dtype=np.uint32))


def _has_threads(comm: Any) -> bool:
    """Whether several threads of a rank may communicate."""
    if hasattr(comm, "same_ranks"):  # ranks that are threads
        return True
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE
