"""Ways of torch_ways.py in which models wait for other ranks: data parallelism, sharding, pipelines."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from torch_ways import Step, rank, size, way, ways

import collectives.torch

WIDTH = 12


# DistributedDataParallel


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def trained(net: nn.Module, dtype: torch.dtype = torch.float32) -> Step:
    """A step of training, once made with all ranks."""
    rows = torch.ones(4, WIDTH, dtype=dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        optimizer.step()

    step()
    return step


def ddp(hook: object = None, state: object = None, dtype: torch.dtype = torch.float32, **options: bool) -> Step:
    net = DistributedDataParallel(model().to(dtype), **options)
    if isinstance(hook, dist.BuiltinCommHookType):
        net._register_builtin_comm_hook(hook)
    elif hook is not None:
        net.register_comm_hook(state, hook)
    return trained(net, dtype)


DDP = {
    "ddp": {},
    "ddp_find_unused": {"find_unused_parameters": True},
    "ddp_static_graph": {"static_graph": True},
    "ddp_bucket_view": {"gradient_as_bucket_view": True},
    "ddp_bf16": {"dtype": torch.bfloat16},
    "ddp_builtin_allreduce": {"hook": dist.BuiltinCommHookType.ALLREDUCE},
    "ddp_allreduce_hook": {"hook": default_hooks.allreduce_hook},
    "ddp_fp16_hook": {"hook": default_hooks.fp16_compress_hook},
    "ddp_bf16_hook": {"hook": lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket)},
    "ddp_heap_hook": {"hook": collectives.torch.heap_hook},
}
for name, options in DDP.items():
    ways[name] = lambda options=options: ddp(**options)


@way
def ddp_power_sgd() -> Step:
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
    )
    step = ddp(powerSGD_hook.powerSGD_hook, state)
    for _ in range(3):
        step()
    return step


@way
def ddp_accumulated() -> Step:
    net = DistributedDataParallel(model())
    step, rows = trained(net), torch.ones(4, WIDTH)

    def accumulated() -> None:
        with net.no_sync():
            net(rows).sum().backward()
        step()

    return accumulated


@way
def ddp_join() -> Step:
    net = DistributedDataParallel(model())
    step = trained(net)

    def joined() -> None:
        with Join([net]):
            for _ in range(3 - rank()):
                step()

    return joined


@way
def ddp_buffers() -> Step:
    net = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)))
    return trained(net)


@way
def ddp_constructor() -> Step:
    return lambda: DistributedDataParallel(model())


# What else trains


@way
def fsdp1() -> Step:
    return trained(FullyShardedDataParallel(model(), device_id=torch.device("cpu")))


@way
def fsdp2() -> Step:
    net = model()
    mesh = init_device_mesh("cpu", (size(),))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    return trained(net)


@way
def zero_redundancy() -> Step:
    net = model()
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam, lr=0.05)

    def step() -> None:
        net(torch.ones(4, WIDTH)).sum().backward()
        optimizer.step()

    step()
    return step


@way
def zero_redundancy_consolidated() -> Step:
    net = model()
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam, lr=0.05)
    net(torch.ones(4, WIDTH)).sum().backward()
    optimizer.step()
    return lambda: optimizer.consolidate_state_dict(to=0)


@way
def post_local_sgd() -> Step:
    net = DistributedDataParallel(model())
    state = post_localSGD_hook.PostLocalSGDState(None, None, start_localSGD_iter=1, post_local_gradient_allreduce=False)
    net.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    inner = torch.optim.SGD(net.parameters(), lr=0.01)
    optimizer = PostLocalSGDOptimizer(inner, PeriodicModelAverager(period=1, warmup_steps=0))

    def step() -> None:
        optimizer.zero_grad()
        net(torch.ones(4, WIDTH)).sum().backward()
        optimizer.step()

    step()
    return step


@way
def pipeline() -> Step:
    stage = PipelineStage(nn.Linear(WIDTH, WIDTH), rank(), size(), torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    rows, last = torch.ones(4, WIDTH), rank() == size() - 1

    def step() -> None:
        arguments = (rows,) if rank() == 0 else ()
        if last:
            schedule.step(*arguments, target=rows)
        else:
            schedule.step(*arguments)

    step()
    return step
