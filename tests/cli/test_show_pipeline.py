"""``python -m collectives show --pipeline``: schedules of pipelines, as text and as SVG."""

import xml.etree.ElementTree as ET

import pytest

from collectives.cli.commands import main
from collectives.train.pipeline.registry import SCHEDULES

SVG = "{http://www.w3.org/2000/svg}"


def show(capsys, *words):
    assert main(["show", "--pipeline", *words]) == 0
    return capsys.readouterr().out


def test_1f1b(capsys):
    assert (
        show(capsys, "1f1b", "-p", "2", "-m", "3")
        == """\
1f1b, 2 stages, 3 micro-batches

stage 0  F0 F1 .. .. B0=== F2 B1=== .. B2===|
stage 1  .. F0 B0=== F1 B1=== F2 B2===|.. ..

  F2    forward pass of micro-batch 2
  B2==  backward pass, twice as long
  |     a step of the optimizer

bubble: 25.0% of the step; formula (K-1)/(M+K-1): 25.0%

at most  activations, min(K-i, M)  versions of the weights, 1  staleness of a step, 0
stage 0  2 of 2                    1 of 1                      0 of 0
stage 1  1 of 1                    1 of 1                      0 of 0
"""
    )


def test_chunks_are_named(capsys):
    out = show(capsys, "interleaved_1f1b", "-p", "2", "-m", "2", "--chunks", "3", "--rank", "1")
    assert out.startswith(
        "interleaved_1f1b, 2 stages, 3 chunks a stage, 2 micro-batches\n\nstage 1  .... F0   F1   F0.1 "
    )
    row = out.splitlines()[2]
    assert [word for word in row.split() if word[0] == "F"] == ["F0", "F1", "F0.1", "F1.1", "F0.2", "F1.2"]
    assert "stage 0" not in out
    assert "formula (K-1)/(vM+K-1): 14.3%" in out


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_drawn(capsys, tmp_path, name):
    """Boxes are as many as computations; those of a stage do not overlap."""
    assert show(capsys, name, "-p", "4", "-m", "8").startswith(name)
    file = tmp_path / "picture.svg"
    assert show(capsys, name, "-p", "4", "-m", "8", "--svg", str(file)) == f"wrote {file}\n"
    root = ET.fromstring(file.read_text())
    rows = {}
    for box in root.iter(f"{SVG}rect"):
        if box.find(f"{SVG}title") is not None:
            rows.setdefault(float(box.get("y")), []).append((float(box.get("x")), float(box.get("width"))))
    kinds, chunks = (3 if SCHEDULES[name].split else 2), SCHEDULES[name]().chunks
    assert [len(boxes) for boxes in rows.values()] == [kinds * chunks * 8] * 4
    for boxes in rows.values():
        ordered = sorted(boxes)
        assert all(x + width <= after for (x, width), (after, _) in zip(ordered, ordered[1:], strict=False))
    steps = [line for line in root.iter(f"{SVG}line") if line.get("class") == "step"]
    assert len(steps) == 4 * {"pipedream": 8, "pipedream_2bw": 2}.get(name, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pipeline", "1f1b", "-p", "4"], "--pipeline needs -m, the number of micro-batches"),
        (["--pipeline", "rung", "-p", "4", "-m", "8"], "unknown pipeline schedule 'rung'; there are gpipe"),
        (["--pipeline", "1f1b", "-p", "4", "-m", "0"], "0 is not at least 1"),
        (["--pipeline", "interleaved_1f1b", "-p", "4", "-m", "8", "--chunks", "0"], "0 is not at least 1"),
        (["--pipeline", "interleaved_1f1b", "-p", "4", "-m", "6"], "a multiple of its 4 stages"),
        (["--pipeline", "gpipe", "-p", "4", "-m", "6", "--chunks", "2"], "gpipe has one chunk for each stage, not 2"),
        (["--pipeline", "gpipe", "-p", "4", "-m", "6", "--values"], "are for algorithms, not for --pipeline"),
        (["--pipeline", "gpipe", "--strategy", "nocomm", "-p", "4"], "name an algorithm, or give --strategy or"),
        (["ring", "-p", "4", "-m", "6"], "-m and --chunks are for --pipeline"),
    ],
)
def test_bad_input(capsys, words, said):
    with pytest.raises(SystemExit) as end:
        main(["show", *words])
    assert end.value.code == 2
    assert said in capsys.readouterr().err
