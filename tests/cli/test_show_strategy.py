"""``python -m collectives show --strategy``: who talks to whom, as text and as SVG."""

import xml.etree.ElementTree as ET

import pytest

from collectives.cli.commands import main
from collectives.cli.show_strategy import frames
from collectives.train.cli.choice import Choice
from collectives.train.strategies.registry import STRATEGIES


def show(capsys, *words):
    assert main(["show", *words]) == 0
    return capsys.readouterr().out


def test_rounds_of_local_steps(capsys):
    assert (
        show(capsys, "--strategy", "local_sgd", "--option", "every=4", "--option", "start=2", "-p", "2", "--steps", "8")
        == """\
local_sgd:every=4:start=2, p = 2

            rank 0        rank 1

steps 0-1   = gradients   = gradients

steps 2-4   -             -

step 5      = parameters  = parameters

steps 6-7   -             -

  =    take part in an all-reduce, and wait for it
  -    send nothing
"""
    )


def test_steps_that_are_repeated_are_shown_once(capsys):
    lines = show(capsys, "--strategy", "local_sgd:every=3", "-p", "2", "--steps", "8").splitlines()
    assert lines[0] == "local_sgd:every=3, p = 2, the same every 3 steps"
    assert [line.split("  ")[0] for line in lines if line.startswith("step")] == ["steps 0-1", "step 2"]
    once = show(capsys, "--strategy", "local_sgd:every=5", "-p", "2", "--steps", "8").splitlines()
    assert once[0] == "local_sgd:every=5, p = 2"
    assert [line.split("  ")[0] for line in once if line.startswith("step")] == ["steps 0-3", "step 4", "steps 5-7"]
    (head,) = [line for line in show(capsys, "--strategy", "async_easgd", "-p", "4").splitlines() if "p = 4" in line]
    assert head == "async_easgd, p = 4, 1 of them serves, the same every 4 steps"


def test_servers_have_columns_of_their_own(capsys):
    assert (
        show(capsys, "--strategy", "ssp:staleness=2:servers=2", "-p", "5")
        == """\
ssp:staleness=2:servers=2, p = 5, 2 of them serve

             rank 0             rank 1             rank 2             server 3           server 4

steps 0-15   >3,4 gradients/2   >3,4 gradients/2   >3,4 gradients/2   >0-2 parameters/2  >0-2 parameters/2
             <3,4 parameters/2  <3,4 parameters/2  <3,4 parameters/2  <0-2 gradients/2   <0-2 gradients/2

  >q   send to rank q
  <q   wait for what rank q sends in this step
  /2   one of 2 equal parts
  a server answers a rank that is at most 2 steps ahead of the slowest
"""
    )


def test_a_graph_that_changes_with_time(capsys):
    out = show(capsys, "--strategy", "push_sum", "-p", "4", "--steps", "3", "--rank", "1")
    assert [line.split() for line in out.splitlines()[4:]][:8] == [
        ["step", "0", ">2", "parameters"], ["<0", "parameters"], [],
        ["step", "1", ">3", "parameters"], ["<3", "parameters"], [],
        ["step", "2", ">2", "parameters"], ["<0", "parameters"],
    ]  # fmt: skip


def test_what_nobody_waits_for(capsys):
    out = show(capsys, "--strategy", "peer_async", "-p", "3")
    assert "~1,2 gradients" in out
    assert "~q   use what rank q has sent, when it is there" in out


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_drawn(capsys, tmp_path, name):
    assert show(capsys, "--strategy", name, "-p", "4").startswith(name)
    file = tmp_path / "picture.svg"
    assert show(capsys, "--strategy", name, "-p", "4", "--svg", str(file)) == f"wrote {file}\n"
    root = ET.fromstring(file.read_text())
    pattern = Choice(name, {}).pattern(4)
    arrows = [
        line for line in root.iter("{http://www.w3.org/2000/svg}line") if line.get("class") in ("reduced", "stored")
    ]
    shown = frames(pattern, 4, 16)
    kinds = {message.what.partition("/")[0] for frame in shown for message in frame.messages}
    assert len(arrows) == len(kinds) + sum(len(frame.messages) for frame in shown)  # each kind is in the legend
    texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
    said = {text.text for text in texts}
    assert said >= kinds
    assert ("all-reduce" in said) == any(frame.meeting for frame in shown)
    assert ("no rank sends anything" in said) == (name == "nocomm")
    heads = [text.text for text in texts if text.get("class") == "head"]
    assert len(heads) == 4
    assert sum("server" in head for head in heads) == len(pattern.servers)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-p", "4"], "name an algorithm, or give --strategy"),
        (["ring", "--strategy", "nocomm", "-p", "4"], "name an algorithm, or give --strategy"),
        (["--strategy", "rung", "-p", "4"], "unknown strategy 'rung'"),
        (["--strategy", "ssp:staleness=-1", "-p", "4"], "staleness must be at least 0"),
        (["--strategy", "parameter_server:servers=4", "-p", "4"], "none is left to train"),
        (["--strategy", "neighbor_averaging:graph=star", "-p", "4"], "unknown graph 'star'"),
        (["--strategy", "nocomm", "-p", "4", "--values"], "are for algorithms"),
        (["--strategy", "nocomm", "-p", "4", "--rank", "4"], "the ranks are 0 to 3"),
        (["--strategy", "nocomm", "-p", "4", "--steps", "0"], "0 is not at least 1"),
    ],
)
def test_bad_input(capsys, words, said):
    with pytest.raises(SystemExit) as end:
        main(["show", *words])
    assert end.value.code == 2
    assert said in capsys.readouterr().err
