"""benchmarks/advise.py: its configurations, its verdict, and a run of two configurations."""

import json
import subprocess
import sys

import pytest
from jobs import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import advise  # noqa: E402
from _advise_setup import BATCH, ROWS, of  # noqa: E402

from collectives.advise.memory import Memory  # noqa: E402
from collectives.advise.step import Step  # noqa: E402

PROGRAM = ROOT / "benchmarks/advise.py"


def line(name, seconds, measured, nbytes=100.0, counted=100.0):
    return advise.Line(name, seconds, measured, nbytes, counted, Step(0, 0, 0, 0, 0, 0), Memory(0, 0, 0, 0, 0))


def test_configurations():
    """At least ten, of every kind, on 8 ranks, with the whole batch."""
    made = [of(name) for name in ROWS]
    assert len(set(made)) == len(ROWS) >= 10
    assert {plan.mesh.kind for plan in made} == {"data", "pipeline", "tensor", "hybrid"}
    assert {plan.schedule for plan in made} == {"1f1b", "gpipe", "zero_bubble", "interleaved_1f1b"}
    assert {plan.recompute for plan in made} == {"none", "stage"}
    assert {plan.zero for plan in made} == {0, 1}
    for plan in made:
        mesh = plan.mesh
        assert mesh.data * mesh.pipeline * mesh.tensor == 8
        assert mesh.data * plan.micro_batch * plan.micro_batches == BATCH


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([line("a", 1, 1.1), line("b", 2, 2.2)], []),
        ([line("a", 1, 1.1), line("b", 2, 2.2, nbytes=111)], ["b: 111 bytes predicted, 100 counted"]),
        ([line("a", 1, 2.2), line("b", 2, 1.0)], ["0 of 1 pairs", "a takes 2.20 times as long as b"]),
        ([line("a", 1, 1.04), line("b", 2, 1.0)], []),  # as fast: their order is not judged
    ],
)
def test_what_is_beyond_the_limits(found, words):
    told = advise.missed(found)
    assert len(told) == len(words)
    assert all(text.startswith(word) for text, word in zip(told, words, strict=True))


@pytest.mark.slow
@pytest.mark.alone
def test_two_configurations_are_measured(tmp_path):
    """How near the times are depends on the machine's load, and is not judged; the bytes are."""
    file = tmp_path / "found.json"
    words = ["--configurations", "8x1x1 16;2x2x2 16", "--rounds", "2", "--json", file]
    done = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True, timeout=300)
    if "hosts" in done.stderr and done.returncode == 2:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads(file.read_text())
    assert [kept["name"] if isinstance(kept, dict) else kept[0] for kept in found["lines"]] == ["8x1x1 16", "2x2x2 16"]
    for name, _, measured, nbytes, counted, *_ in (one.values() for one in found["lines"]):
        assert measured > 0.016 * 0.25 * 3, name
        assert nbytes == pytest.approx(counted, rel=0.1), name


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--configurations", "3 ranks"], "'3 ranks' is not a configuration"), (["--rounds", "many"], "invalid int")],
)
def test_bad_options(words, message):
    done = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert message in done.stderr
