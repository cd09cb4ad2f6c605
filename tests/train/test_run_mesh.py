"""Runs on a mesh: samples that count once, and checkpoints of whole models, which any other mesh loads."""

import functools
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from collectives import train
from collectives.train import threads
from collectives.train.run.states import counterpart
from collectives.train.tensor import ColumnParallelLinear, RowParallelLinear

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((40, 6)), RNG.integers(0, 3, 40)
NEAR = 1e-10
LOSS = train.CrossEntropyLoss()
SIZES = (6, 5, 4, 7, 3)
TWICE = {"data": 2, "pipeline": 2}


def network(comm, dtype=np.float64):
    """Layers that are cut by columns and by rows in turn over `comm`."""
    rng = np.random.default_rng(1)
    layers = []
    for number, (a, b) in enumerate(zip(SIZES, SIZES[1:], strict=False)):
        kind = ColumnParallelLinear if number % 2 == 0 else RowParallelLinear
        whole = train.Linear(a, b, rng=rng, dtype=dtype)
        layers.append(whole if comm.size == 1 else kind(whole, comm))
    return train.Sequential(*layers)


def sgd(parameters):
    return train.SGD(parameters, 0.1, momentum=0.9)


def adam(parameters):
    return train.Adam(parameters, 0.05)


def trained(comm, shape, epochs, out=None, strategy=None, kind=sgd, dtype=np.float64, stop=None, **options):
    """The records, this rank's whole layers, and the step from which the run went on. It ends after `stop` steps."""
    mesh = train.Mesh(comm, **shape)
    pipe = train.Pipeline(network(mesh.tensor, dtype), mesh.pipeline, micro_batches=2)
    opt = kind(pipe.parameters())
    pipe, opt = train.distribute(pipe, opt, strategy or train.AllReduce(), mesh=mesh)
    data = train.Loader((X.astype(dtype), Y), batch=8, seed=0, comm=mesh.data)
    state = {"net": pipe, "opt": opt, "data": data}
    every = 3 if out else None
    run = train.Run(out, mesh=mesh, state=state, checkpoint_every=every, every=4, **options)
    for x, y in run.steps(data, epochs=epochs):
        if run.step == stop:
            break
        opt.zero_grad()
        loss = pipe.step(x, y, LOSS)
        opt.step()
        run.log(loss=loss)
    run.finish()
    return run.records, train.tensor.whole_state(pipe, mesh.tensor), run.resumed


def values(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def test_samples_and_means_do_not_depend_on_the_stages():
    expected = threads.run(1, lambda comm: trained(comm, {}, 2))[0][0]
    assert [record["samples"] for record in expected] == [32, 40, 72, 80]
    for records, _, _ in threads.run(4, lambda comm: trained(comm, {"data": 2, "pipeline": 2}, 2)):
        for mine, one in zip(records, expected, strict=True):
            assert mine["samples"] == one["samples"]
            assert mine["loss"] == pytest.approx(one["loss"], abs=1e-6)


@pytest.mark.parametrize("strategy", [train.AllReduce, lambda: train.LocalSGD(every=5)])  # an end averages
def test_parts_go_on_to_the_same_bits(tmp_path, strategy):
    whole = threads.run(4, lambda comm: trained(comm, TWICE, 4, strategy=strategy()))
    threads.run(4, lambda comm: trained(comm, TWICE, 2, tmp_path, strategy()))
    rest = threads.run(4, lambda comm: trained(comm, TWICE, 4, tmp_path, strategy()))
    for (records, state, _), (more, again, resumed) in zip(whole, rest, strict=True):
        assert resumed == 10
        assert values(more) == values(records)
        assert {name: array.tobytes() for name, array in again.items()} == {
            name: array.tobytes() for name, array in state.items()
        }
    assert set(whole[0][1]).isdisjoint(whole[2][1])  # the stages


OTHERS = [(4, {"pipeline": 4}), (4, {"data": 2, "tensor": 2}), (1, {}), (4, TWICE)]


@pytest.mark.parametrize("kind", [sgd, adam])
def test_another_mesh_goes_on(tmp_path, kind):
    """From a step within an epoch, and between two records."""
    ((expected, weights, _),) = threads.run(1, lambda comm: trained(comm, {}, 3, kind=kind))
    threads.run(4, lambda comm: trained(comm, TWICE, 3, tmp_path / "saved", kind=kind, stop=6))
    for ranks, shape in OTHERS:
        folder = tmp_path / str(shape)
        shutil.copytree(tmp_path / "saved", folder)
        found = threads.run(ranks, lambda comm, shape=shape, folder=folder: trained(comm, shape, 3, folder, kind=kind))
        assert {name for _, state, _ in found for name in state} == set(weights)
        for records, state, resumed in found:
            assert resumed == 6
            assert [record["samples"] for record in records] == [record["samples"] for record in expected]
            assert [r["loss"] for r in records] == pytest.approx([r["loss"] for r in expected], abs=NEAR)
            for name, array in state.items():
                np.testing.assert_allclose(array, weights[name], atol=NEAR, err_msg=name)


def test_a_run_without_a_mesh_goes_on_from_parts_and_back(tmp_path):
    """Back: parts from a run of data ranks."""
    ((expected, weights, _),) = threads.run(1, lambda comm: trained(comm, {}, 3))
    threads.run(4, lambda comm: trained(comm, {"pipeline": 2, "tensor": 2}, 1, tmp_path))

    def alone(comm):
        net = network(comm.Split(comm.rank))
        net, opt = train.distribute(net, sgd(net.parameters()), comm=comm)
        data = train.Loader((X, Y), batch=8, seed=0, comm=comm)
        state = {"net": net, "opt": opt, "data": data}
        run = train.Run(tmp_path, comm=comm, state=state, checkpoint_every=3, every=4)
        for x, y in run.steps(data, epochs=2):
            opt.zero_grad()
            loss = LOSS(net(x), y)
            loss.backward()
            opt.step()
            run.log(loss=loss)
        return run.resumed

    assert threads.run(2, alone) == [5, 5]
    for records, state, resumed in threads.run(2, lambda comm: trained(comm, {"pipeline": 2}, 3, tmp_path)):
        assert resumed == 10
        assert records[-1]["loss"] == pytest.approx(expected[-1]["loss"], abs=NEAR)
        for name, array in state.items():
            np.testing.assert_allclose(array, weights[name], atol=NEAR, err_msg=name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": lambda: train.LocalSGD(every=2)}, "net has arrays of each rank's own"),
        ({"strategy": lambda: train.AllReduce(compression=train.PowerSGD(1))}, "opt.strategy has arrays"),
        ({"dtype": np.float16}, "net has arrays of each rank's own"),
    ],
)
def test_arrays_of_a_rank_go_on_on_the_same_mesh_only(tmp_path, options, words):
    def work(comm, shape, epochs):
        strategy = options.get("strategy", train.AllReduce)()
        return trained(comm, shape, epochs, tmp_path, strategy, dtype=options.get("dtype", np.float64))

    def refused(comm):
        words = "is of a mesh of data=2, pipeline=2, this run of a mesh of pipeline=4"
        with pytest.raises(ValueError, match="the same mesh only") as caught:
            work(comm, {"pipeline": 4}, 2)
        assert words in str(caught.value)
        return str(caught.value)

    threads.run(4, lambda comm: work(comm, TWICE, 1))
    assert words in threads.run(4, refused)[3]
    assert [found[2] for found in threads.run(4, lambda comm: work(comm, TWICE, 2))] == [5] * 4


def test_optimizers_of_parts_that_no_checkpoint_can_have(tmp_path):
    def work(comm):
        with pytest.raises(ValueError, match=r"state\['opt'\] has shards of a part of a model"):
            trained(comm, {"pipeline": 2}, 1, tmp_path, train.AllReduce(shard=1))
        mesh = train.Mesh(comm, pipeline=2)
        pipe = train.Pipeline(network(mesh.tensor), mesh.pipeline)
        with pytest.raises(ValueError, match=r"optimizer of a part of a model: call distribute\(..., mesh=mesh\)"):
            train.Run(tmp_path, mesh=mesh, state={"net": pipe, "opt": sgd(pipe.parameters())})
        return trained(comm, {"pipeline": 2}, 1, None, train.AllReduce(shard=1))[0][-1]["step"]

    assert threads.run(2, work) == [5, 5]


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
        pipe = train.Pipeline(network(mesh.tensor), mesh.pipeline)
        pipe, opt = train.distribute(pipe, train.SGD(pipe.parameters(), 0.1), train.AllReduce(), mesh=mesh)
        with pytest.raises(ValueError, match="Run needs mesh=, not comm"):
            train.Run(tmp_path / "out", comm=comm, state={"net": pipe, "opt": opt}, elastic=elastic)

    threads.run(2, run)
    assert not (tmp_path / "out").exists()


def stages(comm):
    pipe = train.Pipeline(network(comm.Split(comm.rank)), comm)
    return pipe, sgd(pipe.parameters())


def cut_layers(comm):
    net = network(comm)
    return net, sgd(net.parameters())


def cut_layers_over_data_ranks(comm):
    net, opt = cut_layers(comm)
    return train.distribute(net, opt, comm=train.Mesh(comm, tensor=2).data)


@pytest.mark.parametrize("made", [stages, cut_layers, cut_layers_over_data_ranks])
def test_parts_that_no_mesh_was_told_of_need_it_too(tmp_path, made):
    """The parts of the other ranks were in no checkpoint."""

    def run(comm):
        net, opt = made(comm)
        with pytest.raises(ValueError, match=r"state\['net'\] is of a part of a model.*Run needs mesh=, not comm"):
            train.Run(tmp_path / "out", comm=comm, state={"net": net, "opt": opt})
        if getattr(opt, "strategy", None):
            with pytest.raises(ValueError, match=r"state\['other'\] is of a part of a model"):
                train.Run(tmp_path / "out", comm=comm, state={"other": opt})

    threads.run(2, run)
    assert not (tmp_path / "out").exists()


def test_a_whole_model_needs_no_mesh(tmp_path):
    """Of a pipeline of one rank, and of a layer whose ``cuts`` are something else."""

    def run(comm):
        net = network(comm)
        net.layers[0].cuts = ["left", "right"]
        train.Run(tmp_path, comm=comm, state={"net": net})
        train.Run(tmp_path, comm=comm, state={"net": stages(comm)[0]})

    threads.run(1, run)


def draws(comm, shape, made, out, epochs):
    """What this rank draws after a training, in which each of 5 steps of an epoch draws a number."""
    mesh = train.Mesh(comm, **shape)
    noise, data = made(mesh), train.Loader((X, Y), batch=8, seed=0, comm=mesh.data)
    run = train.Run(out, mesh=mesh, state={"data": data, "noise": noise}, checkpoint_every=100, progress=None)
    for _ in run.steps(data, epochs=epochs):
        noise.generator.random()
    return noise.generator.random()


def of_data(mesh):
    return train.Random(0, "noise", mesh.data)


def of_mesh(mesh):
    return train.Random(0, "noise", mesh=mesh)


@pytest.mark.parametrize(
    ("made", "before", "after", "expected"),
    [  # for each rank: the place of its stream on the axes data and pipeline, and what it has drawn before
        (of_data, {"tensor": 2}, {"tensor": 4}, [(0, 0, 10)] * 4),
        (of_data, {"data": 4}, {"data": 2, "tensor": 2}, [(0, 0, 10)] * 2 + [(1, 0, 10)] * 2),
        (of_data, {"data": 2}, {"data": 2, "pipeline": 2}, [(0, 0, 10), (1, 0, 10)] * 2),
        (of_data, {"data": 2, "tensor": 2}, {"data": 4}, [(0, 0, 10), (1, 0, 10), (2, 0, 5), (3, 0, 5)]),
        (of_mesh, {"data": 2, "pipeline": 2}, {"pipeline": 4}, [(0, 0, 10), (0, 1, 10), (0, 2, 5), (0, 3, 5)]),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_random_numbers_go_on_at_their_place_on_another_mesh(tmp_path, made, before, after, expected):
    """Ranks of a tensor axis drew different numbers, or a rank those of another one's samples."""
    ranks = functools.reduce(int.__mul__, before.values())
    threads.run(ranks, lambda comm: draws(comm, before, made, tmp_path, 1))
    found = threads.run(4, lambda comm: draws(comm, after, made, tmp_path, 2))
    for drawn, (data, stage, steps) in zip(found, expected, strict=True):
        stream = of_mesh(SimpleNamespace(place={"data": data, "pipeline": stage}))
        assert drawn == stream.generator.random(steps + 1)[-1]


def test_random_numbers_of_ranks_that_were_numbered_anew_go_on(tmp_path):
    """After an elastic run has lost rank 0, rank r has the stream that was rank r + 1's when the training began."""

    def moved(mesh):
        return train.Random(0, "noise", SimpleNamespace(rank=mesh.comm.rank + 1))

    threads.run(2, lambda comm: draws(comm, {"data": 2}, moved, tmp_path, 1))
    found = threads.run(2, lambda comm: draws(comm, {"data": 2}, of_data, tmp_path, 2))
    for rank, drawn in enumerate(found):
        stream = train.Random(0, "noise", SimpleNamespace(rank=rank + 1))
        assert drawn == stream.generator.random(11)[-1]


def test_the_place_of_a_rank_on_another_mesh():
    saved = {"pipeline": 2, "data": 2, "tensor": 2}

    def places(mine, ranks):
        return [counterpart(saved, mine, rank) for rank in range(ranks)]

    assert places(saved, 8) == list(range(8))
    assert places({"data": 3}, 3) == [0, 2, None]  # without a mesh
    assert places({"pipeline": 4, "data": 1, "tensor": 2}, 8) == [0, 1, 4, 5, 0, 1, 0, 1]
    assert places({"pipeline": 1, "data": 2, "tensor": 3}, 6) == [0, 0, 0, 2, 2, 2]


def test_tasks_have_folders_of_their_own(tmp_path):
    """They wrote one log, and checkpoints of the same names."""

    def steps(comm, epochs):
        mesh = train.Mesh(comm, tasks=2)
        data = train.Loader((X[: 16 + 8 * mesh.place["tasks"]],), batch=8, comm=mesh.data)
        run = train.Run(tmp_path, mesh=mesh, state={"data": data}, checkpoint_every=100, progress=None)
        return run.resumed, len(list(run.steps(data, epochs=epochs)))

    assert threads.run(2, lambda comm: steps(comm, 1)) == [(None, 2), (None, 3)]
    assert threads.run(2, lambda comm: steps(comm, 2)) == [(2, 2), (3, 3)]
    logs = [train.read_log(tmp_path / f"task-{number}" / "log.json") for number in (0, 1)]
    assert [log["runs"]["train"]["records"][-1]["samples"] for log in logs] == [32, 48]
