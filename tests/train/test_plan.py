"""``train --mesh``: what is refused, and in which words; what parts of a network learn, on ranks that are threads."""

import argparse

import numpy as np
import pytest
from mpi4py import MPI

from collectives import train
from collectives.train import cli, threads
from collectives.train.cli.choice import chosen
from collectives.train.cli.part import Part
from collectives.train.cli.plan import Plan
from collectives.train.cli.task import Task
from collectives.train.pipeline.registry import SCHEDULES

NEAR = 1e-10


def parse(*words):
    parser = argparse.ArgumentParser(prog="train")
    cli.add_arguments(parser)
    return parser.parse_args(words)


def plan(ranks, *words):
    return Plan.of(parse(*words), ranks)


def test_the_axes_and_the_defaults_of_a_schedule():
    found = plan(8, "--mesh", "pipeline=2,data=4")
    assert found.shape == {"tasks": 1, "pipeline": 2, "data": 4, "tensor": 1}
    assert (found.schedule.name, found.micro_batches, found.splits) == ("1f1b", 4, True)
    assert plan(3).shape["data"] == 3
    assert not plan(6, "--mesh", "data=3,tasks=2").splits
    assert plan(2, "--mesh", "tensor=2").splits
    assert plan(4, "--mesh", "pipeline=4", "--pipeline", "pipedream").micro_batches == 1
    assert plan(4, "--mesh", "pipeline=4", "--pipeline", "pipedream_2bw").micro_batches == 4
    stream = plan(2, "--mesh", "pipeline=2", "--pipeline", "pipedream_2bw", "--micro-batches", "6")
    assert (stream.schedule.accumulate, stream.micro_batches) == (6, 6)
    assert plan(2, "--mesh", "pipeline=2", "--pipeline", "interleaved_1f1b", "--chunks", "3").schedule.chunks == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mesh", "data=2,stages=2"], "'stages=2' is not AXIS=LENGTH with an axis of tasks, pipeline, data, tensor"),
        (["--mesh", "data"], "'data' is not AXIS=LENGTH"),
        (["--mesh", "data=two"], "'two' is not an integer"),
        (["--mesh", "data=0"], "0 is not at least 1"),
        (["--mesh", "data=2,data=2"], "axis data is given twice"),
        (["--pipeline", "2f2b"], "invalid choice: '2f2b'"),
        (["--micro-batches", "0"], "0 is not at least 1"),
    ],
)
def test_options_of_a_wrong_form(words, said, capsys):
    with pytest.raises(SystemExit) as end:
        parse(*words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mesh", "data=2,pipeline=2"], "--mesh data=2,pipeline=2 makes 4 ranks, and there are 1"),
        (["--pipeline", "gpipe"], "--pipeline needs a pipeline: --mesh pipeline=2"),
        (["--mesh", "data=1", "--micro-batches", "4"], "--micro-batches needs a pipeline"),
        (["--chunks", "2"], "--chunks needs a pipeline"),
        (["--mesh", "pipeline=1", "--chunks", "2"], "--mesh pipeline=1: 1f1b has one chunk for each stage, not 2"),
        (
            ["--mesh", "pipeline=1", "--pipeline", "pipedream", "--micro-batches", "2"],
            "--mesh pipeline=1: pipedream steps after 1 micro-batches",
        ),
        (["--mesh", "pipeline=1", "--strategy", "ad_psgd"], "ad_psgd needs a mesh of data and tasks only"),
        (["--mesh", "pipeline=1", "--out", "absent", "--option", "shard=1"], "checkpoints of shards are not supported"),
    ],
)
def test_what_does_not_fit_is_told_before_the_data_are_read(words, said, capsys):
    assert cli.main(parse(*words, "--data", "absent.npz"), MPI.COMM_SELF) == 2
    out, err = capsys.readouterr()
    assert err.startswith("train: error: ")
    assert said in err
    assert out == ""


@pytest.mark.parametrize(
    ("ranks", "words", "said"),
    [
        (
            3,
            ["--mesh", "pipeline=3", "--pipeline", "interleaved_1f1b", "--micro-batches", "4"],
            "interleaved_1f1b needs a multiple of its 3 stages as number of micro-batches, not 4",
        ),
        (
            4,
            ["--mesh", "pipeline=4", "--pipeline", "pipedream_2bw", "--micro-batches", "2"],
            "pipedream_2bw accumulates at least as many micro-batches as stages, 4, not 2",
        ),
    ],
)
def test_micro_batches_that_do_not_fit_the_schedule(ranks, words, said):
    with pytest.raises(ValueError, match=said):
        plan(ranks, *words)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("parameter_server", "its servers hold whole ones"),
        ("ssp", "its servers"),
        ("ad_psgd", "must step together"),
    ],
)
def test_strategies_that_cannot_serve_parts(name, why):
    strategy = chosen(parse("--strategy", name)).make()
    with pytest.raises(ValueError, match=f"{name} needs a mesh of data and tasks only.*{why}"):
        plan(4, "--mesh", "data=2,pipeline=2").check(strategy, name)
    plan(4, "--mesh", "data=2,tasks=2").check(strategy, name)


def test_more_stages_than_layers():
    net = train.mlp((4,), 3, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"the mlp makes no pipeline of 7 stages: 6 blocks cannot be cut into 7"):
        plan(7, "--mesh", "pipeline=7").cut(net, "mlp")
    with pytest.raises(ValueError, match=r"the mlp makes no pipeline of 4 stages: .* stage \d has no parameters$"):
        plan(4, "--mesh", "pipeline=4").cut(net, "mlp")
    with pytest.raises(ValueError, match=r"of 4 stages with 2 chunks each: 6 blocks cannot be cut into 8"):
        plan(4, "--mesh", "pipeline=4", "--pipeline", "interleaved_1f1b").cut(net, "mlp")


def test_streams_need_a_sample_for_each_micro_batch():
    found = plan(4, "--mesh", "data=2,pipeline=2", "--pipeline", "pipedream_2bw", "--micro-batches", "5")
    found.check_batches(100, 10)
    with pytest.raises(ValueError, match="each of 5 micro-batches, and --batch 9 gives 4 to each of 2 data ranks"):
        found.check_batches(100, 9)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = 0.2 * rng.random((60, 6, 6))
    x[np.arange(60), 2 * y] += 1  # a bright row, where the label says
    path = tmp_path_factory.mktemp("data") / "images.npz"
    np.savez(path, x=x, y=y)
    return str(path)


def trained(comm, *words):
    """The weights of the whole network, and the records."""
    args = parse("--dtype", "float64", "--shard", "shuffled", "--scale-lr", "none", "--batch", "12", *words)
    shape = Plan.of(args, comm.size).shape
    mesh, sending = train.Mesh(comm, **shape), train.Mesh(comm, **shape)
    task = Task(args, comm, lambda text: None, mesh.data)
    part = Part(task, Plan.of(args, comm.size), args.seed, chosen(args).make(), sending, mesh)
    state = {"net": part.net, "opt": part.opt, "data": part.loader}
    run = train.Run(mesh=mesh, state=state, lr=part.rate, evaluate=part.test)
    for x, y in run.steps(part.loader, epochs=args.epochs):
        run.log(loss=part.step(x, y))
    part.gather()
    assert part.same_bits()
    report = part.report()
    part.free()
    return part.whole.state_dict(), run.records, report


@pytest.fixture(autouse=True)
def any_threads(monkeypatch):
    """Ranks that are threads have no machine to share."""
    monkeypatch.setattr("collectives.train.cli.task.limit_threads", lambda comm: None)


FLUSHED = [name for name, schedule in SCHEDULES.items() if not schedule.flushless]


@pytest.mark.parametrize(
    ("ranks", "mesh", "schedule", "strategy"),
    [
        *((2, "pipeline=2", name, "allreduce") for name in FLUSHED),
        (4, "data=2,pipeline=2", "1f1b", "allreduce:clip_norm=0.5"),
        (4, "tensor=2,pipeline=2", "zero_bubble", "allreduce:clip_norm=0.5"),
        (4, "data=2,tensor=2", None, "allreduce:shard=1"),
    ],
)
def test_parts_learn_what_one_process_learns(images, ranks, mesh, schedule, strategy):
    """One of the last batch's data ranks has no sample."""
    words = ["--data", images, "--epochs", "2", "--batch", "47", "--strategy", strategy.replace(":shard=1", "")]
    expected, records, _ = threads.run(1, lambda comm: trained(comm, *words))[0]
    words[-1] = strategy
    more = [] if schedule is None else ["--pipeline", schedule, "--micro-batches", "4"]
    for weights, found, report in threads.run(ranks, lambda comm: trained(comm, *words, "--mesh", mesh, *more)):
        assert set(weights) == set(expected)
        for name, array in weights.items():
            np.testing.assert_allclose(array, expected[name], atol=NEAR, rtol=0, err_msg=name)
        for mine, one in zip(found, records, strict=True):
            assert (mine["samples"], mine["accuracy"]) == (one["samples"], one["accuracy"])
            assert mine["loss"] == pytest.approx(one["loss"], abs=NEAR)
        if schedule is not None:
            assert report.schedule == schedule
            assert min(report.activation_bytes) > 0


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_an_epoch_without_a_flush_is_one_stream(images, schedule):
    words = ["--data", images, "--epochs", "6", "--mesh", "data=2,pipeline=2", "--pipeline", schedule]
    found = threads.run(4, lambda comm: trained(comm, *words))
    for weights, records, report in found:
        assert [record["samples"] for record in records] == [48, 96, 144, 192, 240, 288]
        assert records[-1]["loss"] < records[0]["loss"]
        each = report.versions
        assert each == ([2, 1] if schedule == "pipedream" else [2, 2])
        assert report.predicted == pytest.approx(1 / (4 * (1 if schedule == "pipedream" else 2) + 1))
        for name, array in weights.items():
            np.testing.assert_array_equal(array, found[0][0][name])


def test_a_strategy_that_averages_at_times_learns_in_stages_as_in_whole_networks(images):
    words = ["--data", images, "--epochs", "2", "--strategy", "local_sgd:every=3"]
    expected = threads.run(2, lambda comm: trained(comm, *words))[0][0]
    found = threads.run(4, lambda comm: trained(comm, *words, "--mesh", "data=2,pipeline=2"))
    for name, array in found[0][0].items():
        np.testing.assert_allclose(array, expected[name], atol=NEAR, rtol=0, err_msg=name)
