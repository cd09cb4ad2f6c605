"""``python -m collectives compare``: its parts, its results on ranks, and what it says to bad input."""

import argparse
import json
import math
import time

import numpy as np
import pytest
from jobs import mpiexec
from mpi4py import MPI

from collectives.train import compare, threads
from collectives.train.cli.choice import Choice
from collectives.train.cli.result import FOUND
from collectives.train.compare.gains import Gain, gains
from collectives.train.compare.limits import misses, pace_misses
from collectives.train.compare.pace import Pace
from collectives.train.compare.report import rows, table
from collectives.train.compare.tally import Tally

KEYS = {*FOUND, "strategy", "ranks", "seed", "bytes_sent", "weights_sha256", "stopped"}


def main(*words, comm=MPI.COMM_SELF):
    parser = argparse.ArgumentParser(prog="compare")
    compare.add_arguments(parser)
    return compare.main(parser.parse_args(words), comm)


def run(accuracies, seconds=10.0, ranks=4, samples=1000, sent=5000.0):
    """A training with a record every second of `seconds`."""
    each = seconds / len(accuracies)
    records = [{"seconds": each * (i + 1), "accuracy": a, "bytes": sent} for i, a in enumerate(accuracies)]
    return {
        "ranks": ranks,
        "accuracy": accuracies[-1],
        "seconds": seconds,
        "steps": 50,
        "samples": samples,
        "records": records,
    }


def test_the_table():
    runs = {
        "alone": [run([0.5, 0.8, 0.95], 30, ranks=1)] * 3,
        "alone, all": [run([0.7, 0.92], 40, ranks=1)] * 3,
        "good": [run([0.8, 0.96], 10), run([0.91, 0.94], 10), run([0.2, 0.98], 12)],
        "bad": [run([0.1, 0.2], 10)] * 3,
    }
    found = {row.label: row for row in rows(runs, ["alone", "alone, all"], 0.9)}
    good, bad = found["good"], found["bad"]
    assert (good.accuracy, good.lowest, good.highest) == (0.96, 0.94, 0.98)
    assert good.efficiency == pytest.approx((1000 / 10) / (4 * 1000 / 30))
    assert (good.time, good.gain) == (10, 3)
    assert (bad.time, math.isnan(bad.gain)) == (math.inf, True)
    assert found["alone"].gain == 1
    text = table(list(found.values()), 0.9)
    assert len({len(line) for line in text.splitlines()}) == 1
    assert text.splitlines()[4].split() == [
        "bad",
        "0.2000",
        "0.200-0.200",
        "10.00",
        "50",
        "5",
        "0.75",
        "not",
        "reached",
        "-",
    ]


def test_the_limits():
    def missed(**accuracies):
        runs = {"alone": [run([0.9])], **{name: [run([accuracy])] for name, accuracy in accuracies.items()}}
        found = {row.label: row for row in rows(runs, ["alone"], 0.9)}
        return [line.partition(":")[0] for line in misses([Choice(name, {}) for name in accuracies], found)]

    assert missed(allreduce=0.95, local_sgd=0.94, easgd=0.91, nocomm=0.49) == []
    assert missed(allreduce=0.95, local_sgd=0.939, easgd=0.909, nocomm=0.5) == ["local_sgd", "easgd", "nocomm"]


def test_the_limits_of_the_pace():
    def missed(name, measured, straggler, staleness):
        return [line.partition(":")[0] for line in pace_misses([Gain(name, measured, 2.0, staleness)], straggler)]

    for straggler in (True, False):
        assert missed("free", 1.6, straggler, math.inf) == missed("free", 9.0, straggler, math.inf) == []
        assert missed("free", 1.59, straggler, math.inf) == ["free"]
        assert missed("waits", 0.1, straggler, 0) == []
    assert missed("ssp", 0.8, True, 3) == missed("ssp", 1.25, True, 3) == missed("ssp", 1.5, False, 3) == []
    assert missed("ssp", 0.79, True, 3) == missed("ssp", 1.26, True, 3) == missed("ssp", 1.49, False, 3) == ["ssp"]


def test_the_ideal_pace():
    """In samples per second, of ranks that take 10 ms for 32 samples."""
    assert Pace(0.01, 32, {}, 0.0).rate(range(4), 128, together=True) == pytest.approx(12800)
    slow = Pace(0.01, 32, {1: 4.0, 9: 100.0}, 0.0)
    assert slow.rate(range(4), 128, together=True) == pytest.approx(3200)
    assert slow.rate(range(4), 128, together=False) == pytest.approx(3.25 * 3200)
    assert slow.rate(range(2, 4), 128, together=True) == pytest.approx(6400)  # of 64 samples each
    jitter = Pace(0.01, 32, {}, 0.02)
    assert jitter.rate(range(4), 128, together=False) == pytest.approx(128 / 0.03)
    slowest = 0.01 + 0.02 * (1 + 1 / 2 + 1 / 3 + 1 / 4)  # the mean of the largest of four exponential times
    assert jitter.rate(range(4), 128, together=True) == pytest.approx(128 / slowest, rel=0.02)


def test_gains_are_those_of_the_ranks_that_train():
    names = ["allreduce", "ssp", "ssp:staleness=0", "async_parameter_server", "peer_async", "local_sgd", "nocomm"]
    choices = [Choice.parse(name) for name in names]
    runs = {name: [run([0.9], seconds)] for name, seconds in zip(names, (40, 40, 40, 20, 10, 30, 30), strict=True)}
    table = {row.label: row for row in rows({"alone": [run([0.9])], **runs}, ["alone"], 0.9)}
    found = {gain.label: gain for gain in gains(choices, table, Pace(0.01, 32, {1: 4.0}, 0.0), 128, 4)}
    assert [gain.measured for gain in found.values()] == pytest.approx([1, 1, 2, 4, 4 / 3, 4 / 3])
    assert [gain.ideal for gain in found.values()] == pytest.approx([2.25, 2.25, 2.25, 3.25, 3.25, 3.25])
    assert [gain.staleness for gain in found.values()] == [3, 0, math.inf, math.inf, 0, 0]
    assert found["ssp"].text == "ssp: 1.00 times the samples per second of allreduce; 2.25 if nobody ever waited"
    assert gains(choices, table, Pace(0.01, 32, {}, 0.0), 128, 4) == []
    assert gains(choices, {"ssp": table["ssp"]}, Pace(0.01, 32, {1: 4.0}, 0.0), 128, 4) == []


def test_nobody_waits_for_the_tally_and_all_end_at_the_same_total():
    """Rank 0 is much slower; the others go on, and all see the same total in the end."""

    def on_rank(comm):
        tally, steps = Tally(comm, 4000), 0
        while (total := tally.add(10)) < 4000:
            steps += 1
            time.sleep(0.02 if comm.rank == 0 else 0.001)
        return total, steps

    totals, steps = zip(*threads.run(3, on_rank), strict=True)
    assert len(set(totals)) == 1
    assert 4000 <= totals[0] < 5200
    assert min(steps[1:]) > 3 * steps[0]


def test_computation_is_emulated():
    def seconds(sleeper, steps, samples):
        begin = time.perf_counter()
        for _ in range(steps):
            sleeper.sleep(samples)
        return time.perf_counter() - begin

    pace = Pace(0.01, 32, {1: 4.0}, 0.0)
    assert seconds(pace.of(0, 7), 20, 32) == pytest.approx(0.2, rel=0.25)
    assert seconds(pace.of(1, 7), 5, 32) == pytest.approx(0.2, rel=0.25)
    assert seconds(pace.of(0, 7), 10, 64) == pytest.approx(0.2, rel=0.25)
    assert seconds(pace.alone().of(1, 7), 20, 32) == pytest.approx(0.2, rel=0.25)
    jittered = [Pace(0.0, 32, {}, 0.01).of(rank, 7) for rank in (0, 0, 1)]
    drawn = [[one.random.generator.exponential(1.0) for _ in range(3)] for one in jittered]
    assert drawn[0] == drawn[1] != drawn[2]


def test_one_rank(tmp_path, capsys):
    words = ["--strategies", "allreduce,nocomm", "--epochs", "2", "--step", "0", "--model", "mlp", "--seeds", "2"]
    assert main(*words, "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "one process, batch 32, seed 0: accuracy" in out
    assert "nocomm, seed 1: accuracy" in out
    assert (tmp_path / "compare.png").stat().st_size > 20_000
    found = json.loads((tmp_path / "compare.json").read_text())
    assert [row["label"] for row in found["table"]] == ["one process, batch 32", "allreduce", "nocomm"]
    assert all(set(one) == KEYS | {"options", "records"} for one in found["runs"])
    first, second = (found["runs"][i] for i in (2, 3))
    assert (first["strategy"], first["seed"], second["seed"]) == ("allreduce", 0, 1)
    assert first["weights_sha256"] == found["runs"][0]["weights_sha256"] != second["weights_sha256"]
    assert first["samples"] == 2 * 1442
    assert [record["samples"] for record in first["records"]] == [1442, 2884]
    assert first["records"][-1]["accuracy"] == first["accuracy"] > 0.5


def compared(tmp_path, ranks, *words):
    """The results of a comparison on the ranks of a job."""
    file = tmp_path / "found.json"
    line = ("-m", "collectives", "compare", "--json", str(file), "--model", "mlp", *words)
    done = mpiexec("openmpi", ranks, *line, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text())


@pytest.mark.long
def test_on_ranks(tmp_path):
    strategies = "allreduce,local_sgd:every=2,async_parameter_server,ad_psgd"
    found = compared(tmp_path, 4, "--strategies", strategies, "--epochs", "3", "--step", "0.004")
    table, runs = {row["label"]: row for row in found["table"]}, found["runs"]
    assert found["gains"] == []  # no rank is slow
    assert list(table) == ["one process, batch 32", "one process, batch 128", *strategies.split(",")]
    assert [one["ranks"] for one in runs] == [1, 1, 4, 4, 4, 4]
    for one in runs:
        samples = [record["samples"] for record in one["records"]]
        if one["strategy"] in ("allreduce", "local_sgd"):
            assert samples == [1442, 2 * 1442, 3 * 1442]
        else:
            assert len(samples) == 3
            assert 3 * 1442 <= samples[-1] < 3.7 * 1442
        assert len(one["bytes_sent"]) == one["ranks"]
        assert one["seconds"] == one["records"][-1]["seconds"] > 0
    alone, whole = table["one process, batch 32"], table["one process, batch 128"]
    assert alone["efficiency"] == pytest.approx(1)
    assert whole["steps"] == 36
    assert table["local_sgd:every=2"]["sent"] < 0.7 * table["allreduce"]["sent"]


SLOW = "--option beside=true --shard shuffled --model mlp --step 0.03 --epochs 20".split()


def measured(found):
    """The gains in a file of results, where JSON has no infinite numbers."""
    return [
        Gain(**{**gain, "staleness": math.inf if gain["staleness"] is None else gain["staleness"]})
        for gain in found["gains"]
    ]


@pytest.mark.slow
@pytest.mark.alone
def test_a_rank_that_is_four_times_slower(tmp_path):
    """Where nobody waits, training goes on at 0.8 or more of its ideal 3.25 times the pace of synchronous training.

    With a bound on staleness the slow rank sets the pace. All reach an accuracy of 0.9.
    """
    strategies = "allreduce,async_parameter_server,async_easgd,ad_psgd,peer_async,ssp"
    found = compared(tmp_path, 4, "--strategies", strategies, "--straggler", "1x4", *SLOW)
    gains = {gain["label"].partition(":")[0]: gain for gain in found["gains"]}
    assert list(gains) == strategies.split(",")[1:]
    assert all(gain["ideal"] == pytest.approx(3.25) for gain in gains.values())
    assert pace_misses(measured(found), straggler=True) == []
    assert all(row["time"] is not None for row in found["table"])


@pytest.mark.slow
@pytest.mark.alone
def test_delays_that_pass(tmp_path):
    """They have a mean of 30 ms, as much as the computation of a step. A bound on staleness then costs little."""
    found = compared(tmp_path, 4, "--strategies", "allreduce,async_parameter_server,ssp", "--jitter", "0.03", *SLOW)
    ideal = (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1) / (1 + 1)
    assert all(gain["ideal"] == pytest.approx(ideal, rel=0.02) for gain in found["gains"])
    assert pace_misses(measured(found), straggler=False) == []
    free, bounded = found["gains"]
    assert 1.2 < bounded["measured"] <= 1.1 * free["measured"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--strategies", "nocomm,nocomm"], "a strategy is given twice"),
        (["--strategies", "nocomm", "--option", "every=3"], "none of the strategies has an option 'every'"),
        (["--strategies", "ssp:staleness=-1"], "ssp: staleness must be at least 0, not -1"),
        (
            ["--strategies", "parameter_server"],
            "parameter_server on 1 rank: servers=1 of 1 ranks: none is left to train",
        ),
        (["--strategies", "local_sgd:master=7"], "local_sgd on 1 rank: master must be one of 1 ranks, not 7"),
        (["--strategies", "easgd:alpha=2"], "easgd on 1 rank: alpha must be at most 1/1 for 1 ranks, not 2"),
        (["--strategies", "nocomm", "--check"], "--check compares with allreduce, which is not among the strategies"),
        (["--strategies", "nocomm", "--straggler", "1x4"], "--straggler 1: the ranks are 0 to 0"),
        (["--strategies", "nocomm", "--straggler", "0x4", "--step", "0"], "--straggler needs a --step above 0"),
        (["--strategies", "nocomm", "--json", "/absent/x"], "cannot write /absent/x"),
        (["--strategies", "nocomm", "--data", "absent.npz"], "cannot read absent.npz"),
    ],
)
def test_bad_input(capsys, words, said):
    assert main(*words) == 2
    out, err = capsys.readouterr()
    assert err.startswith("compare: error: ")
    assert said in err


def test_an_error_of_the_training_of_one_process_is_raised_on_all_ranks(tmp_path, capsys):
    """The others sleep meanwhile: nothing is wrong with the options, but the network does not take the samples."""
    path = tmp_path / "flat.npz"
    np.savez(path, x=np.arange(240.0).reshape(60, 4), y=np.arange(60) % 3)
    words = ["--strategies", "allreduce", "--data", str(path), "--model", "cnn", "--epochs", "1", "--step", "0"]
    assert threads.run(2, lambda comm: main(*words, comm=comm), timeout=20) == [2, 2]
    assert "compare: error: the cnn takes images" in capsys.readouterr().err


def test_a_limit_that_is_missed_is_the_exit_status(capsys):
    words = ["--strategies", "allreduce,nocomm", "--epochs", "2", "--step", "0", "--model", "mlp", "--check"]
    assert main(*words) == 1  # one rank alone has all labels
    assert "missed: nocomm: accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--strategies", "every"], ["--strategies", "nocomm", "--jitter", "-1"]])
def test_wrong_options(capsys, words):
    with pytest.raises(SystemExit) as end:
        main(*words)
    assert end.value.code == 2
    assert "error" in capsys.readouterr().err


def test_a_training_that_diverges_is_a_line_of_the_table(tmp_path):
    words = ["--strategies", "nocomm", "--epochs", "1", "--step", "0", "--model", "mlp", "--lr", "1e9"]
    with np.errstate(all="ignore"):
        assert main(*words, "--json", str(tmp_path / "found.json")) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["runs"][-1]["records"][-1]["loss"] is None
    assert found["table"][-1]["accuracy"] < 0.2
    assert found["table"][-1]["time"] is None
