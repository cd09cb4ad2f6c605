"""``python -m collectives simulate``: its table and its files."""

import json
import re
import shlex
from pathlib import Path

import pytest
from jobs import ROOT

from collectives.cli.commands import main
from collectives.simulation import events, goal, simulate
from collectives.simulation import picture as map_of_winners
from collectives.simulation.values import duration, rate, seconds


def run(capsys, *words):
    code = main(["simulate", *words])
    return code, capsys.readouterr().out


def test_the_table(capsys):
    code, out = run(capsys, "ring", "allgather/ring", "-p", "4,8", "-n", "64KiB,1MiB", "--beta", "1GB/s")
    assert code == 0
    assert len(out.splitlines()) == 9
    assert re.search(r"^allreduce +ring +8 +8 +1048576 +\S+ ms +1\.\d\d +112 +clocks", out, re.MULTILINE)


def test_ranks_share_hosts_in_the_order_that_a_communicator_chooses(capsys):
    words = ("circulant", "-p", "64", "--hosts", "8", "-n", "16MiB")
    chosen, own = (run(capsys, *words, *more)[1].splitlines()[1] for more in ((), ("--order", "own")))
    assert "circulant (cyclic)" in chosen
    assert "cyclic" not in own
    times = [float(re.search(r"[mu]s +([\d.]+) ", line)[1]) for line in (chosen, own)]
    assert 2 * times[0] < times[1]


def test_results_as_json_and_as_a_picture(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    files = [str(tmp_path / name) for name in ("a.json", "a.svg", "b.svg")]
    for picture in files[1:]:
        run(capsys, "all", "-p", "4,16", "-n", "8,1MiB", "--json", files[0], "--picture", picture)
    found = json.loads(Path(files[0]).read_text())
    assert {(row["ranks"], row["bytes"]) for row in found["results"]} == {(4, 8), (4, 1 << 20), (16, 8), (16, 1 << 20)}
    assert found["simulation"]["beta"] == 12e9
    assert all(row["seconds"] > 0 for row in found["results"])
    assert Path(files[1]).read_bytes() == Path(files[2]).read_bytes()


def test_every_winner_of_a_map_has_a_look_of_its_own(monkeypatch):
    """Those that win nowhere take no colour from others."""
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(map_of_winners.drawing, "save", lambda figure, path: drawn.append(figure))
    for losers in (0, 8):
        rows = [
            {"collective": "allreduce", "algorithm": name, "ranks": ranks, "bytes": 8, "changes": 0, "seconds": time}
            for ranks in range(9) for name, time in [(f"loser {i}", 2.0) for i in range(losers)] + [(f"a{ranks}", 1.0)]
        ]  # fmt: skip
        map_of_winners.draw(rows, "a.svg")
    for figure in drawn:
        looks = [(patch.get_facecolor(), patch.get_hatch()) for patch in figure.axes[0].patches]
        assert len(set(looks)) == 9
        legend = figure.legends[0].legend_handles
        assert [(patch.get_facecolor(), patch.get_hatch()) for patch in legend] == looks
        assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"a{i}" for i in range(9)]
    assert drawn[0].axes[0].patches[7].get_hatch() == ""
    assert drawn[0].axes[0].patches[8].get_hatch()


def test_goal_text_has_a_receive_for_every_send(capsys, tmp_path):
    file = tmp_path / "tree.goal"
    assert run(capsys, "reduce/binomial", "-p", "7", "-n", "1000", "--goal", str(file))[0] == 0
    text = file.read_text()
    assert text.startswith("num_ranks 7\n")
    sends, receives = [], []
    for part in text.split("\nrank ")[1:]:
        rank, known = int(part.split()[0]), set()
        for line in part.splitlines()[1:-1]:
            if " requires " in line:
                assert set(line.split(" requires ")) <= known  # what is required is above
                continue
            known.add(line.split(":")[0])
            what, number, peer, tag = re.match(r"l\d+: (\w+) (\d+)b? ?(?:\w+ (\d+) tag (\d+))?", line).groups()
            if what == "send":
                sends.append((rank, int(peer), tag, number))
            elif what == "recv":
                receives.append((int(peer), rank, tag, number))
            else:
                assert what == "calc"
                assert number == "50"
    assert len(sends) == 6
    assert sorted(sends) == sorted(receives)


def test_goal_text_has_the_order_of_ranks_that_is_simulated(capsys, tmp_path):
    """Ranks that share a host exchange the most: in turn, rank r's first partner is on its own host."""
    words = ("circulant", "-p", "8", "--hosts", "2", "-n", "8192", "--goal")
    texts = {}
    for order in ("chosen", "own"):
        assert run(capsys, *words, str(tmp_path / order), "--order", order)[0] == 0
        texts[order] = (tmp_path / order).read_text()
    first = {
        order: re.search(r"^rank 0 \{\nl1: send (\d+)b to (\d+) ", text, re.MULTILINE) for order, text in texts.items()
    }
    assert int(first["own"][2]) >= 4 > int(first["chosen"][2])
    assert first["own"][1] == first["chosen"][1] == "4096"


def test_goal_text_joins_what_many_operations_require(monkeypatch, capsys, tmp_path):
    file = tmp_path / "linear.goal"
    assert run(capsys, "linear", "-p", "16", "-n", "1MiB", "--goal", str(file))[0] == 0
    text = file.read_text()
    assert "calc 0\n" in text
    assert len(text.splitlines()) < 16 * 16 * 8
    monkeypatch.setattr(goal, "MOST_LINES", 100)
    with pytest.raises(SystemExit):
        main(["simulate", "linear", "-p", "16", "--goal", str(file)])
    assert "over 100 lines" in capsys.readouterr().err
    assert file.read_text() == text


def test_what_does_not_fit_in_memory_is_left_out_of_several(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(events, "MOST_MESSAGES", 200)
    file = tmp_path / "a.json"
    assert main(["simulate", "ring", "naive", "-p", "150", "--json", str(file)]) == 0
    assert "naive is left out: the schedule has over 200 messages" in capsys.readouterr().err
    assert [row["algorithm"] for row in json.loads(file.read_text())["results"]] == ["ring"]


def test_an_error_if_nothing_fits_in_memory(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(events, "MOST_MESSAGES", 200)
    file = tmp_path / "a.json"
    with pytest.raises(SystemExit) as left:
        main(["simulate", "naive", "linear", "-p", "150", "--json", str(file)])
    assert left.value.code == 2
    assert "the schedule has over 200 messages" in capsys.readouterr().err.splitlines()[-1]
    assert not file.exists()


def test_times_that_are_not_exact_are_named(monkeypatch, capsys, tmp_path):
    """Clocks that cannot tell which message was first, and too many messages for events."""
    file = tmp_path / "a.json"
    words = ("reduce/binomial", "-p", "5", "-n", "16MiB", "--root", "2", "--json", str(file))
    assert re.search(r" +events +", run(capsys, *words)[1].splitlines()[1])
    monkeypatch.setattr(simulate, "MOST_MESSAGES", 3)
    assert re.search(r" +inexact clocks +", run(capsys, *words)[1].splitlines()[1])
    assert json.loads(file.read_text())["results"][0]["engine"] == "inexact clocks"


def test_what_cannot_be_cut_is_said(capsys):
    assert main(["simulate", "ring", "reduce_scatter/circulant", "-p", "5", "-n", "1MiB", "--segments", "8"]) == 0
    assert capsys.readouterr().err == "reduce_scatter circulant on 5 ranks: one segment, it cannot be cut\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rung", "-p", "4"), "no algorithm 'rung'"),
        (("shm", "-p", "4"), "not a schedule"),
        (("ring", "-p", "4", "--hosts", "5"), "hosts"),
        (("ring", "-p", "4", "--beta", "12"), "not a rate"),
        (("ring", "-p", "4", "--beta", "200Mb/s"), "write bit/s or B/s"),
        (("ring", "-p", "4", "--alpha", "2"), "not a time"),
        (("ring", "-p", "4", "--root", "1"), "no such root"),
        (("ring", "-p", "4", "--slow-rank", "4:2"), "slow_ranks"),
        (("ring", "-p", "4", "--topology", "x"), "not levels"),
        (("ring", "-p", "4,8", "--goal", "x"), "one schedule"),
        (("ring", "-p", "4", "--json", "/nowhere/x"), "no directory /nowhere"),
        (("ring", "-p", "4", "--hosts", "0"), "hosts"),
        (("ring", "-p", "4", "--jitter", "0.1", "--seed", "-1"), "seed: expected"),
        (("ring", "-p", "4", "--jitter", "0.1", "--seed", str(1 << 64)), "seed: expected"),
        (("ring", "-p", "4", "--jitter", "nan"), "jitter"),
        (("ring", "-p", "4", "--alpha=-1us"), "alpha"),
        (("ring", "-p", "4", "--beta", "1e400GB/s"), "not a rate"),
        (("ring", "-p", "4", "--beta", "1e300TB/s"), "not a rate"),
        (("ring", "-p", "4", "--beta", "1e-310B/s"), "not a rate"),
        (("ring", "-p", "4", "--step", "1s"), "--step has no effect without --strategy"),
        (("ring", "-p", "4", "--straggler", "1x4"), "--straggler has no effect without"),
        (("ring", "-p", "4", "--option", "a=b"), "--option has no effect without"),
        (("ring", "-p", "4", "--topology", "2:2:2"), "not levels"),
        (("ring", "-p", "4", "--topology", f"{10**30}:2"), "width"),
        (("ring", "-p", "4", "--topology", "2:nan"), "oversubscription"),
        (("allgather/bruck", "-p", "4", "--segments", "0"), "--segments"),
        (("ring", "-p", "4", "--segments", str(10**9)), "do not fit in memory"),
        (("ring", "-p", "1", "--segments", str(10**12)), "do not fit in memory"),
        (("reduce/binomial", "-p", "4", "--goal", "x", "--root", "4"), "no such root"),
        (("ring", "-p", "4", "--picture", "x.gif"), "expected a name"),
    ],
)
def test_usage_errors_say_what_is_wrong(capsys, words, said):
    with pytest.raises(SystemExit) as left:
        main(["simulate", *words])
    assert left.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "where"),
    [
        *((("--goal", "x", "--hosts", "2", *words), "with --goal") for words in (
            ("--segments", "2"), ("--in-flight", "8"), ("--alpha", "5us"), ("--beta", "1GB/s"), ("--overhead", "1us"),
            ("--local-alpha", "1us"), ("--local-beta", "1GB/s"), ("--rendezvous", "1"), ("--burst", "1"),
            ("--topology", "2:2"), ("--jitter", "0.1"), ("--seed", "2"), ("--slow-host", "1:2"), ("--json", "y"),
            ("--picture", "y.svg"),
        )),
        (("--in-flight", "8"), "without --segments"),
        (("--seed", "2"), "without --jitter"),
        (("--placement", "cyclic"), "without --hosts"), (("--order", "own"), "without --hosts"),
        (("--local-alpha", "1us"), "without --hosts"), (("--local-beta", "1GB/s"), "without --hosts"),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(capsys, tmp_path, monkeypatch, words, where):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["simulate", "ring", "-p", "4", *words])
    assert left.value.code == 2
    assert capsys.readouterr().err.endswith(f"{words[-2]} has no effect {where}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ("--fold", "1GB/s"), ("--slow-rank", "1:2"), ("--hosts", "2", "--order", "own"), ("--root", "1"),
        ("--hosts", "2", "--placement", "cyclic"),
    ],
)  # fmt: skip
def test_other_options_change_the_goal_text(capsys, tmp_path, words):
    """So that only options without effect are refused; host after host, the order of ranks is another one."""
    name = "reduce/binomial" if "--root" in words else "circulant"
    every = {}
    for more in (words[:2] if len(words) == 4 else (), words):
        file = tmp_path / f"{len(more)}.goal"
        assert run(capsys, name, "-p", "8", "-n", "8192", "--goal", str(file), *more)[0] == 0
        every[more] = file.read_text()
    assert len(set(every.values())) == 2


def test_units():
    assert [seconds(t) for t in ("2us", "1.5 ms", "3e2ns", "1s")] == pytest.approx([2e-6, 1.5e-3, 3e-7, 1])
    assert [rate(t) for t in ("12GB/s", "200Mbit/s", "64KiB/s")] == pytest.approx([12e9, 25e6, 65536])
    assert [duration(x) for x in (1.5, 2e-3, 3.25e-6, 4e-9, 0)] == ["1.5 s", "2 ms", "3.25 us", "4 ns", "0 ns"]


PAGE = re.search(r"^```sh\n(.*?)^```$", (ROOT / "docs/simulation.md").read_text(), re.DOTALL | re.MULTILINE)[1]


README = (ROOT / "README.md").read_text().splitlines()  # whose commands make test runs, too


def marks(line):
    """A line that the README has, too, is run there."""
    return [pytest.mark.slow] * (line in README) + [pytest.mark.long] * ("-p 100000" in line)


@pytest.mark.parametrize("line", [pytest.param(line, marks=marks(line)) for line in PAGE.splitlines()])
def test_the_commands_of_the_page(capsys, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    python, module, package, *words = shlex.split(line)
    assert (python, module, package) == ("python", "-m", "collectives")
    assert main(words) == 0
    assert capsys.readouterr().out
    written = [words[i + 1] for i, word in enumerate(words) if word in ("--json", "--picture", "--goal")]
    assert sorted(written) == sorted(file.name for file in tmp_path.iterdir())
