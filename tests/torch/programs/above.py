"""What torch builds on process groups, on any number of ranks: the same as one process."""

from __future__ import annotations

import copy
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.nn as nn
from ranks import RANK, SIZE, main
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, zeros
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

FEATURES, ROWS = 12, 4  # columns, which every number of ranks up to 4 divides, and samples of a rank


def model():
    torch.manual_seed(5)
    layers = [nn.Linear(FEATURES, FEATURES), nn.Tanh()] * 2
    return nn.Sequential(*map(copy.deepcopy, layers), nn.Linear(FEATURES, FEATURES))


def samples(step):
    """All ranks' samples, and this rank's."""
    x = torch.randn(ROWS * SIZE, FEATURES, generator=torch.Generator().manual_seed(step))
    return x, x[RANK * ROWS : (RANK + 1) * ROWS]


def train(net, optimizer, mine, steps=3):
    """Train on all samples or on this rank's; the losses."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = net(samples(step)[mine]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def alone(cls=torch.optim.Adam):
    """What one process learns from all samples."""
    net = model()
    train(net, cls(net.parameters(), lr=0.05), mine=0)
    return net


def close(net, expected, **tolerance):
    for (name, p), q in zip(net.named_parameters(), expected.parameters(), strict=True):
        full = p.full_tensor() if isinstance(p, DTensor) else p
        torch.testing.assert_close(full, q, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


def test_zero_redundancy_optimizer():
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam, lr=0.05)
    train(net, optimizer, mine=1)
    close(net.module, alone())
    optimizer.consolidate_state_dict(to=0)
    if RANK == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(net.parameters()))
    local = optimizer.optim.state_dict()["state"]
    assert 0 < len(local) < len(list(net.parameters()))


def sharded(**options):
    mesh = init_device_mesh("cpu", (SIZE,), mesh_dim_names=("shards",))
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


def test_fully_shard():
    net = sharded()
    assert all(p.to_local().numel() == p.numel() // SIZE for p in net.parameters() if p.numel() == FEATURES**2)
    train(net, torch.optim.Adam(net.parameters(), lr=0.05), mine=1)
    close(net, alone())


def test_fully_shard_mixed_precision():
    net = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    train(net, torch.optim.SGD(net.parameters(), lr=0.05), mine=1)
    close(net, alone(torch.optim.SGD), rtol=0.02, atol=0.005)
    assert not torch.equal(net[0].weight.full_tensor(), alone(torch.optim.SGD)[0].weight)


def test_device_mesh():
    mesh = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("replicas", "shards"))
    assert mesh["shards"].get_local_rank() == RANK
    x = torch.full((3,), RANK + 1.0)
    dist.all_reduce(x, group=mesh.get_group("shards"))
    assert x.tolist() == [SIZE * (SIZE + 1) / 2] * 3
    dist.all_reduce(x, group=mesh.get_group("replicas"))
    assert x.tolist() == [SIZE * (SIZE + 1) / 2] * 3


def test_dtensor():
    mesh = init_device_mesh("cpu", (SIZE,))
    generator = torch.Generator().manual_seed(2)
    a = torch.randn(7, FEATURES, generator=generator)
    b = torch.randn(FEATURES, 5, generator=generator)
    rows, columns = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(a, mesh, [Shard(1)])
    torch.testing.assert_close((rows @ distribute_tensor(b, mesh, [Replicate()])).full_tensor(), a @ b)
    product = columns @ distribute_tensor(b, mesh, [Shard(0)])
    assert product.placements == (Partial(),)
    torch.testing.assert_close(product.redistribute(mesh, [Shard(0)]).full_tensor(), a @ b)
    torch.testing.assert_close(rows.redistribute(mesh, [Shard(1)]).to_local(), columns.to_local())
    torch.testing.assert_close(rows.mean().full_tensor(), a.mean())
    torch.testing.assert_close(rows.amax(0).full_tensor(), a.amax(0))
    assert zeros(FEATURES, device_mesh=mesh, placements=[Shard(0)]).to_local().numel() == FEATURES // SIZE


def test_tensor_parallel():
    mesh = init_device_mesh("cpu", (SIZE,))
    net, expected = model(), model()
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(net, torch.optim.SGD(net.parameters(), lr=0.05), mine=0)
    train(expected, torch.optim.SGD(expected.parameters(), lr=0.05), mine=0)
    assert net[0].weight.to_local().shape == (FEATURES // SIZE, FEATURES)
    close(net, expected)


def pipeline(schedule_class):
    """Gradients of a stage of this rank's and the losses, from a pipeline over all ranks of as many layers."""
    torch.manual_seed(9)
    layers = [nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh()) for _ in range(SIZE)]
    whole = nn.Sequential(*map(copy.deepcopy, layers))
    x, y = torch.randn(8, FEATURES), torch.randn(8, FEATURES)
    stage = PipelineStage(layers[RANK], RANK, SIZE, torch.device("cpu"))
    schedule = schedule_class(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    losses: list[torch.Tensor] = []
    last = RANK == SIZE - 1
    output = schedule.step(*([x] if RANK == 0 else []), **({"target": y, "losses": losses} if last else {}))
    expected = whole(x)
    loss = nn.functional.mse_loss(expected, y)
    loss.backward()
    if last:
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(torch.stack(losses).mean(), loss)
    for p, q in zip(layers[RANK].parameters(), whole[RANK].parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_pipelining_gpipe():
    pipeline(ScheduleGPipe)


def test_pipelining_1f1b():
    pipeline(Schedule1F1B)


def test_distributed_checkpoint():
    """Saved sharded, loaded into a model that is sharded anew, and into a whole one."""
    folder = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(folder)
    net = sharded()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    train(net, optimizer, mine=1)
    weights, state = get_state_dict(net, optimizer)
    checkpoint.save({"net": weights, "optimizer": state}, checkpoint_id=folder[0])
    assert len([name for name in os.listdir(folder[0]) if name.endswith(".distcp")]) == SIZE

    again = sharded()
    other = torch.optim.Adam(again.parameters(), lr=0.05)
    weights, state = get_state_dict(again, other)
    checkpoint.load({"net": weights, "optimizer": state}, checkpoint_id=folder[0])
    set_state_dict(again, other, model_state_dict=weights, optim_state_dict=state)
    close(again, alone())
    train(net, optimizer, mine=1)
    train(again, other, mine=1)
    for p, q in zip(net.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(p.to_local(), q.to_local(), rtol=0, atol=0)

    whole = {"net": model().state_dict()}
    checkpoint.load(whole, checkpoint_id=folder[0])
    for value, expected in zip(whole["net"].values(), alone().parameters(), strict=True):
        torch.testing.assert_close(value, expected)


if __name__ == "__main__":
    main(globals())
