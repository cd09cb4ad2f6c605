"""The process group that torch.distributed calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ..core import _core
from ..runtime.context import Context
from . import devices, gradients, profiling, sparse
from .arguments import Limit, Root, Tensors, list_of, one_of, options_of, plain_blocks
from .calls import Call, Calls
from .engines import Engine
from .queues import Queues
from .store import Exchange, MonitoredBarrier
from .tensors import FAST_CODES, FAST_OPS, check_on_cpu, lies_plain
from .work import Callbacks, Done, OperationWork, seconds

__all__ = ["ProcessGroup"]

NAME = "collectives"
_ALLREDUCE, _REDUCE_SCATTER = _core.kind_number("allreduce"), _core.kind_number("reduce_scatter_block")
_BCAST, _ALLGATHER = _core.kind_number("bcast"), _core.kind_number("allgather")

_callbacks = Callbacks.running  # while a callback runs, it matters which thread makes a call


class ProcessGroup(dist.ProcessGroup):
    """A process group whose collectives are this library's; made by ``init_process_group`` and ``new_group``.

    torch.distributed calls its methods. A call whose options do not say ``asyncOp`` has ended when it returns. Each
    call returns a Work. Arguments are checked before anything is sent: TypeError and ValueError name the argument.
    Errors of other ranks derive from CollectiveError; after one, the group refuses further calls. See docs/torch.md.
    """

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def __init__(
        self, engine: Engine, store: dist.Store, rank: int, size: int, name: str, timeout: timedelta
    ):  # fmt: skip
        super().__init__(rank, size)
        self._store = store
        self._queues = Queues(name, engine, Exchange(store, rank, size, timeout))
        self._context: Context | None = engine.context  # None: the group has been given up
        self._name, self._desc = name, "undefined"
        self._calls = Calls(rank, size)
        self._monitored = MonitoredBarrier(store, rank, size)

    # Names and properties

    def getBackendName(self) -> str:
        """Name of the backend."""
        return NAME

    def getGroupName(self) -> str:
        """Name of the group, unique in this process."""
        return self._name

    def getGroupDesc(self) -> str:
        """Description of the group, as the program has set it."""
        return self._desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> dist.Store:
        """The store over which the group was made."""
        return self._store

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in devices.SERVED]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if torch.device(device).type not in devices.SERVED:
            raise RuntimeError(f"the backend {NAME!r} serves tensors on {devices.SERVED}, not on {device}")
        return self

    def __repr__(self) -> str:
        return f"<{NAME} process group {self._name!r}, rank {self.rank()} of {self.size()}>"

    # Timeout, failure, end

    @property
    def engine(self) -> Engine:
        """The engine that runs the program's calls; RuntimeError if the group has been destroyed."""
        return self._queues.main.engine

    @property
    def failure(self) -> BaseException | None:
        """The error of the first asynchronous call that failed; None if none has failed.

        If C++ waits for a call, as in DistributedDataParallel, the program may get only a RuntimeError with the error's
        message. This is the error itself.
        """
        return self._queues.failure

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of the group's calls from now on."""
        self._queues.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Complete the calls that are under way, and destroy the group; ranks need not do so together.

        The error of a call that fails is logged, and is :attr:`failure` from then on.
        """
        try:
            self._queues.finish()
        finally:
            self._close()

    def abort(self) -> None:
        """Destroy the group. Calls under way end by CollectiveError, on the other ranks too; later calls raise
        RuntimeError."""
        self._queues.abort()
        self._close()

    def _close(self) -> None:
        self._queues.close()
        self._context = None

    # How calls are made

    def _issue(self, call: Call, opts: Any) -> dist.Work:
        return self._issue_all([call], opts)

    def _issue_all(self, calls: Sequence[Call], opts: Any) -> dist.Work:
        """Run calls one after the other, or start all of them if the options say ``asyncOp``."""
        queue, results = self._queues.current(), [tensor for call in calls for tensor in call.results]
        ends = [profiling.begun(calls[0].shape.collective, results)] if calls and profiling.enabled() else []
        limit, gpu = None if opts is None else seconds(opts.timeout), devices.gpu_of(calls)
        if gpu is not None:
            return self._issue_on(gpu, calls, limit, ends)
        if opts is not None and not opts.asyncOp:
            for call in calls:
                queue.engine.run(call, limit)
                call.finish()
            for end in ends:
                end()
            return Done(results)
        operations: list[_core.Operation] = []
        for i, call in enumerate(calls):
            steps = [call.finish] if call.ends else []
            steps += ends if i == len(calls) - 1 else []
            operation = queue.engine.start(call, lambda steps=steps: [step() for step in steps])  # type: ignore[misc]
            if operation is not None:
                operations.append(operation)
            else:
                queue.engine.run(call, limit)
                for step in steps:
                    step()
        return OperationWork(results, operations, queue.callbacks, limit)

    def _issue_on(
        self, gpu: torch.device, calls: Sequence[Call], limit: float | None, ends: Sequence[Callable[[], None]]
    ) -> dist.Work:  # fmt: skip
        """Run calls on a GPU in the order of torch's stream; the host's part of them has been done on return."""
        devices.check_config(self, gpu)
        engine, stream = self._queues.current().engine, devices.stream_of(gpu)
        for call in calls:
            engine.run_on_gpu(call, gpu.index or 0, stream, limit)
            call.finish()
        for end in ends:
            end()
        return devices.Issued([tensor for call in calls for tensor in call.results], gpu)

    def _is_fast(self) -> bool:
        """Whether a call may take the fast path: no profiler is on, and no callback is running that could make it."""
        return self._context is not None and not _callbacks and not profiling.enabled()

    def _fast(
        self, opts: Any, kind: int, source: torch.Tensor | None, target: torch.Tensor, count: int, dtype: int = -1,
        op: int = -1, root: int = 0,
    ) -> dist.Work | None:  # fmt: skip
        """Run or start a call of contiguous tensors on the fast path; None, with nothing done, if it is not served
        there."""
        context, a, owners = self._context, gradients.address_of(target), (source, target)
        b = a if source is None else source.data_ptr()
        assert context is not None
        if not opts.asyncOp:
            ended = _core.run_memory(context, owners, _limit_of, opts, kind, b, a, count, dtype, op, root)
            return Done([target]) if ended else None
        operation = _core.start_memory(context, owners, kind, b, a, count, dtype, op, root)
        return operation and OperationWork([target], [operation], self._queues.main.callbacks, _limit_of(opts))

    # Reductions

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Limit = None, *, op: Any = None) -> dist.Work:
        """Reduce a tensor over all ranks, in place. A sparse tensor (COO) is reduced by SUM or AVG only."""
        if op is None and timeout is None and type(tensors) is list and len(tensors) == 1:
            t = tensors[0]
            if type(opts) is c10d.AllreduceOptions and self._is_fast() and t.is_cpu and t.layout is torch.strided:
                code, number = FAST_CODES.get(t.dtype), FAST_OPS.get(hash(opts.reduceOp))
                if code is not None and number is not None and lies_plain(t):
                    if work := self._fast(opts, _ALLREDUCE, None, t, t.numel(), code, number):
                        return work
        opts = options_of(c10d.AllreduceOptions, opts, op, timeout)
        tensor = one_of(tensors, "tensors")
        if tensor.layout is torch.sparse_coo:
            return sparse.allreduce(self, tensor, opts)
        return self._issue(self._calls.allreduce(tensor, opts.reduceOp), opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """Reduce several tensors over all ranks, each in place."""
        opts = options_of(c10d.AllreduceCoalescedOptions, opts)
        return self._issue_all([self._calls.allreduce(tensor, opts.reduceOp) for tensor in tensors], opts)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Limit = None, *, root: Root = None
    ) -> dist.Work:  # fmt: skip
        """Reduce a tensor over all ranks, in place at the root."""
        opts = options_of(c10d.ReduceOptions, opts, op, timeout, root)
        return self._issue(self._calls.reduce(one_of(tensors, "tensors"), opts.rootRank, opts.reduceOp), opts)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Limit = None, *, op: Any = None
    ) -> dist.Work:  # fmt: skip
        """Reduce a list of blocks over all ranks; every rank gets its block. Blocks may differ in length."""
        opts = options_of(c10d.ReduceScatterOptions, opts, op, timeout)
        return self._issue(self._calls.reduce_scatter(one_of(outputs, "output"), list_of(inputs), opts.reduceOp), opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        """Reduce a tensor over all ranks; every rank gets its block. ``input`` has as many equal blocks as ranks."""
        if type(opts) is c10d.ReduceScatterOptions and self._is_fast() and plain_blocks(output, input, self.size()):
            code, op = FAST_CODES.get(input.dtype), FAST_OPS.get(hash(opts.reduceOp))
            if code is not None and op is not None:
                if work := self._fast(opts, _REDUCE_SCATTER, input, output, input.numel(), code, op):
                    return work
        opts = options_of(c10d.ReduceScatterOptions, opts)
        return self._issue(self._calls.reduce_scatter_single(output, input, opts.reduceOp), opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """Several reduce-scatters of tensors."""
        opts = options_of(c10d.ReduceScatterOptions, opts)
        pairs = zip(outputs, inputs, strict=True)
        return self._issue_all([self._calls.reduce_scatter_single(o, i, opts.reduceOp) for o, i in pairs], opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Moving

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Limit = None, *, root: Root = None) -> dist.Work:
        """Give all ranks the root's tensor, in place."""
        if type(opts) is c10d.BroadcastOptions and timeout is None and root is None and self._is_fast():
            t = one_of(tensors, "tensors")
            if t.is_cpu and t.layout is torch.strided and lies_plain(t) and 0 <= opts.rootRank < self._calls.size:
                if work := self._fast(opts, _BCAST, None, t, t.nbytes, root=opts.rootRank):
                    return work
        opts = options_of(c10d.BroadcastOptions, opts, timeout=timeout, root=root)
        return self._issue(self._calls.broadcast(one_of(tensors, "tensors"), opts.rootRank), opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *, timeout: Limit = None) -> dist.Work:
        """Collect a block from every rank on all ranks, in a list of tensors."""
        opts = options_of(c10d.AllgatherOptions, opts, timeout=timeout)
        return self._issue(self._calls.allgather(list_of(outputs), one_of(inputs, "tensor")), opts)

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        """Several all-gathers; ``outputs[i]`` is the list of the tensors that come from rank i."""
        opts = options_of(c10d.AllgatherOptions, opts)
        lists = zip(*outputs, strict=True)
        return self._issue_all([self._calls.allgather(o, i) for o, i in zip(lists, inputs, strict=True)], opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        """Collect a block from every rank on all ranks, in one tensor."""
        if type(opts) is c10d.AllgatherOptions and self._is_fast() and plain_blocks(input, output, self.size()):
            if work := self._fast(opts, _ALLGATHER, input, output, output.nbytes):
                return work
        opts = options_of(c10d.AllgatherOptions, opts)
        return self._issue(self._calls.allgather_single(output, input), opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """Several all-gathers into tensors."""
        opts = options_of(c10d.AllgatherOptions, opts)
        pairs = zip(outputs, inputs, strict=True)
        return self._issue_all([self._calls.allgather_single(o, i) for o, i in pairs], opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Limit = None, *, root: Root = None
    ) -> dist.Work:  # fmt: skip
        """Collect a block from every rank on the root."""
        opts = options_of(c10d.GatherOptions, opts, timeout=timeout, root=root)
        outs = list_of(outputs) if self.rank() == opts.rootRank else []
        return self._issue(self._calls.gather(outs, one_of(inputs, "tensor"), opts.rootRank), opts)

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Limit = None, *, root: Root = None
    ) -> dist.Work:  # fmt: skip
        """Give every rank its block of the root's list."""
        opts = options_of(c10d.ScatterOptions, opts, timeout=timeout, root=root)
        ins = list_of(inputs) if self.rank() == opts.rootRank else []
        return self._issue(self._calls.scatter(one_of(outputs, "tensor"), ins, opts.rootRank), opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None, *, timeout: Limit = None) -> dist.Work:
        """Send a block to every rank, and receive one from every rank."""
        opts = options_of(c10d.AllToAllOptions, opts, timeout=timeout)
        return self._issue(self._calls.alltoall(outputs, inputs), opts)

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: list[int], input_splits: list[int],
        opts: Any = None, *, timeout: Limit = None,
    ) -> dist.Work:  # fmt: skip
        """Send a block to every rank, and receive one from every rank, of tensors split along their first dimension.

        ``output_splits`` and ``input_splits`` are lengths in that dimension, one for each rank; empty: equal parts.
        """
        opts = options_of(c10d.AllToAllOptions, opts, timeout=timeout)
        return self._issue(self._calls.alltoall_single(output, input, output_splits, input_splits), opts)

    alltoall_base = all_to_all_single

    # Barriers

    def barrier(self, opts: Any = None, *, timeout: Limit = None) -> dist.Work:
        """Wait for all ranks."""
        opts = options_of(c10d.BarrierOptions, opts, timeout=timeout)
        return self._issue(self._calls.barrier(), opts)

    def monitored_barrier(self, timeout: Limit = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks. CollectiveTimeout names ranks that did not come in time; the group can be used after
        it."""
        self.engine.context.check()
        self._monitored(self._queues.timeout if timeout is None else timeout, wait_all_ranks)

    # Point-to-point

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> dist.Work:
        """Send a tensor to a rank."""
        return self.engine.messages.send(_of_message(tensors), self._peer(peer, "dst"), tag)

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> dist.Work:
        """Receive a tensor from a rank."""
        return self.engine.messages.receive(_of_message(tensors), self._peer(peer, "src"), tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        """Receive a tensor from any rank."""
        return self.engine.messages.receive(_of_message(tensors), None, tag)

    def _peer(self, peer: int, argument: str) -> int:
        if not 0 <= peer < self.size():
            raise ValueError(f"{argument}: {peer} is not a rank of a group of {self.size()}")
        return peer

    # torch's own coalescing of calls, which is refused

    def _start_coalescing(self, device: torch.device) -> None:
        c10d._world.pg_coalesce_state.pop(self, None)  # there the manager has noted the group, to collect its calls
        raise RuntimeError(f"the backend {NAME!r} begins calls at once; leave out the device of _coalescing_manager")

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return Done([])


def _of_message(tensors: Any) -> torch.Tensor:
    """The tensor of a message, which must be on the CPU."""
    return check_on_cpu(one_of(tensors, "tensor"), "tensor")


def _limit_of(opts: Any) -> float | None:
    """The timeout of a call with these options, in seconds; None: the group's."""
    return seconds(opts.timeout)


def _untraced(cls: type) -> None:
    """Let torch.compile run the methods, and all that they call, without tracing, as it runs those of a group in C++.

    This sets the compiler's own mark directly. The functions of torch that set it would import the compiler, which
    takes seconds.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for method in vars(cls).values():
        if isinstance(method, FunctionType):
            frames.set_code_exec_strategy(method.__code__, skip)


_untraced(ProcessGroup)
