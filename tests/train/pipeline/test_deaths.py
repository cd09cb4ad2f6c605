"""A stage that is killed in the middle of a step, and one that is late: nobody hangs, and all name it."""

import json

import pytest
from jobs import LIVE_ON, ROOT, mpiexec

PROGRAM = str(ROOT / "tests/train/programs/pipeline_deaths.py")


def told(folder, ranks, victim, seconds, shape, timeout):
    """What each rank has raised: seconds, kind and text by rank."""
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}", "COLLECTIVES_TIMEOUT": str(timeout)}
    words = [PROGRAM, str(folder), str(victim), str(seconds), *shape]
    mpiexec("openmpi", ranks, *words, timeout=100, env=env, flags=LIVE_ON["openmpi"])
    return {int(file.name): json.loads(file.read_text()) for file in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(4))
def test_a_killed_stage_is_named_by_all_others(victim, tmp_path):
    found = told(tmp_path, 4, victim, 0, ["pipeline=4"], timeout=30)
    assert sorted(found) == [rank for rank in range(4) if rank != victim]
    for seconds, kind, text in found.values():
        assert kind == "PeerFailure"
        assert f"rank {victim}" in text
        assert seconds < 15


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(4))
def test_a_killed_stage_is_named_on_the_whole_mesh(victim, tmp_path):
    """Also by the ranks of the other pipeline, whose own stages live."""
    found = told(tmp_path, 4, victim, 0, ["data=2", "pipeline=2"], timeout=30)
    assert sorted(found) == [rank for rank in range(4) if rank != victim]
    for seconds, kind, text in found.values():
        assert (kind, text) == ("PeerFailure", f"rank {victim} died")
        assert seconds < 15


@pytest.mark.slow
def test_a_late_stage_is_named_after_the_timeout(tmp_path):
    found = told(tmp_path, 4, 2, 8, ["pipeline=4"], timeout=2)
    assert sorted(found) == [0, 1, 2, 3]
    for rank, (seconds, kind, text) in found.items():
        assert kind in ("CollectiveTimeout", "PeerFailure")
        assert "waiting for rank 2" in text
        assert seconds < 6 or rank == 2  # it takes a second to ask who is late
    assert any(kind == "CollectiveTimeout" for _, kind, _ in found.values())
