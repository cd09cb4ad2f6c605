"""Meshes: which ranks are on which axis, and which samples they get."""

from unittest.mock import Mock

import numpy as np
import pytest

from collectives import train
from collectives.train import threads


def seen(comm):
    mesh = train.Mesh(comm, tensor=2, data=2, pipeline=2)
    axes = {axis: getattr(mesh, axis).allgather(comm.rank) for axis in ("tensor", "data", "pipeline", "tasks")}
    axes["all"] = mesh.comm.allgather(comm.rank)
    loader = train.Loader((np.arange(20), np.arange(20) % 3), batch=8, comm=mesh.data)
    batches = [x.tolist() for x, _ in loader]
    text = repr(mesh)
    mesh.free()
    mesh.free()
    return mesh.place, axes, batches, text


def test_tensor_varies_fastest_then_data_then_pipeline():
    found = threads.run(8, seen)
    place, axes, _, text = found[5]
    assert place == {"tasks": 0, "pipeline": 1, "data": 0, "tensor": 1}
    assert axes == {"tensor": [4, 5], "data": [5, 7], "pipeline": [1, 5], "tasks": [5], "all": list(range(8))}
    assert text == "<Mesh(tensor=2, data=2, pipeline=2, tasks=1) at tensor 1, pipeline 1>".replace(
        "at tensor 1, pipeline 1", "at tensor 1, data 0, pipeline 1"
    )


def test_batches_are_the_same_along_tensor_and_pipeline_and_disjoint_along_data():
    found = threads.run(8, seen)
    batches = {(place["data"], place["tensor"], place["pipeline"]): made for place, _, made, _ in found}
    for (data, _, _), made in batches.items():
        assert made == batches[data, 0, 0]
    used = [sample for data in (0, 1) for batch in batches[data, 0, 0] for sample in batch]
    assert sorted(used) == list(range(20))


def test_tasks_train_different_models_side_by_side():
    def on_rank(comm):
        mesh = train.Mesh(comm, tasks=2, data=2)
        net = train.mlp((8,), 3, rng=np.random.default_rng(mesh.place["tasks"]), dtype=np.float64)
        net, opt = train.distribute(net, train.SGD(net.parameters(), 0.1), mesh=mesh)
        x = np.random.default_rng(comm.rank).standard_normal((4, 8))
        opt.zero_grad()
        train.CrossEntropyLoss()(net(x), np.arange(4) % 3).backward()
        opt.step()
        return np.concatenate([p.data.ravel() for p in net.parameters()])

    a, b, c, d = threads.run(4, on_rank)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(c, d)
    assert not np.allclose(a, c)


@pytest.mark.parametrize(
    ("shape", "kind", "words"),
    [
        ({"data": 3}, ValueError, r"data=3 x tensor=1 makes 3 ranks, the communicator has 2"),
        ({"data": 2, "pipeline": 0}, ValueError, "pipeline must be at least 1, not 0"),
        ({"data": 2.0}, TypeError, r"data must be an integer, not 2\.0"),
    ],
)
def test_impossible_meshes_are_errors_on_all_ranks(shape, kind, words):
    def on_rank(comm):
        with pytest.raises(kind, match=words):
            train.Mesh(comm, **shape)

    threads.run(2, on_rank)


def test_different_meshes_are_an_error_on_all_ranks():
    def on_rank(comm):
        with pytest.raises(ValueError, match="Mesh: "):
            train.Mesh(comm, **({"data": 2} if comm.rank else {"pipeline": 2}))

    threads.run(2, on_rank)


@pytest.mark.parametrize("make", [train.AllReduce, lambda: train.LocalSGD(start=3)])
def test_giving_up_ends_what_a_strategy_has_under_way(make):
    def on_rank(comm):
        mesh = train.Mesh(comm)
        net = train.mlp((4,), 2, rng=np.random.default_rng(0))
        _, opt = train.distribute(net, train.SGD(net.parameters(), 0.1), make(), mesh=mesh)
        messages = opt.strategy._messages = Mock()
        mesh.give_up()
        mesh.give_up()
        return messages.Revoke.call_count

    assert threads.run(1, on_rank) == [1]
