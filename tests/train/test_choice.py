"""Strategies by name: options from the constructors' signatures, and what is said to wrong ones."""

import argparse
import inspect

import pytest
from mpi4py import MPI

from collectives import train
from collectives.train import cli
from collectives.train.cli import choice
from collectives.train.strategies.registry import STRATEGIES


class Base(train.Strategy):
    def __init__(self, servers: int = 1, *, beside: bool = False, tables: dict[str, int] | None = None) -> None:
        self.servers, self.beside = servers, beside


class Derived(Base):
    """One line about it.

    And more.
    """

    def __init__(self, staleness: int, rate: float | str = "full", **how: object) -> None:
        super().__init__(**how)
        self.staleness, self.rate = staleness, rate


@pytest.fixture
def derived(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "derived", Derived)


def parse(*words):
    parser = argparse.ArgumentParser(prog="train")
    cli.add_arguments(parser)
    return parser.parse_args(words)


def test_options_are_those_of_the_signature_with_those_passed_on():
    found = choice.options(Derived)
    assert list(found) == ["staleness", "rate", "servers", "beside"]  # a text can give no tables
    assert found["staleness"].default is inspect.Parameter.empty
    assert found["rate"].kinds == (float, str)
    assert found["beside"].kinds == (bool,)


def test_values_have_the_types_of_the_signature(derived):
    made = choice.Choice.parse("derived:staleness=3:rate=0.5:beside=TRUE").make()
    assert (made.staleness, made.rate, made.beside, made.servers) == (3, 0.5, True, 1)
    assert choice.Choice.parse("derived:staleness=3:rate=shared").make().rate == "shared"
    strategy = choice.Choice.parse("allreduce:clip_norm=2:algorithm=none:bucket_bytes=1000").make()
    assert (strategy.clip_norm, strategy.algorithm, strategy.bucket_bytes) == (2.0, None, 1000)


def test_the_command_line_joins_both_ways_of_giving_options():
    args = parse("--strategy", "allreduce:shard=1", "--option", "average=false")
    assert str(choice.chosen(args)) == "allreduce:shard=1:average=false"
    assert str(choice.chosen(parse())) == "allreduce"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--option", "every"], "'every' is not of the form OPTION=VALUE"),
        (["--option", "shard=1", "--option", "shard=2"], "option shard is given twice"),
        (["--strategy", "allreduce:shard=1", "--option", "shard=2"], "option shard is given twice"),
        (["--option", "every=8"], "allreduce has no option 'every'; it has average, bucket_bytes, algorithm"),
        (["--strategy", "nocomm", "--option", "every=8"], "nocomm has no option 'every'; it has none"),
        (["--option", "shard=one"], "allreduce: shard=one: expected INT"),
        (["--option", "average=maybe"], "allreduce: average=maybe: expected true|false"),
        (["--option", "clip_norm=-1"], "allreduce: clip_norm must be positive and finite, not -1.0"),
        (["--strategy", "parameter_server"], "parameter_server on 1 rank: servers=1 of 1 ranks: none is left to train"),
        (["--strategy", "derived"], "derived needs staleness=INT"),
    ],
)
def test_wrong_options_are_told_before_the_data_are_read(derived, capsys, words, said):
    assert cli.main(parse(*words, "--data", "absent.npz"), MPI.COMM_SELF) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"train: error: {said}")
    assert out == ""


def test_an_unknown_strategy_is_told_with_those_that_there_are(capsys):
    with pytest.raises(SystemExit) as end:
        parse("--strategy", "gossip")
    assert end.value.code == 2
    assert f"unknown strategy 'gossip'; there are {', '.join(STRATEGIES)}" in capsys.readouterr().err


def test_the_list_has_a_line_for_each_strategy_and_its_options(derived, capsys):
    with pytest.raises(SystemExit) as end:
        parse("--list")
    assert end.value.code == 0
    out = capsys.readouterr().out
    for name, strategy in STRATEGIES.items():
        line = next(line for line in out.splitlines() if line.split()[0] == name)
        assert line.removeprefix(name).strip() == inspect.getdoc(strategy).partition("\n\n")[0].replace("\n", " ")
        assert all(f"{option}=" in out for option in choice.options(strategy))
    assert "staleness=INT (must be given)" in out
    assert "clip_norm=none|NUMBER (none)" in out


def test_every_strategy_that_is_public_has_a_name():
    public = {kind for kind in vars(train).values() if inspect.isclass(kind) and issubclass(kind, train.Strategy)}
    assert public - {train.Strategy} == set(STRATEGIES.values())
