"""The backend for torch.distributed over two hosts, with MPICH: calls, training, and ranks that are missing.

Hosts are network namespaces, which need root: see tests/support/faults.py.
"""

import json

import pytest
from faults import Hosts
from jobs import mpiexec, torch_for
from torch_jobs import BACKEND, FAILING, PASSED, place

LOSSES = "tests/torch/programs/losses.py"


def on_hosts(folder, *command, each=2):
    """Run a program on some ranks of each of 2 hosts."""
    with Hosts(2) as hosts:
        flags, env = hosts.flags("mpich", folder, each), torch_for("mpich")
        return mpiexec("mpich", 2 * each, *command, timeout=100, flags=flags, env=env)


@pytest.mark.parametrize("each", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_call(each, tmp_path):
    done = on_hosts(tmp_path, BACKEND, each=each)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["mpi4py is there", PASSED]


@pytest.mark.slow
def test_training(tmp_path):
    """The losses are those of as many ranks on one node."""
    runs = [on_hosts(tmp_path, LOSSES), mpiexec("mpich", 4, LOSSES, timeout=100, env=torch_for("mpich"))]
    assert [done.returncode for done in runs] == [0, 0], [done.stderr for done in runs]
    apart, together = (json.loads(done.stdout) for done in runs)
    assert apart["hosts"] == [0, 0, 2, 2]
    assert together["hosts"] == [0, 0, 0, 0]
    assert len(apart["losses"]) == 3
    for what, losses in apart["losses"].items():
        assert losses == pytest.approx(together["losses"][what], rel=1e-4), what
        assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_missing_rank_is_named(tmp_path):
    """By those of its host, which know where it is, and by those of the other, which hear what the first say."""
    results = tmp_path / "timeout"
    on_hosts(tmp_path, str(FAILING), "timeout", str(results))
    found = {rank: told for rank, *told in map(json.loads, results.read_text().splitlines())}
    assert sorted(found) == [0, 1, 2]
    for seconds, kind, words in found.values():
        assert kind == "CollectiveTimeout"
        assert seconds < 10
        assert "\n  rank 3: in no collective" in words or "\n  rank 3: does not answer" in words
    assert "; waiting for rank 3\n" in found[2][2]
    assert f"rank 3: in no collective of this communicator, after 1 calls, at {place('where it is')}" in found[2][2]
