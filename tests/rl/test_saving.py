"""Checkpoints of runs that are threads."""

import pytest

from collectives.rl.saving import Checkpoints, prepare, saved
from collectives.train import checkpoint, threads

HOW = {"timeout": 10}


def test_a_checkpoint_of_another_run_does_not_stand_for_this_one(tmp_path):
    def on_rank(comm):
        Checkpoints(tmp_path, {"seed": 0}, tensors=False).save(comm, 400, {"rank": comm.rank})
        with pytest.raises(OSError, match="exists"):
            Checkpoints(tmp_path, {"seed": 1}, tensors=False).save(comm, 400, {"rank": comm.rank})

    threads.run(2, on_rank, **HOW)
    assert saved(tmp_path) == [tmp_path / "step-000000000400"]


def test_a_state_that_one_rank_cannot_read(tmp_path, monkeypatch):
    """All ranks raise, so that none waits for the other."""
    read = checkpoint.Checkpoint.state

    def unreadable(self, name, rank=None, **how):
        if self._rank == 1:
            raise OSError("the file is gone")
        return read(self, name, rank, **how)

    monkeypatch.setattr(checkpoint.Checkpoint, "state", unreadable)

    def on_rank(comm):
        kept = Checkpoints(tmp_path, {}, tensors=False)
        kept.save(comm, 7, {"rank": comm.rank})
        with pytest.raises(OSError, match="the file is gone"):
            kept.load(comm)

    threads.run(2, on_rank, **HOW)


def test_what_a_killed_run_has_left_half_done_goes(tmp_path):
    """A checkpoint that was being written, and one that was being removed, when the run was killed."""

    def on_rank(comm):
        kept = Checkpoints(tmp_path, {}, tensors=False)
        for step in (200, 400):
            kept.save(comm, step, {"step": step})
        return kept.load(comm)["step"]

    prepare(tmp_path)
    assert threads.run(2, on_rank, **HOW) == [400, 400]
    for name in (".writing-step-000000000600", ".removing-step-000000000200"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-00000.safetensors").write_bytes(b"half of it")
    prepare(tmp_path)
    assert list(tmp_path.iterdir()) == saved(tmp_path) == [tmp_path / "step-000000000400"]
