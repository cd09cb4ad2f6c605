"""collectives.horovod on any number of ranks: the same as one process with all ranks' samples."""

from __future__ import annotations

import copy
import re

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from ranks import RANK, SIZE, main

import collectives.horovod as hvd


def raises(error, words, function, *args, **kwargs):
    """That a call raises an error whose message has these words."""
    with pytest.raises(error, match=re.escape(words)):
        function(*args, **kwargs)


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def batch(step, rows=8):
    """All ranks' samples of a step, and this rank's."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(rows * SIZE, 6, generator=generator).double()
    return x, x[RANK * rows : (RANK + 1) * rows]


def loss(net, x):
    return (net(x) ** 2).mean()


def train(net, optimizer, passes=1, steps=4, mine=True):
    for step in range(steps):
        for i in range(passes):
            loss(net, batch(step * passes + i)[mine]).backward()
        optimizer.step()
        optimizer.zero_grad()


def expected(passes=1, steps=4, **options):
    """What one process has that is given all samples."""
    net = model()
    train(net, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, **options), passes, steps, mine=False)
    return net


def close(net, other, **tolerance):
    for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


def same_everywhere(net):
    for p in net.parameters():
        of_all = [torch.empty_like(p) for _ in range(SIZE)]
        dist.all_gather(of_all, p.detach())
        assert all(torch.equal(p, other) for other in of_all)


def test_init_takes_the_group_that_is_there():
    raises(RuntimeError, "init()", hvd.local_rank)
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_rank()) == (RANK, SIZE, RANK)


def test_collectives():
    x = torch.arange(4.0) + RANK
    assert torch.equal(hvd.allreduce(x), torch.arange(4.0) + (SIZE - 1) / 2)
    assert torch.equal(hvd.allreduce(x, op=hvd.Sum), torch.arange(4.0) * SIZE + sum(range(SIZE)))
    assert torch.equal(
        hvd.allreduce(x.t()[::2], compression=hvd.Compression.fp16, op=hvd.Max)[0], torch.tensor(SIZE - 1.0)
    )
    assert torch.equal(x, torch.arange(4.0) + RANK)
    rows = torch.full((RANK + 1, 2), RANK)
    assert hvd.allgather(rows)[:, 0].tolist() == [rank for rank in range(SIZE) for _ in range(rank + 1)]
    assert hvd.broadcast(x, SIZE - 1).tolist() == (torch.arange(4.0) + SIZE - 1).tolist()
    assert hvd.broadcast_object({"rank": RANK}, root_rank=SIZE - 1) == {"rank": SIZE - 1}
    attached = x.clone().requires_grad_()
    results = hvd.allreduce(attached), hvd.allgather(attached), hvd.broadcast(attached, 0)
    assert not any(result.requires_grad for result in results)
    raises(TypeError, "pass op=Average or op=Sum", hvd.allreduce, x, False)  # Horovod's `average`
    raises(ValueError, "op:", hvd.allreduce, torch.arange(3))
    raises(ValueError, "tensor:", hvd.allgather, torch.zeros(2, RANK + 1))
    raises(ValueError, "tensor:", hvd.allgather, torch.tensor(1.0))


def test_the_same_as_one_process():
    net = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), named_parameters=net.named_parameters()
    )
    assert isinstance(optimizer, torch.optim.SGD)
    train(net, optimizer)
    close(net, expected())
    same_everywhere(net)


def test_buckets_travel_in_one_order_while_the_backward_pass_goes_on():
    net, started = model(), []
    small, hvd.BUCKET_BYTES = hvd.BUCKET_BYTES, 1024
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1, momentum=0.9))
    hvd.BUCKET_BYTES = small
    net[0].weight.register_hook(lambda grad: started.append(len(optimizer._begun)))  # the last gradient
    train(net, optimizer)
    assert len(optimizer._buckets) > 2
    assert min(started) >= len(optimizer._buckets) - 2
    close(net, expected())


def test_backward_passes_per_step():
    net = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), backward_passes_per_step=3
    )
    train(net, optimizer, passes=3)
    close(net, expected(passes=3))
    optimizer.zero_grad()
    for i in range(3):
        loss(net, batch(i)[1]).backward()
    raises(RuntimeError, "backward_passes_per_step=3", lambda: loss(net, batch(3)[1]).backward())
    optimizer.synchronize()


def test_gradients_that_are_discarded():
    """They travel already: this is an error, for one pass of several, too, until they have been waited for."""
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), backward_passes_per_step=2)
    for _ in range(2):
        loss(net, batch(0)[1]).backward()
        raises(RuntimeError, "zero_grad: the gradients are being reduced", optimizer.zero_grad)
    optimizer.synchronize()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    close(net, model())


def test_buckets_have_one_type_on_one_device():
    params = [torch.zeros(n, dtype=dtype, device=device, requires_grad=True) for n, dtype, device in (
        (3, torch.float32, "meta"), (2, torch.float32, "meta"), (2, torch.float32, "cpu"), (1, torch.float64, "cpu"),
        (0, torch.float64, "cpu"),
    )]  # fmt: skip
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, 0.1))
    assert [[p.numel() for p in bucket] for bucket in optimizer._buckets] == [[0, 1], [2], [2, 3]]


def test_fp16_compression():
    net = model().float()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), compression=hvd.Compression.fp16
    )
    for step in range(4):
        loss(net, batch(step)[1].float()).backward()
        optimizer.step()
        optimizer.zero_grad()
    close(net, expected().float(), rtol=1e-2, atol=1e-3)
    assert any(not torch.equal(p, q) for p, q in zip(net.parameters(), expected().float().parameters(), strict=True))
    same_everywhere(net)


def test_gradients_that_only_some_ranks_have():
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1))
    (net[2].weight.sum() if RANK == 0 else net[0].bias.sum() * 0 + net[4].bias.sum()).backward()
    optimizer.synchronize()
    assert torch.equal(net[2].weight.grad, torch.full_like(net[2].weight, 1 / SIZE))
    assert torch.equal(net[4].bias.grad, torch.full_like(net[4].bias, (SIZE - 1) / SIZE))
    assert not net[0].weight.grad.any()


def test_parameters_that_are_frozen_later_stay():
    """Weight decay and momentum would change one that has a gradient of zeros."""
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=0.1))
    for number in range(3):
        loss(net, batch(number)[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 0:
            net[0].weight.requires_grad_(False)
            before = net[0].weight.clone()
    assert torch.equal(net[0].weight, before)
    same_everywhere(net)


def test_parameters_that_are_added_or_unfrozen_later():
    """Frozen ones that were there before are reduced when they are not frozen any more."""
    for late in (False, True):
        net = model()
        net[0].weight.requires_grad_(not late)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1, momentum=0.9))
        net[0].weight.requires_grad_(False)
        loss(net, batch(0)[1]).backward()
        optimizer.step()
        net[0].weight.requires_grad_(True)
        loss(net, batch(1)[1]).backward()
        if not late:
            optimizer.step()
            same_everywhere(net)
        else:
            raises(RuntimeError, "the gradients of the optimizer's parameters [0] are not reduced", optimizer.step)
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net[0].parameters(), 0.1))
    optimizer.add_param_group({"params": net[2].parameters()})
    loss(net, batch(0)[1]).backward()
    raises(RuntimeError, "parameters [2, 3] are not reduced", optimizer.step)


def test_clipping_and_schedulers():
    net = model()
    plain = torch.optim.SGD(net.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
    start = copy.deepcopy(net)
    loss(net, batch(0)[1]).backward()
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    with optimizer.skip_synchronize():
        optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    loss(start, batch(0)[0]).backward()
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(start.parameters(), 1e-3))
    same_everywhere(net)


def test_a_step_after_synchronize_does_not_reduce_once_more():
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), op=hvd.Sum)
    for i in range(2):
        loss(net, batch(i)[1]).backward()
        optimizer.synchronize()
        sums = [p.grad.clone() for p in net.parameters()]
        optimizer.step()
        assert all(torch.equal(p.grad, total) for p, total in zip(net.parameters(), sums, strict=True))
        optimizer.zero_grad()


def test_gradients_that_are_changed_while_they_are_reduced():
    """As by GradScaler.unscale_: the result would take their place, and the change be lost."""
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1))
    loss(net, batch(0)[1]).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    raises(RuntimeError, "a gradient was changed after backward", optimizer.step)
    for _, _, work in optimizer._begun:
        work.wait()


def test_broadcast_parameters_and_state():
    torch.manual_seed(RANK)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1 * (RANK + 1))
    if RANK == 0:
        net(torch.randn(5, 3)).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    states = hvd.allgather_object([net.state_dict(), optimizer.state_dict()])
    assert states[0][1]["state"][0]["step"] == 1
    for state in states[1:]:
        torch.testing.assert_close(state, states[0], rtol=0, atol=0)


def test_bad_arguments():
    net = model()
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    named = list(net.named_parameters())
    raises(ValueError, "named_parameters", hvd.DistributedOptimizer, sgd, named[1:])
    raises(ValueError, "named_parameters", hvd.DistributedOptimizer, sgd, [("w", p) for _, p in named])
    raises(ValueError, "backward_passes_per_step", hvd.DistributedOptimizer, sgd, backward_passes_per_step=0)
    raises(ValueError, "params: not the same on ranks 0 and 1", hvd.broadcast_parameters, {f"w{RANK}": torch.zeros(1)})
    other = named if RANK == 0 else [*named[1:], named[0]]
    raises(ValueError, "named_parameters: not the same", hvd.DistributedOptimizer, sgd, other)
    for number, param in enumerate(twins := [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))]):
        param.requires_grad_(number == RANK % 2)
    raises(ValueError, "named_parameters: not the same", hvd.DistributedOptimizer, torch.optim.SGD(twins, 0.1))
    optimizer = hvd.DistributedOptimizer(sgd)
    raises(ValueError, "optimizer:", hvd.DistributedOptimizer, optimizer)
    raises(ValueError, "closure", optimizer.step, lambda: 0.0)
    raises(ValueError, "closure", optimizer.step, closure=lambda: 0.0)
    optimizer.step(None)
    optimizer.step(closure=None)
    table = nn.Embedding(4, 2, sparse=True)
    hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), 0.1))
    raises(TypeError, "a sparse gradient", lambda: table(torch.tensor([1])).sum().backward())


if __name__ == "__main__":
    main(globals())
