"""Cut networks on a mesh of data and tensor ranks: gradients are averaged, clipped and refused as in one process."""

import math

import numpy as np
import pytest

from collectives import train
from collectives.train import threads
from collectives.train.tensor import cut_linear

NEAR = 1e-12
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((9, 6)), RNG.integers(0, 5, 9)


def network(comm=None):
    rng = np.random.default_rng(1)
    first, second = (train.Linear(a, b, rng=rng, dtype=np.float64) for a, b in ((6, 7), (7, 5)))
    if comm is not None:
        first, second = train.tensor.ColumnParallelLinear(first, comm), train.tensor.RowParallelLinear(second, comm)
    return train.Sequential(first, train.ReLU(), second)


def begin(comm, tensor, **options):
    mesh = train.Mesh(comm, data=comm.size // tensor, tensor=tensor)
    net, strategy = network(mesh.tensor), train.AllReduce(bucket_bytes=200, **options)
    net, opt = train.distribute(net, train.SGD(net.parameters(), 0.2, momentum=0.9), strategy, mesh=mesh)
    return net, opt, mesh.data, mesh.tensor


def share(comm):
    """Uneven parts of the batch."""
    bounds = [0, 6, 9] if comm.size == 2 else [0, *range(9, 9 + comm.size)]
    part = slice(bounds[comm.rank], bounds[comm.rank + 1])
    return X[part], Y[part]


def alone(clip, steps=4):
    """Weights and the last norm of one process."""
    net = network()
    opt = train.SGD(net.parameters(), 0.2, momentum=0.9)
    for _ in range(steps):
        opt.zero_grad()
        train.CrossEntropyLoss()(net(X), Y).backward()
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in net.parameters()))
        for p in net.parameters():
            p.grad *= min(1.0, clip / (norm + 1e-6))
        opt.step()
    return net.state_dict(), norm


@pytest.mark.parametrize(("ranks", "tensor"), [(2, 2), (4, 2), (6, 3), (2, 1)])
@pytest.mark.parametrize("shard", [0, 1, 2])
def test_the_norm_is_that_of_the_whole_model(ranks, tensor, shard):
    weights, norm = alone(clip=0.1)
    assert norm > 0.2  # so that clipping did something

    def work(comm):
        net, opt, data, axis = begin(comm, tensor, clip_norm=0.1, shard=shard)
        for _ in range(4):
            opt.zero_grad()
            x, y = share(data)
            train.CrossEntropyLoss()(net(x), y).backward()
            opt.step()
        assert opt.strategy.norm == pytest.approx(norm, abs=NEAR)
        for name, value in train.tensor.whole_state(net, axis).items():
            np.testing.assert_allclose(value, weights[name], atol=NEAR, err_msg=name)

    train.threads.run(ranks, work)


def test_without_the_mesh_the_norm_is_wrong():
    """What the argument is for: each tensor rank would clip by the norm of its part."""
    _, norm = alone(clip=math.inf, steps=1)

    def work(comm):
        net = network(comm)
        strategy = train.AllReduce(clip_norm=1.0)
        net, opt = train.distribute(net, train.SGD(net.parameters(), 0.1), strategy, comm=comm.Split(comm.rank))
        train.CrossEntropyLoss()(net(X), Y).backward()
        opt.step()
        return strategy.norm

    assert all(found < norm - 1e-3 for found in train.threads.run(2, work))


def test_dropout_beside_cut_layers_has_one_mask_on_a_tensor_axis():
    """With a mask for each rank, the bias of the last layer, which is not cut, would get other gradients on each."""

    def work(comm):
        mesh = train.Mesh(comm, data=2, tensor=2)
        hidden, noise = network(mesh.tensor), train.Random(3, "dropout", mesh=mesh)
        last = train.Linear(5, 5, rng=np.random.default_rng(2), dtype=np.float64)
        net = train.Sequential(*hidden.layers, train.Dropout(0.4, random=noise), last)
        net, opt = train.distribute(net, train.SGD(net.parameters(), 0.2), mesh=mesh)
        for _ in range(2):
            opt.zero_grad()
            x, y = share(mesh.data)
            train.CrossEntropyLoss()(net(x), y).backward()
            opt.step()
        return net.state_dict()["4.bias"], noise.generator.random()

    found = train.threads.run(4, work)
    for bias, _ in found:
        np.testing.assert_allclose(bias, found[0][0], atol=NEAR)
    assert [number == found[0][1] for _, number in found] == [True, True, False, False]


def test_a_gradient_that_is_not_finite_stops_all_ranks():
    """One rank of four has it, in a part of a layer that no other rank has."""

    def work(comm):
        net, opt, data, _ = begin(comm, 2)
        before = net.state_dict()
        x, y = share(data)
        train.CrossEntropyLoss()(net(x), y).backward()
        opt.strategy.wait()
        if comm.rank % 2 == 1:
            net.layers[0].weight.grad[0, 0] = np.nan
        with pytest.raises(FloatingPointError, match="0.weight"):
            opt.step()
        for name, value in net.state_dict().items():
            np.testing.assert_array_equal(value, before[name])

    train.threads.run(4, work)


def test_a_problem_of_one_rank_is_raised_on_all():
    def work(comm):
        net, opt, data, _ = begin(comm, 2)
        x, y = share(data)
        loss_fn = train.CrossEntropyLoss()
        loss_fn(net(x), y).backward()
        if comm.rank == 3:
            net.layers[2].bias.data = net.layers[2].bias.data.copy()
        with pytest.raises(RuntimeError, match="2.bias left the flat array") as caught:
            opt.step()
        return str(caught.value)

    found = train.threads.run(4, work)
    assert len(found) == 4


def test_a_rank_that_leaves_out_a_step_is_found():
    def work(comm):
        net, opt, data, _ = begin(comm, 2)
        x, y = share(data)
        train.CrossEntropyLoss()(net(x), y).backward()
        with pytest.raises(RuntimeError, match=r"3 of 4 ranks called opt.step\(\)"):
            (opt.zero_grad if comm.rank == 1 else opt.step)()

    train.threads.run(4, work)


def uneven(comm):
    """Layers whose pieces differ in size: by these, rank 0 would cut before block 1, rank 1 before block 3."""
    rng = np.random.default_rng(0)
    sizes = (train.Linear(8, 3, rng=rng), train.ReLU(), train.Linear(3, 8, rng=rng), train.Linear(8, 4, rng=rng))
    return cut_linear(train.Sequential(*sizes), comm)


def test_ranks_of_a_tensor_axis_have_the_same_stages():
    def on_rank(comm):
        mesh = train.Mesh(comm, pipeline=2, tensor=2)
        return train.Pipeline(uneven(mesh.tensor), mesh.pipeline)._layout.bounds

    first, *others = threads.run(4, on_rank, timeout=60)
    assert all(bounds == first for bounds in others)


def test_ranks_of_a_tensor_axis_with_other_stages_are_refused():
    def on_rank(comm):
        mesh = train.Mesh(comm, pipeline=2, tensor=2)
        pipe = train.Pipeline(uneven(mesh.tensor), mesh.pipeline, cut=[1 + 2 * mesh.tensor.rank])
        with pytest.raises(ValueError, match="first blocks of the stages is|2 of 4 ranks differ from rank 0"):
            train.distribute(pipe, train.SGD(pipe.parameters(), 0.1), mesh=mesh)

    threads.run(4, on_rank, timeout=60)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (lambda: train.ParameterServer(), "needs a mesh of data and tasks only"),
        (lambda: train.ADPSGD(), "needs a mesh of data and tasks only"),
        (lambda: train.AllReduce(compression=train.TopK(0.5)), "drift apart"),
    ],
)
def test_strategies_that_parts_of_a_model_cannot_have(strategy, words):
    def on_rank(comm):
        mesh = train.Mesh(comm, data=2, tensor=2)
        net = uneven(mesh.tensor)
        with pytest.raises(ValueError, match=words):
            train.distribute(net, train.SGD(net.parameters(), 0.1), strategy(), mesh=mesh)

    threads.run(4, on_rank, timeout=60)


def test_pieces_of_layers_are_not_averaged():
    def on_rank(comm):
        net = uneven(comm)
        with pytest.raises(ValueError, match="has distribute got mesh=|1 of 2 ranks differ from rank 0"):
            train.distribute(net, train.SGD(net.parameters(), 0.1), comm=comm)

    threads.run(2, on_rank, timeout=60)
