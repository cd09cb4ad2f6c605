"""DistributedDataParallel on scikit-learn's digits: the losses that Gloo gives, and the same weights on all ranks."""

from __future__ import annotations

import contextlib
import copy
import functools

import torch
import torch.distributed as dist
from ranks import SIZE, main
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from collectives.train.data.datasets import digits

BATCH = 96  # of all ranks
DATA = digits()


def mlp():
    torch.manual_seed(4)
    layers = [nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(*layers)


def cnn():
    torch.manual_seed(4)
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    more = [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, *more, nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def batches(epochs):
    """This rank's batches of all epochs, shuffled alike in every run."""
    x, y = torch.tensor(DATA.x_train, dtype=torch.float32), torch.tensor(DATA.y_train)
    samples = TensorDataset(x, y)
    sampler = DistributedSampler(samples, seed=6, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        yield from DataLoader(samples, BATCH // SIZE, sampler=sampler, drop_last=True)


def train(model, group, epochs=2, hook=None, local=0, **options):
    """Train on a group: the losses of this rank, and the model."""
    torch.manual_seed(8)
    net = DistributedDataParallel(copy.deepcopy(model), process_group=group, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    if hook is not None:
        net.register_comm_hook(*hook(group))
    if local:
        optimizer = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(2, warmup_steps=local, process_group=group))
    losses, kind = [], next(model.parameters()).dtype
    for number, (x, y) in enumerate(batches(epochs)):
        optimizer.zero_grad()
        with net.no_sync() if options.get("gradient_as_bucket_view") and number % 3 == 0 else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(net(x.to(kind)), y)
            loss.backward()
        if not (options.get("gradient_as_bucket_view") and number % 3 == 0):
            optimizer.step()
        losses.append(loss.item())
    return losses, net.module


def same_everywhere(net):
    for name, p in net.named_parameters():
        of_all = [torch.empty_like(p) for _ in range(SIZE)]
        dist.all_gather(of_all, p.detach())
        assert all(torch.equal(p, other) for other in of_all), name


@functools.cache
def gloo():
    """A group of Gloo's over the same ranks."""
    return dist.new_group(backend="gloo")


def compare(model, epochs=2, tolerance=1e-4, everywhere=True, **options):
    """Train on the tested backend and on Gloo; this rank's accuracy on the samples for testing."""
    ours, net = train(model, dist.group.WORLD, epochs, **options)
    theirs, other = train(model, gloo(), epochs, **options)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=10 * tolerance, atol=10 * tolerance)
    if everywhere:
        same_everywhere(net)
    net.eval()
    found = net(torch.tensor(DATA.x_test, dtype=next(net.parameters()).dtype)).argmax(1)
    return (found == torch.tensor(DATA.y_test)).float().mean().item()


def test_mlp():
    assert compare(mlp(), epochs=10) > 0.9


def test_cnn():
    """For long in float64: Gloo adds in another order, and training makes more of the last bits with every step."""
    compare(cnn(), epochs=1)
    assert compare(cnn().double(), epochs=6, tolerance=1e-8) > 0.95


def test_options():
    compare(mlp(), static_graph=True, bucket_cap_mb=0.02)
    compare(mlp(), gradient_as_bucket_view=True, bucket_cap_mb=0.02)
    compare(cnn(), find_unused_parameters=True, broadcast_buffers=True)


def bf16(state, bucket):
    """Under a name of its own: DistributedDataParallel refuses torch's where there is no CUDA."""
    return default_hooks.bf16_compress_hook(state, bucket)


def test_fp16_and_bf16_hooks():
    """Sums of float16 and bfloat16 may be rounded otherwise than Gloo does."""
    compare(mlp(), hook=lambda group: (group, default_hooks.fp16_compress_hook), tolerance=2e-3)
    compare(mlp(), hook=lambda group: (group, bf16), tolerance=2e-2)


def test_power_sgd_hook():
    def hook(group):
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=3, random_seed=1)
        return state, powerSGD_hook.powerSGD_hook

    compare(mlp(), hook=hook, tolerance=1e-3)


def test_batched_power_sgd_hook():
    """torch 2.13 hands one matrix to its own function for stacks of matrices, which refuses it on every backend."""
    refusing = powerSGD_hook._orthogonalize

    def hook(group):
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=3, random_seed=1)
        return state, powerSGD_hook.batched_powerSGD_hook

    def orthogonalize(matrices, epsilon=0):
        refusing(matrices if matrices.dim() == 3 else matrices[None], epsilon)

    try:
        powerSGD_hook._orthogonalize = orthogonalize
        compare(mlp(), hook=hook, tolerance=1e-3)
        # Of several buckets, whose callbacks wait in both of Gloo's threads, Gloo never ends.
        losses, net = train(mlp(), dist.group.WORLD, epochs=4, hook=hook, bucket_cap_mb=0.02)
        assert sum(losses[-5:]) < 0.9 * sum(losses[:5]), losses
        same_everywhere(net)
    finally:
        powerSGD_hook._orthogonalize = refusing


def test_post_local_sgd():
    """Ranks go their own ways between averages."""

    def hook(group):
        subgroup, _ = dist.new_subgroups(1, group=group)
        return PostLocalSGDState(group, subgroup, start_localSGD_iter=4, post_local_gradient_allreduce=False), (
            post_localSGD_hook
        )

    compare(mlp(), hook=hook, local=4, everywhere=False)


def test_quantization_hooks():
    """Gradients of 8 bits: about what Gloo learns without them, which cannot run these hooks."""
    theirs, _ = train(mlp(), gloo(), epochs=4)
    for hook in (quantization.quantization_pertensor_hook, quantization.quantization_perchannel_hook):
        ours, net = train(mlp(), dist.group.WORLD, epochs=4, hook=lambda group, hook=hook: (group, hook))
        assert ours != theirs
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.1)
        same_everywhere(net)


if __name__ == "__main__":
    main(globals())
