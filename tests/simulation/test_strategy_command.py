"""``python -m collectives simulate --strategy``: its table, its answers, its files, and what it says to bad input."""

import json
import math
import re

import pytest

from collectives import train
from collectives.cli.commands import main
from collectives.simulation.strategies import Conditions
from collectives.simulation.strategy_cli import LARGEST, break_even
from collectives.train.cli.choice import Choice
from collectives.train.strategies.pattern import central
from collectives.train.strategies.registry import STRATEGIES


class Asynchronous(train.Strategy):
    def __init__(self, servers: int = 1) -> None:
        self.servers = servers

    def pattern(self, size):
        return central(range(size - self.servers, size), math.inf)


class Silent(train.Strategy):
    pass


@pytest.fixture(autouse=True)
def more(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "asynchronous", Asynchronous)
    monkeypatch.setitem(STRATEGIES, "silent", Silent)


def run(capsys, *words):
    code = main(["simulate", *words])
    return code, capsys.readouterr().out


def test_the_table_and_the_answer(capsys):
    words = ("--strategy", "asynchronous", "-p", "4,16", "--straggler", "1x4", "--bytes", "1kB")
    code, out = run(capsys, *words)
    assert code == 0
    assert re.search(r"^allreduce +4 +10 +1\.000 +56\.\d% +0 +0\.0 +-$", out, re.MULTILINE)
    assert re.search(r"^asynchronous +4 +22\.\d+ +2\.2\d\d +0\.0% ", out, re.MULTILINE)  # 2 + 1/4 of 1 in 0.1 s
    assert re.search(r"^asynchronous +16 +14\d\.\d+ +3\.5\d\d ", out, re.MULTILINE)
    assert re.search(
        r"^4 ranks: asynchronous makes 2.2\d times the steps of allreduce, and is ahead", out, re.MULTILINE
    )
    assert re.search(r"as many steps, it pays as soon as one rank takes 1.5\d times as long\.$", out, re.MULTILINE)


def test_options_reach_the_strategies_that_have_them(capsys, tmp_path):
    file = tmp_path / "found.json"
    words = ("--strategy", "asynchronous,nocomm", "--servers", "3", "-p", "8", "--jitter", "10%", "--json", str(file))
    assert run(capsys, *words)[0] == 0
    found = json.loads(file.read_text())
    assert [(row["strategy"], row["options"]) for row in found["results"]] == [
        ("allreduce", {}),
        ("asynchronous", {"servers": "3"}),
        ("nocomm", {}),
    ]
    assert found["simulation"]["jitter"] == 0.1
    assert [row["ranks"] for row in found["results"]] == [8, 8, 8]
    assert found["results"][1]["steps_per_second"] == pytest.approx(
        5 / 8 * found["results"][2]["steps_per_second"], 0.05
    )
    assert len(found["answers"]) == 2


@pytest.mark.quick("4-1.0", "4-2.0")
@pytest.mark.parametrize(("p", "price"), [(4, 1.0), (4, 2.0), (16, 1.5)])
def test_where_asynchronous_begins_to_pay(p, price):
    """p - 2 + 1/f steps of p - 1 workers, against p/f synchronous ones, in a step's time."""
    conditions = Conditions(step=0.1, nbytes=0, alpha=0.0)
    found = break_even(Choice("asynchronous", {}), p, conditions, 2000, price)
    assert found == pytest.approx((price * p - 1) / (p - 2), rel=0.02)


def test_what_pays_always_and_what_never_does():
    conditions = Conditions(jitter=0.5)
    assert break_even(Choice("nocomm", {}), 4, conditions, 200) == 1.0
    saturated = Conditions(step=1e-3, nbytes=100_000_000, beta=1e9)
    assert break_even(Choice("asynchronous", {}), 64, saturated, 20) is None
    assert LARGEST == 64


def test_a_busy_server_is_named(capsys):
    words = ("-p", "64", "-n", "100MB", "--beta", "1GB/s", "--step", "1ms", "--steps", "20")
    out = run(capsys, "--strategy", "asynchronous", *words)[1]
    assert re.search(r"not pay, even with one rank that takes 64 times as long; a server is in use for (9\d|100)%", out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ring", "--strategy", "nocomm"), "name algorithms, or give --strategy"),
        ((), "name algorithms, or give --strategy"),
        (("--strategy", "gossip"), "unknown strategy 'gossip'; there are allreduce"),
        (("--strategy", "nocomm", "--servers", "2"), "nocomm: no option 'servers'"),
        (("--strategy", "nocomm", "--option", "x"), "'x' is not of the form"),
        (("--strategy", "asynchronous:servers=two"), "servers=two: expected INT"),
        (("--strategy", "silent"), "silent: Silent has no pattern()"),
        (("--strategy", "asynchronous", "--servers", "4"), "leave no rank to train"),
        (("--strategy", "nocomm", "--straggler", "4x2"), "straggler 4: the ranks that train are 0 to 3"),
        (("--strategy", "nocomm", "--straggler", "1"), "'1' is not a rank and a factor such as 1x4"),
        (("--strategy", "nocomm", "--straggler", "1x0"), "a finite factor above 0"),
        (("--strategy", "nocomm", "-n", "1,2"), "one number of bytes"),
        (("--strategy", "nocomm", "--jitter", "some"), "'some' is not a part such as 0.1 or 10%"),
        (("--strategy", "nocomm", "--json", "/nowhere/x"), "no directory /nowhere"),
        (("--strategy", "nocomm", "--goal", "x.goal"), "--goal has no effect with --strategy"),
        (("--strategy", "nocomm", "--picture", "x.svg"), "--picture has no effect with --strategy"),
        (("--strategy", "nocomm", "--hosts", "2"), "--hosts has no effect with --strategy"),
        (("--strategy", "nocomm", "--slow-host", "0:4"), "--slow-host has no effect with --strategy"),
        (("--strategy", "nocomm", "--local-beta", "1GB/s"), "--local-beta has no effect with --strategy"),
    ],
)
def test_bad_input(capsys, words, said):
    with pytest.raises(SystemExit) as end:
        main(["simulate", *words, "-p", "4"])
    assert end.value.code == 2
    assert said in capsys.readouterr().err
