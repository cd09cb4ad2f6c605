"""A rank without memory for a timeline: all ranks raise the same error, and none waits for it."""

import functools
from types import SimpleNamespace

import pytest
from jobs import mpiexec
from mpi4py import MPI

from collectives.core import _core
from collectives.trace import recording


class Ranks(SimpleNamespace):
    """The parent of a timeline on rank 1 of 3; of the others, ``lowest`` is the first without memory."""

    rank, size = 1, 3
    lowest = 3

    def bcast(self, value):
        return value

    def allgather(self, value):
        return [value] * self.size

    def allreduce(self, value, op):
        assert op == MPI.MIN
        return min(value, self.lowest)

    def Dup(self):
        pytest.fail("the ranks without memory do not come")


def without_memory(most, foreign):
    raise MemoryError("planted")


@pytest.mark.parametrize(
    ("mine", "lowest", "named"), [(without_memory, 3, 1), (_core.Recorder, 2, 2), (without_memory, 0, 0)]
)
@pytest.mark.parametrize("anybody", [False, True, None])
def test_all_ranks_raise_it(monkeypatch, tmp_path, mine, lowest, named, anybody):
    """In a block (None), and in a communicator made while all begin together, or while some record already."""
    monkeypatch.setattr(recording._core, "Recorder", mine)
    ranks, path = Ranks(lowest=lowest), str(tmp_path / "t.json")
    if anybody is None:
        begin = recording.Trace(ranks, path, 10, "c").__enter__
    else:
        context = SimpleNamespace(internal=ranks, identity="c")
        begin = functools.partial(recording.join, context, path, 10, anybody)
    with pytest.raises(MemoryError, match=f"rank {named} has no memory for a timeline of 10 calls and spans"):
        begin()
    assert not recording.is_recording()


JOB = """
import sys
import numpy as np
from mpi4py import MPI
import collectives
from collectives.core import _core

comm = collectives.Communicator(MPI.COMM_WORLD)
usual = _core.Recorder
if comm.rank == 1:
    def planted(most, foreign):
        raise MemoryError("planted")
    _core.Recorder = planted
try:
    with comm.trace(sys.argv[1]):
        raise AssertionError("it began")
except MemoryError as e:
    assert "rank 1 has no memory" in str(e), e
_core.Recorder = usual
with comm.trace(sys.argv[1]):
    comm.Allreduce(np.ones(1), np.empty(1))
print("went on", flush=True)
"""


def test_the_program_goes_on(mpi, tmp_path):
    path = tmp_path / "t.json"
    done = mpiexec(mpi, 2, "-c", JOB, str(path), timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("went on") == 2
    assert path.exists()
