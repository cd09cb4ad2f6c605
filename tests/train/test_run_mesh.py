"""Runs on a mesh: samples that count once, and checkpoints of parts of a model."""

import numpy as np
import pytest

from collectives import train
from collectives.train import threads

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((40, 6)), RNG.integers(0, 3, 40)
LOSS = train.CrossEntropyLoss()


def network():
    rng = np.random.default_rng(1)
    sizes = (6, 5, 4, 3)
    return train.Sequential(*(train.Linear(a, b, rng=rng) for a, b in zip(sizes, sizes[1:], strict=False)))


def trained(comm, shape, epochs, out=None, strategy=None, **options):
    """The records, this rank's weights, and the step from which the run went on."""
    mesh = train.Mesh(comm, **shape)
    pipe = train.Pipeline(network(), mesh.pipeline, micro_batches=2)
    opt = train.SGD(pipe.parameters(), 0.1, momentum=0.9)
    pipe, opt = train.distribute(pipe, opt, strategy or train.AllReduce(), mesh=mesh)
    data = train.Loader((X, Y), batch=8, seed=0, comm=mesh.data)
    state = {"net": pipe, "opt": opt, "data": data}
    run = train.Run(out, mesh=mesh, state=state, checkpoint_every=3 if out else None, every=3, **options)
    for x, y in run.steps(data, epochs=epochs):
        opt.zero_grad()
        loss = pipe.step(x, y, LOSS)
        opt.step()
        run.log(loss=loss)
    return run.records, pipe.state_dict(), run.resumed


def values(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def test_samples_and_means_do_not_depend_on_the_stages():
    expected = threads.run(1, lambda comm: trained(comm, {}, 2))[0][0]
    assert [record["samples"] for record in expected] == [24, 40, 64, 80]
    for records, _, _ in threads.run(4, lambda comm: trained(comm, {"data": 2, "pipeline": 2}, 2)):
        for mine, one in zip(records, expected, strict=True):
            assert mine["samples"] == one["samples"]
            assert mine["loss"] == pytest.approx(one["loss"], abs=1e-6)


@pytest.mark.parametrize("strategy", [train.AllReduce, lambda: train.LocalSGD(every=5)])  # an end averages
def test_parts_go_on_to_the_same_bits(tmp_path, strategy):
    shape = {"data": 2, "pipeline": 2}
    whole = threads.run(4, lambda comm: trained(comm, shape, 4, strategy=strategy()))
    threads.run(4, lambda comm: trained(comm, shape, 2, tmp_path, strategy()))
    rest = threads.run(4, lambda comm: trained(comm, shape, 4, tmp_path, strategy()))
    for (records, state, _), (more, again, resumed) in zip(whole, rest, strict=True):
        assert resumed == 10
        assert values(more) == values(records)
        assert {name: array.tobytes() for name, array in again.items()} == {
            name: array.tobytes() for name, array in state.items()
        }
    assert set(whole[0][1]).isdisjoint(whole[2][1])  # the stages


def test_another_mesh_cannot_go_on(tmp_path):
    threads.run(4, lambda comm: trained(comm, {"data": 2, "pipeline": 2}, 1, tmp_path))

    def on_rank(comm, shape):
        with pytest.raises(ValueError, match="go on on the same mesh only") as caught:
            trained(comm, shape, 2, tmp_path)
        return str(caught.value)

    found = threads.run(2, lambda comm: on_rank(comm, {"pipeline": 2}))
    assert "is of a mesh of data=2, pipeline=2, this run of a mesh of pipeline=2:" in found[1]
    found = threads.run(4, lambda comm: on_rank(comm, {"data": 4}))
    assert "is of a mesh of data=2, pipeline=2, this run of whole models:" in found[3]


def test_meshes_of_data_alone_go_on_with_any_number_of_ranks(tmp_path):
    first = threads.run(4, lambda comm: trained(comm, {"data": 4}, 1, tmp_path))
    again = threads.run(2, lambda comm: trained(comm, {"data": 2}, 2, tmp_path))
    assert values(again[0][0])[:2] == values(first[0][0])
    assert again[0][2] == 5


def test_what_a_run_on_a_mesh_cannot_be():
    def on_rank(comm):
        mesh = train.Mesh(comm, pipeline=2)
        with pytest.raises(TypeError, match="comm or mesh, not both"):
            train.Run(comm=comm, mesh=mesh)
        with pytest.raises(ValueError, match="elastic needs comm"):
            train.Run(mesh=mesh, elastic=True)
        with pytest.raises(ValueError, match="AllReduce lets the weights of ranks differ"):
            trained(comm, {"pipeline": 2}, 1, check_weights=2)

    threads.run(2, on_rank)


@pytest.mark.parametrize("elastic", [False, True])
def test_parts_of_a_model_need_the_mesh(tmp_path, elastic):
    """Without it a checkpoint would have the parts of rank 0 alone."""

    def run(comm):
        mesh = train.Mesh(comm, pipeline=2)
        pipe = train.Pipeline(network(), mesh.pipeline)
        pipe, opt = train.distribute(pipe, train.SGD(pipe.parameters(), 0.1), train.AllReduce(), mesh=mesh)
        with pytest.raises(ValueError, match="Run needs mesh=, not comm"):
            train.Run(tmp_path / "out", comm=comm, state={"net": pipe, "opt": opt}, elastic=elastic)

    threads.run(2, run)
    assert not (tmp_path / "out").exists()
