"""Ways in which a program waits for other ranks through torch.distributed, on the CPU.

Each makes what it needs, with all ranks, and gives a function that all ranks must call for it to end.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
import torch.distributed.nn.functional as differentiable
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

Step = Callable[[], object]
ways: dict[str, Callable[[], Step]] = {}


def way(make: Callable[[], Step]) -> Callable[[], Step]:
    ways[make.__name__] = make
    return make


def x(count: int = 1000) -> torch.Tensor:
    return torch.ones(count)


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


# Tensors over ranks


@way
def functional_all_reduce() -> Step:
    return lambda: functional.all_reduce(x(), "sum", dist.group.WORLD) + 1


@way
def functional_wait() -> Step:
    return lambda: functional.wait_tensor(functional.all_gather_tensor(x(), 0, dist.group.WORLD))


@way
def functional_operator() -> Step:
    def step() -> None:
        name = dist.group.WORLD.group_name
        made = torch.ops._c10d_functional.reduce_scatter_tensor(x(size() * 10), "sum", size(), name)
        torch.ops._c10d_functional.wait_tensor(made)

    return step


@way
def functional_coalesced() -> Step:
    def step() -> None:
        for made in functional.all_reduce_coalesced([x(), x(10)], "sum", dist.group.WORLD):
            functional.wait_tensor(made)

    return step


@way
def differentiable_all_reduce() -> Step:
    def step() -> None:
        y = x().requires_grad_()
        differentiable.all_reduce(y).sum().backward()

    return step


@way
def dtensor_redistributed() -> Step:
    mesh = init_device_mesh("cpu", (size(),))
    tensor = distribute_tensor(torch.ones(12, 4), mesh, [Shard(0)])
    return lambda: tensor.redistribute(mesh, [Replicate()]).to_local() + 1


@way
def dtensor_full() -> Step:
    tensor = distribute_tensor(torch.ones(12, 4), init_device_mesh("cpu", (size(),)), [Shard(0)])
    return lambda: tensor.full_tensor() + 1


@way
def dtensor_distributed() -> Step:
    mesh = init_device_mesh("cpu", (size(),))
    return lambda: distribute_tensor(torch.ones(12, 4), mesh, [Shard(0)], src_data_rank=size() - 1)


@way
def device_mesh() -> Step:
    mesh = init_device_mesh("cpu", (1, size()), mesh_dim_names=("one", "all"))
    return lambda: dist.all_reduce(x(), group=mesh["all"].get_group())


# Collectives, Works and futures


def begun() -> dist.Work:
    return dist.all_reduce(x(), async_op=True)


CALLS: dict[str, Step] = {
    "all_reduce": lambda: dist.all_reduce(x()),
    "reduce": lambda: dist.reduce(x(), 0) or dist.barrier(),
    "broadcast": lambda: dist.broadcast(x(), size() - 1),
    "all_gather": lambda: dist.all_gather([x() for _ in range(size())], x()),
    "all_gather_uneven": lambda: dist.all_gather([x(10 + i) for i in range(size())], x(10 + rank())),
    "all_gather_single": lambda: dist.all_gather_into_tensor(x(10 * size()), x(10)),
    "reduce_scatter": lambda: dist.reduce_scatter(x(10), [x(10) for _ in range(size())]),
    "reduce_scatter_single": lambda: dist.reduce_scatter_tensor(x(10), x(10 * size())),
    "all_to_all": lambda: dist.all_to_all([x(10) for _ in range(size())], [x(10) for _ in range(size())]),
    "all_to_all_single": lambda: dist.all_to_all_single(x(10 * size()), x(10 * size())),
    "scatter": lambda: dist.scatter(x(10), [x(10)] * size() if rank() == size() - 1 else None, src=size() - 1),
    "barrier": lambda: dist.barrier(),
    "sparse": lambda: dist.all_reduce(torch.eye(4).to_sparse()),
    "work": lambda: begun().wait(),
    "future": lambda: begun().get_future().wait(),
    "future_value": lambda: [(f := begun().get_future()).then(lambda _: None).wait(), f.value()],
    "then": lambda: begun().get_future().then(lambda f: f.value()[0] + 1).wait(),
    "then_twice": lambda: begun().get_future().then(lambda f: f.value()).then(lambda f: f.value()).wait(),
    "then_calls": lambda: begun().get_future().then(lambda f: dist.all_reduce(x())).wait(),
    "wait_all": lambda: torch.futures.wait_all([begun().get_future() for _ in range(3)]),
    "collect_all": lambda: torch.futures.collect_all([begun().get_future() for _ in range(3)]).wait(),
    "collect_all_then": lambda: torch.futures.collect_all([begun().get_future()]).then(lambda f: f.value()).wait(),
    "monitored_barrier": lambda: dist.monitored_barrier(),
    "all_gather_object": lambda: dist.all_gather_object([None] * size(), {"rank": rank()}),
    "broadcast_object_list": lambda: dist.broadcast_object_list([rank()], src=size() - 1),
    "scatter_object_list": lambda: dist.scatter_object_list([None], [1] * size(), src=size() - 1),
    "gather_object": lambda: dist.gather_object(1, [None] * size() if rank() == 0 else None) or dist.barrier(),
    "new_group": lambda: dist.new_group(backend="collectives"),
    "new_subgroups": lambda: dist.new_subgroups(size()),
}
for name, step in CALLS.items():
    ways[name] = lambda step=step: step


@way
def done_callback() -> Step:
    def step() -> None:
        seen: list[object] = []
        future = begun().get_future()
        future.add_done_callback(lambda f: seen.append(f.value()))
        future.wait()

    return step


@way
def coalesced() -> Step:
    def step() -> None:
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(x())
            dist.all_reduce(x(10))
        manager.wait()

    return step


@way
def all_reduce_coalesced() -> Step:
    return lambda: dist.all_reduce_coalesced([x(), x(10)])


# Messages


def neighbours() -> tuple[int, int]:
    return (rank() + 1) % size(), (rank() - 1) % size()


@way
def receive() -> Step:
    return lambda: dist.recv(x(), size() - 1)


@way
def receive_from_any() -> Step:
    return lambda: dist.recv(x())


@way
def receive_begun() -> Step:
    return lambda: dist.irecv(x(), size() - 1).wait()


@way
def receive_future() -> Step:
    return lambda: dist.irecv(x(), size() - 1).get_future().wait()


@way
def send_long() -> Step:
    return lambda: dist.send(torch.ones(4 << 20), size() - 1)


@way
def send_long_afterwards() -> Step:
    """Once the system has closed what connected the two."""

    def step() -> None:
        time.sleep(0.3)
        dist.send(torch.ones(4 << 20), size() - 1)

    return step


@way
def exchange_batch() -> Step:
    """Every rank with the last one."""

    def step() -> None:
        last = size() - 1
        operations = [dist.P2POp(dist.isend, x(), last), dist.P2POp(dist.irecv, x(), last)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return step


@way
def receive_objects() -> Step:
    return lambda: dist.recv_object_list([None], src=size() - 1)


# Checkpoints


def folder() -> str:
    name = [tempfile.mkdtemp(dir=os.environ["SCRATCH"])]
    dist.broadcast_object_list(name)
    return name[0]


@way
def checkpoint_saved() -> Step:
    where = folder()
    return lambda: checkpoint.save({"x": x()}, checkpoint_id=where)


@way
def checkpoint_loaded() -> Step:
    where, state = folder(), {"x": x()}
    with contextlib.redirect_stderr(None):
        checkpoint.save(state, checkpoint_id=where)
    return lambda: checkpoint.load(state, checkpoint_id=where)


@way
def checkpoint_sharded() -> Step:
    where = folder()
    tensor = distribute_tensor(torch.ones(12, 4), init_device_mesh("cpu", (size(),)), [Shard(0)])
    return lambda: checkpoint.save({"x": tensor}, checkpoint_id=where)
