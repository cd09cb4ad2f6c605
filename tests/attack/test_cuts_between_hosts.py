"""The link of a host is cut, or carries next to nothing: the ranks on both sides name each other within the timeout.

Nothing tells a machine that another one is out of reach, so the errors are timeouts. Ranks whose machines still reach
each other name the rank that is cut off, and that rank names one of them. Over a slow link a call may still end, and
the next one fails.
"""

import re
import time

import pytest
from between_hosts import COLLECTIVES, TIMEOUT, WITHIN, Job, hosts_or_skip
from jobs import LIVE_ON

FAR = 2  # the rank, and the host, that is cut off
STUCK = r"on rank {} of 3: not complete after [^\n]*; stuck in a call of MPI's"  # the watchdog, which then aborts
LATER = 30.0  # seconds that the watchdog may take
SEVERAL_WAITS = ("dup", "split", "init", "objects")  # within one call, each of which has the whole timeout
SLOW = ("allreduce", "bcast", "gather", "alltoall", "allgatherv")  # of which a call takes longer than that at 8 kbit/s


@pytest.fixture(scope="module")
def hosts():
    """Three hosts."""
    with hosts_or_skip(3) as made:
        yield made


CUTS = {"cut": lambda hosts: hosts.drop(FAR), "slow": lambda hosts: hosts.slow_down(FAR, "8kbit")}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_ranks_name_whom_they_do_not_reach(mpi, collective, hosts, tmp_path, tally):
    hold(mpi, "cut", collective, hosts, tmp_path, tally)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("collective", SLOW)
def test_ranks_name_whom_they_hardly_reach(mpi, collective, hosts, tmp_path, tally):
    hold(mpi, "slow", collective, hosts, tmp_path, tally)


def test_a_cut_during_an_all_reduce(mpi, hosts, tmp_path, tally):
    hold(mpi, "cut", "allreduce", hosts, tmp_path, tally)


def hold(mpi, how, collective, hosts, folder, tally):
    """Cut a host off from a job, and look at what the ranks say."""
    begin = None
    with Job(mpi, hosts, folder, collective, "waits", LIVE_ON[mpi]) as job:
        try:
            assert job.wait_for("ready", range(3)), job.output
            begin = time.monotonic()
            CUTS[how](hosts)
            job.wait_for("raised", range(3), TIMEOUT + LATER)
            told = job.told()
        finally:
            hosts.restore(FAR)
        job.join()
    tally.trials += 1
    tally.leftovers += job.left
    # The cut may come while MPI itself makes a communicator, which has no timeout; and Intel MPI may stay in a call
    # while messages crawl. The watchdog ends such a rank.
    inside = collective in ("dup", "split") or (mpi, how) == ("impi", "slow")
    stuck = inside and re.search(STUCK.format(r"\d"), job.output)
    for rank in range(3):
        line = told[rank]
        if "raised" not in line:
            assert stuck, f"rank {rank}: {told}\n{job.output}"
            continue
        assert line["raised"] in ("CollectiveTimeout", "PeerFailure"), line
        waits = 2 if how == "slow" or collective in SEVERAL_WAITS else 1
        assert line["time"] - begin < waits * TIMEOUT + (LATER if stuck else WITHIN), line
        # Who waits for one that gave up, in the second call or wait, tells further down whom that one waited for.
        text = line["text"] if waits > 1 else line["text"].partition("\n")[0]
        assert named(text, rank) or (stuck and "died" in text), f"{told}\n{job.output}"
    assert job.left == 0, job.output


def named(text, rank):
    """Whether an error's text names the rank that is cut off; its own names one of the others."""
    words = r"waiting for rank ([\d, ]+)|rank (\d+) gave up|rank (\d+) died|rank (\d+): does not answer"
    ranks = {int(number) for found in re.finditer(words, text) for number in re.findall(r"\d+", found[0])}
    return FAR in ranks if rank != FAR else bool(ranks & {0, 1})
