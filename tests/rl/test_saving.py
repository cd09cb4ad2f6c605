"""Checkpoints of runs that are threads."""

import pytest

from collectives.rl.saving import Checkpoints, saved
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
