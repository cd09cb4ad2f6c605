"""A rank on another host is killed: the others name it, by MPI's word (ULFM) or when their time is over."""

import re

import pytest
from attacks import CRASHED
from between_hosts import COLLECTIVES, TIMEOUT, WITHIN, Job, hosts_or_skip
from jobs import LIVE_ON

STUCK = r"PeerFailure: [^\n]*rank (\d+, )*{} died; stuck in a call of MPI's"  # the watchdog
HIERARCHICAL = [f"hierarchical_{name}" for name in (
    "allreduce", "iallreduce", "lasting", "bcast", "reduce", "barrier", "allgather", "reduce_scatter_block", "gather",
    "scatter", "alltoall",
)]  # fmt: skip


@pytest.fixture(scope="module")
def hosts():
    """Three hosts."""
    with hosts_or_skip(3) as made:
        yield made


@pytest.mark.sampled(5)
@pytest.mark.parametrize("collective", [*COLLECTIVES, "waited_by_mpi"])
def test_the_others_name_a_rank_killed_on_another_host(mpi, collective, hosts, tmp_path, tally):
    kill(mpi, hosts, tmp_path, collective, tally, 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("collective", HIERARCHICAL)
def test_the_others_name_a_rank_killed_in_a_hierarchical_call(mpi, collective, hosts, tmp_path, tally):
    kill(mpi, hosts, tmp_path, collective, tally, 2)


def kill(mpi, hosts, folder, collective, tally, each):
    """Kill the last of ``each`` ranks on three hosts during calls of ``collective``; all others must name it."""
    victim = 3 * each - 1
    with Job(mpi, hosts, folder, collective, "dies", LIVE_ON[mpi], each) as job:
        job.join()
    told = job.told()
    output = f"{told}\n{job.code}\n{job.output}"
    tally.trials += 1
    tally.leftovers += job.left
    died = told.pop(victim, {}).get("died")
    assert died is not None, output
    raised = {rank: line for rank, line in told.items() if "raised" in line}
    # One may be in a send to the dead process, from which these two MPIs do not return: the other's abort ends it, or
    # the watchdog does, which says what the error would have said.
    stuck = mpi != "openmpi" and re.search(STUCK.format(victim), job.output)
    stuck = stuck or collective == "split" and re.search(CRASHED, job.output)
    assert sorted(raised) == list(range(victim)) or mpi != "openmpi" and raised or stuck, output
    for line in raised.values():
        # Without word from MPI a rank whose time is over may wait for one that waits for the dead one.
        timed_out = mpi != "openmpi" and line["raised"] == "CollectiveTimeout"
        assert line["raised"] == "PeerFailure" or timed_out, line
        assert re.search(rf"rank {victim}\b[^\n]* (died|has ended)", line["text"]), line
        assert line["time"] - died < WITHIN + (0 if mpi == "openmpi" else TIMEOUT), line
    assert job.code is not None, output
    assert job.left == 0


@pytest.mark.slow
def test_a_rank_whose_program_has_ended_is_not_dead(mpi, hosts, tmp_path, tally):
    """It waits in MPI_Finalize for the one that ends last, and so do the others."""
    tally.trials += 1
    with Job(mpi, hosts, tmp_path, "", "", program="ends_apart.py") as job:
        job.join()
    assert {rank for rank, told in job.told().items() if told.get("ended")} == {0, 1, 2}, job.output
    assert (job.code, job.left) == (0, 0), job.output


def test_a_dead_rank_gets_no_answer(mpi, hosts, tmp_path, tally):
    tally.trials += 1
    with Job(mpi, hosts, tmp_path, "", "", LIVE_ON[mpi], program="asked_and_died.py") as job:
        job.join()
    told = job.told()
    assert told.get(2, {}).get("raised") in ("CollectiveTimeout", "PeerFailure"), f"{told}\n{job.code}\n{job.output}"
