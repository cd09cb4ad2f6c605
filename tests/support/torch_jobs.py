"""Programs that the tests of the torch backend run in many surroundings, and what they say."""

from jobs import ROOT

BACKEND = "tests/torch/programs/backend.py"
FAILING = ROOT / "tests/torch/programs/failing.py"
PASSED = "32 passed"


def place(words):
    lines = FAILING.read_text().splitlines()
    return f"{FAILING}:{next(i for i, line in enumerate(lines, 1) if words in line)}"


def hold_calls_that_differ(found):
    """What `errors` told of FAILING's case `mismatch` on 2 ranks."""
    assert sorted(found) == [0, 1]
    for seconds, kind, words in found.values():
        assert kind == "CollectiveMismatch"
        assert seconds < 3
        assert "rank 0: call 2, allreduce of 1000 float32, SUM" in words
        assert "rank 1: call 2, allreduce of 999 float32, SUM" in words
        assert place("if CASE ==") not in words
        assert str(FAILING) in words
