"""Which of MPI's errors are taken for the death of a rank."""

import pytest
from mpi4py import MPI

from collectives.diagnostics import deaths
from collectives.errors import CollectiveError, PeerFailure
from collectives.runtime.mpi_context import duplicate


class Failing:
    """Stands for a communicator of ranks 0 and 1 of which MPI makes no duplicate. A real death within MPI_Comm_dup
    gives each of these error classes now and then."""

    rank, size = 0, 2

    def __init__(self, code):
        self.code = code

    def Dup(self, info=None):
        raise MPI.Exception(self.code)


@pytest.mark.parametrize("code", [MPI.ERR_OTHER, MPI.ERR_INTERN])
def test_an_error_that_says_nothing_is_a_death_if_mpi_knows_of_one(monkeypatch, code):
    monkeypatch.setattr(deaths, "missed", lambda comm: [1])
    with pytest.raises(PeerFailure, match="Dup on rank 0 of 2: rank 1 died"):
        duplicate(Failing(code))
    with pytest.raises(PeerFailure, match="Split on rank 0 of 2: rank 1 died"), deaths.named(Failing(code), "Split"):
        raise MPI.Exception(code)


def test_it_is_none_if_all_ranks_live(monkeypatch):
    monkeypatch.setattr(deaths, "missed", lambda comm: [])
    with pytest.raises(CollectiveError, match="no more communicators") as found:
        duplicate(Failing(MPI.ERR_OTHER))
    assert not isinstance(found.value, PeerFailure)
    with pytest.raises(MPI.Exception), deaths.named(Failing(MPI.ERR_OTHER), "Split"):
        raise MPI.Exception(MPI.ERR_OTHER)


def test_an_error_that_says_what_is_wrong_is_none(monkeypatch):
    monkeypatch.setattr(deaths, "missed", lambda comm: [1])
    with pytest.raises(MPI.Exception), deaths.named(Failing(MPI.ERR_ARG), "Split"):
        raise MPI.Exception(MPI.ERR_ARG)
