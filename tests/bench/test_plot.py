"""Curves from results, and pictures of them."""

import json
import os
import re
import sys

import pytest
from jobs import ROOT

from collectives.bench import results
from collectives.bench.curves import curves, groups, of_files, read, size_name, size_ticks, speed_unit, time_name
from collectives.bench.plot import draw, picture, spread, tty
from collectives.cli.commands import main

sys.path.insert(0, str(ROOT / "benchmarks"))
import regenerate  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"


def bench(*times, ranks=2, algorithm="ring", kind="mpi_char"):
    """Results of bench at 8, 16, ... bytes."""
    return {
        "kind": "bench", "title": "MPI Allgather Latency", "machine": {"cpu": "A processor", "cores": 2},
        "results": [{"ranks": ranks, "algorithm": algorithm, "type": kind, "bytes": 8 << i, "vector": ranks * 8 << i,
                     "us": {"avg": 99.0, "p50": us}} for i, us in enumerate(times)],
    }  # fmt: skip


def test_medians_and_vectors_of_bench():
    (curve,) = curves(bench(1.0, 4.0))
    assert (curve.group, curve.label) == ("MPI Allgather, 2 ranks", "ring")
    assert curve.points == {8: 1.0, 16: 4.0}
    assert curve.bandwidths() == {8: 16 / 1e3, 16: 8 / 1e3}


def test_both_places_of_one_run():
    """As of bench --nccl: neither curve hides the other."""
    made = bench(1.0, 2.0)
    inside = bench(3.0, 4.0)
    made["results"] = [
        {**record, "in_place": place} for place, of in ((False, made), (True, inside)) for record in of["results"]
    ]
    found = {curve.label: list(curve.points.values()) for curve in curves(made)}
    assert found == {"ring, out of place": [1.0, 2.0], "ring, in place": [3.0, 4.0]}


def test_bandwidth_program():
    made = {**bench(1.0), "results": [{"ranks": 2, "algorithm": None, "type": "mpi_char", "bytes": 1000, "vector": 1000,
                                       "us": {}, "MB/s": 500.0}]}  # fmt: skip
    (curve,) = curves(made)
    assert curve.points == {1000: 2.0}
    assert curve.bandwidths() == {1000: 0.5}


def test_the_quicker_thread_level_of_a_peer():
    made = {"machine": {"cpu": "c", "cores": 2}, "results": [
        {"ranks": 2, "place": "out", "reuse": "one", "collective": "gather", "bytes": 8, "contestant": name, "us": us}
        for name, us in (("private", [1, 2, 9]), ("ompi/m", [5, 5, 5]), ("ompi/s", [4, 4, 4]), ("copy", [1]))
    ]}  # fmt: skip
    ours, theirs = curves(made)
    assert (ours.label, ours.points, ours.emphasis) == ("collectives", {8: 2}, True)
    assert (theirs.label, theirs.points, theirs.emphasis) == ("Open MPI", {8: 4}, False)
    assert ours.vectors == {8: 16}


def test_units():
    assert [size_name(n) for n in (1, 1024, 65536, 1 << 20, 3 << 30)] == ["1 B", "1 KiB", "64 KiB", "1 MiB", "3 GiB"]
    assert [time_name(us) for us in (0.1, 1, 20, 1000, 5e6)] == ["100 ns", "1 µs", "20 µs", "1 ms", "5 s"]


def test_ticks_of_sizes():
    assert size_ticks(3, 1e8, []) == [16, 256, 4096, 65536, 1 << 20, 1 << 24]
    assert size_ticks(7, 70, []) == [8, 16, 32, 64]
    assert size_ticks(7, 17, []) == [8, 16]
    assert size_ticks(960, 1600, [1500, 1000, 1000]) == [1000, 1500]
    assert [speed_unit(most) for most in (40, 0.9, 1e-4)] == [("GB/s", 1.0), ("MB/s", 1e-3), ("kB/s", 1e-6)]


@pytest.mark.parametrize("times", [(0.171, 0.118), (1.0, 1.01, 1.02), (0.3, 2.0, 90.0, 1e4)])
@pytest.mark.parametrize("panels", [1, 2])
def test_every_axis_says_where_it_is(times, panels):
    """At least two ticks of each axis have words, however short the range is."""
    figure = picture([bench(*times, ranks=2 + i) for i in range(panels)])
    figure.canvas.draw()
    for i, axis in enumerate(figure.axes):
        x, y = ([label.get_text() for label in side.get_majorticklabels()] for side in (axis.xaxis, axis.yaxis))
        assert len(x) > 1
        assert all(x)
        if panels == 1 or i == 0:  # the second panel of two has the first one's ticks
            assert len(y) > 1
            assert all(y)


def test_one_core_is_no_cores():
    one = bench(1.0, 2.0)
    one["machine"]["cores"] = 1
    assert [text.get_text() for text in picture([one]).texts if "processor" in text.get_text()] == [
        "A processor, 1 core"
    ]


def test_names_do_not_overlap():
    for wanted in ([0.5] * 5, [0.0, 0.01, 0.02], [0.97, 0.98, 1.0], [0.1, 0.12, 0.5, 0.52, 0.9]):
        places = spread(wanted, 0.05)
        assert all(b - a >= 0.05 - 1e-9 for a, b in zip(places, places[1:], strict=False))
        assert places[0] >= 0
        assert places[-1] <= 1
    assert spread([0.2, 0.6], 0.05) == [0.2, 0.6]


def test_one_group_is_latency_and_bandwidth():
    two = bench(1.0, 2.0, 4.0)
    two["results"] += bench(2.0, 3.0, 5.0, algorithm="bruck")["results"]
    figure = picture([two])
    latency, bandwidth = figure.axes
    assert (latency.get_yscale(), bandwidth.get_yscale()) == ("log", "linear")
    assert [line.get_label() for line in latency.get_lines()] == ["ring", "bruck"]
    assert latency.get_lines()[0].get_ydata().tolist() == [1.0, 2.0, 4.0]
    assert {text.get_text() for text in latency.texts} == {"ring", "bruck"}
    assert len({line.get_color() for line in latency.get_lines()}) == 2
    assert len({line.get_marker() for line in latency.get_lines()}) == 2
    assert figure.get_suptitle() == "MPI Allgather, 2 ranks"


def test_many_lines_are_told_apart():
    many = bench(1.0, 2.0)
    many["results"] = [r for i in range(14) for r in bench(1.0 + i, 2.0 + i, algorithm=f"a{i}")["results"]]
    lines = picture([many]).axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == 14


def test_several_groups_are_panels_with_one_legend():
    figure = picture([bench(1.0, 2.0), bench(3.0, 4.0, ranks=4)])
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["2 ranks", "4 ranks"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ring"]
    assert figure.get_suptitle() == "Latency: MPI Allgather"
    assert len(picture([bench(1.0, 2.0), bench(3.0, 4.0, ranks=4)], only="4 ranks").axes) == 2


def test_two_files_of_one_benchmark_are_told_apart(tmp_path, monkeypatch):
    """By the names of the files; those of a file that has nothing in common with others have no more words."""
    monkeypatch.chdir(tmp_path)
    for name, made in (("a/ompi", bench(1.0, 2.0)), ("a/mpich", bench(2.0, 3.0)), ("b/ompi", bench(4.0, 5.0, ranks=4))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.json").write_text(json.dumps(made))
    contents = [read(name) for name in ("a/ompi.json", "a/mpich.json", "b/ompi.json")]
    assert [curve.label for curve in of_files(contents)] == ["ring, ompi", "ring, mpich", "ring"]
    lines = picture(contents[:2]).axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["ring, ompi", "ring, mpich"]
    assert len({line.get_color() for line in lines}) == 2
    (tmp_path / "b/ompi.json").write_text(json.dumps(bench(4.0, 5.0)))
    same = [read(name) for name in ("a/ompi.json", "b/ompi.json")]
    assert [curve.label for curve in of_files(same)] == ["ring, a/ompi.json", "ring, b/ompi.json"]
    assert [curve.label for curve in of_files([bench(1.0, 2.0)] * 2)] == ["ring, 1", "ring, 2"]


@pytest.mark.parametrize(("kind", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_kinds(kind, begins, tmp_path):
    for name in ("a", "b"):
        draw([bench(1.0, 2.0)], tmp_path / f"{name}.{kind}")
    assert (tmp_path / f"a.{kind}").read_bytes().startswith(begins)
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_what_cannot_be_written_whole_leaves_the_old_file(tmp_path, monkeypatch):
    """A picture, and results as JSON."""

    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    for name, write in (
        ("a.png", lambda path: draw([bench(1.0, 2.0)], path)), ("a.json", lambda path: results.write(path, bench(1.0))),
    ):  # fmt: skip
        (tmp_path / name).write_text("old")
        with pytest.raises(OSError, match="No space") as raised:
            write(str(tmp_path / name))
        assert raised.value.filename == str(tmp_path / name)
        assert (tmp_path / name).read_text() == "old"
    assert {file.name for file in tmp_path.iterdir()} == {"a.png", "a.json"}


def test_the_command(tmp_path, capsys):
    (tmp_path / "a.json").write_text(json.dumps(bench(1.0, 2.0)))
    assert main(["plot", str(tmp_path / "a.json")]) == 0
    assert (tmp_path / "a.png").exists()
    assert capsys.readouterr().out == f"wrote {tmp_path / 'a.png'}\n"


@pytest.mark.parametrize(("content", "words", "why"), [
    ("{", [], "is not JSON"), ("{}", [], "has no results"), (json.dumps(bench(1.0)), [], "nothing to draw"),
    (json.dumps(bench(1.0, 2.0)), ["-o", "a.gif"], ".png, .svg, .pdf"),
    (json.dumps(bench(1.0, 2.0)), ["--only", "Bcast"], "the panels are MPI Allgather, 2 ranks"),
    (json.dumps(bench(1.0, 2.0)), ["-o", "/no/folder/a.svg"], "No such file"),
])  # fmt: skip
def test_what_cannot_be_drawn(content, words, why, tmp_path, capsys):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(SystemExit) as ended:
        main(["plot", str(tmp_path / "a.json"), *words])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


PEER = {"ranks": 2, "place": "out", "reuse": "one", "collective": "gather", "bytes": 8, "contestant": "heap", "us": [1]}
BAD = [
    ({"kind": "bench", "results": [{}]}, "title is missing"),
    ({"kind": "bench", "title": "x", "results": [1]}, "result 1: expected an object, not int"),
    ({"kind": "bench", "title": "x", "results": [{}]}, "result 1: type is missing"),
    ({**bench(1.0, 2.0), "machine": None}, "machine: expected an object"),
    ({**bench(1.0, 2.0), "results": [{**bench(1.0)["results"][0], "bytes": "8"}]}, "bytes: expected an integer"),
    ({**bench(1.0, 2.0), "results": [{**bench(1.0)["results"][0], "us": {"p50": []}}]}, "p50: expected a number"),
    ({**bench(1.0, 2.0), "results": [{**bench(1.0)["results"][0], "us": {}}]}, "MB/s is missing"),
    ({**bench(1.0, 2.0), "results": [{**bench(1.0)["results"][0], "us": {}, "MB/s": 0}]}, "MB/s: not above 0"),
    ({**bench(1.0), "results": [{**bench(1.0)["results"][0], "core_waits": None}]}, "core_waits: expected a number"),
    ({"results": [1]}, "result 1: expected an object, not int"),
    ({"results": [PEER, {**PEER, "us": []}]}, "result 2: us: expected a list of numbers"),
    ({"results": [{**PEER, "us": ["1"]}]}, "result 1: us: expected a list of numbers"),
    ({"results": [{**PEER, "collective": "gathr"}]}, "result 1: collective: 'gathr' is unknown"),
    ({"results": [{**PEER, "place": "on"}]}, "result 1: place: 'on' is none of out, in"),
]


@pytest.mark.parametrize(("content", "why"), BAD)
def test_damaged_results(content, why, tmp_path, capsys):
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit) as ended:
        main(["plot", str(tmp_path / "a.json")])
    assert ended.value.code == 2
    assert re.search(rf"{tmp_path}/a.json: .*{re.escape(why)}", capsys.readouterr().err)


def test_bars():
    lines = tty(curves(bench(1.0, 10.0, 100.0)))
    assert all(line.startswith("#") for line in lines)
    assert [line.count("*") for line in lines[2:]] == [1, 21, 40]
    assert tty([]) == []


def test_the_pictures_of_the_repository(tmp_path):
    """Each of the results has its picture, with all peers."""
    made = regenerate.draw(RESULTS, tmp_path)
    assert made
    assert [file.name for file in made if not (ROOT / "docs" / "img" / file.name).exists()] == []
    drawn = groups(curves(read(RESULTS / "allreduce-2-ranks.json")))
    labels = {curve.label for curve in drawn["Allreduce, 2 ranks"]}
    assert labels == {"collectives", "collectives, heap arrays", "Open MPI", "MPICH", "Intel MPI", "Gloo"}
