"""MPI keeps a thread for ever: the process says so all the same, whom it waits for, and ends if there is a timeout."""

import os
import re
import signal
import subprocess
import time
import uuid

import pytest
from attacks import MARK, PROGRAMS, UnnamedHang, clean_up
from jobs import LIVE_ON, start

TIMEOUT = 1  # seconds, of the collectives
LINE = 1 + next(i for i, line in enumerate((PROGRAMS / "stuck.py").read_text().splitlines()) if "does not come" in line)


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    """MPI's functions, which hang when they are told to."""
    built = tmp_path_factory.mktemp("stuck") / "stuck.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", built, PROGRAMS / "stuck.c", "-ldl"], check=True)
    return built


def begin(mpi, case, shim, *how, **env):
    """Start the program on two ranks, with the job's mark."""
    flags = LIVE_ON[mpi] if "dies" in how else []
    job = uuid.uuid4().hex
    env = {MARK: job, "LD_PRELOAD": str(shim), **env}
    return start(mpi, 2, str(PROGRAMS / "stuck.py"), case, str(shim), *how, env=env, flags=flags), job


def end(process, job, since, tally, seconds):
    """Its output, once it has ended within some seconds and left nothing."""
    tally.trials += 1
    try:
        output = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        clean_up(job, since)
        raise UnnamedHang(process.communicate()[0]) from None
    tally.leftovers += (left := clean_up(job, since))
    assert left == 0, output
    assert "it came back" not in output, output
    return output


LATE = rf"not complete after {TIMEOUT} s; waiting for rank 1"
SAID = {
    (): ("CollectiveTimeout", LATE),
    ("dies",): ("PeerFailure", f"{LATE}; rank 1 died"),
    ("ends",): ("PeerFailure", LATE),
    ("differs",): ("CollectiveMismatch", "rank 1 [^\n]*"),
}


def check_end(mpi, case, shim, tally, *how):
    since = time.time()
    process, job = begin(mpi, case, shim, *how, COLLECTIVES_TIMEOUT=str(TIMEOUT))
    output = end(process, job, since, tally, 30)
    kind, why = SAID[how]
    place = r"(allreduce|iallreduce) \([^\n]*\) on rank 0 of 2"
    assert re.search(rf"collectives: {kind}: {place}: {why}; stuck", output), output
    assert re.search(r"^  rank 0: call \d+, allreduce of 1000 float64, SUM .*stuck.py:\d+$", output, re.M), output
    assert re.search(rf'File ".*stuck.py", line {LINE} in <module>', output), output


def test_it_ends_past_its_timeout(shim, tally):
    check_end("impi", "testsome", shim, tally)


LETS_LIVE = ["openmpi", "impi"]  # MPICH's launcher ends the survivors, or drops what they say


@pytest.mark.slow
@pytest.mark.parametrize("mpi", LETS_LIVE)
def test_it_names_who_died(mpi, shim, tally):
    check_end(mpi, "testsome", shim, tally, "dies")


@pytest.mark.slow
@pytest.mark.parametrize("mpi", LETS_LIVE)
@pytest.mark.parametrize("case", ["testsome", "blocking"])
def test_it_names_who_died_long_before_its_timeout(mpi, case, shim, tally):
    since, told = time.time(), ""
    process, job = begin(mpi, case, shim, "dies", **({"COLLECTIVES_TIMEOUT": "60"} if case == "testsome" else {}))
    try:
        while "rank 1: its process" not in told and (line := process.stdout.readline()):
            told += line
    finally:
        process.kill()
        clean_up(job, since)
    tally.trials += 1
    place = r"allreduce \([^\n]*\) on rank 0 of 2: in a call of MPI's that does not come back"
    assert re.search(rf"{place}; the process of rank 1 has ended\n  rank 0: call", told), told
    assert time.time() - since < 15, told  # 2 s of which rank 1 lives


@pytest.mark.slow
@pytest.mark.parametrize("mpi", LETS_LIVE)
@pytest.mark.parametrize("how", ["ends", "differs"])
def test_it_says_what_rank_1_did(mpi, shim, tally, how):
    check_end(mpi, "isend", shim, tally, how)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", ["isend", "testsome", "request", "starting", "testing"])
def test_it_ends_past_its_timeout_wherever_it_is(mpi, case, shim, tally):
    check_end(mpi, case, shim, tally)


@pytest.mark.slow
def test_it_is_reported_without_a_timeout(mpi, shim, tally):
    """The stall is reported once, SIGUSR2 is answered with the stacks, and the process goes on."""
    since, told = time.time(), ""
    process, job = begin(mpi, "blocking", shim, COLLECTIVES_STALL="0.5")
    try:
        while not (pid := re.search(r"rank 0: (\d+)", told)):
            told += process.stdout.readline()
        time.sleep(7)
        os.kill(int(pid[1]), signal.SIGUSR2)
        time.sleep(4)
        os.kill(int(pid[1]), 0)
    finally:
        process.terminate()
        time.sleep(1)
        clean_up(job, since)
    tally.trials += 1
    told += process.communicate()[0]
    assert len(re.findall(r"allreduce \(mpi\) on rank 0 of 2: not complete after", told)) == 1, told
    assert re.search(r"does not come back; waiting for rank 1\n  rank 0: call", told), told
    assert re.search(r"\[rank 0\] rank 0 of 2 .*: call \d+, allreduce of 1000 float64.*stuck.py:\d+, waits", told)
    assert re.search(rf'File ".*stuck.py", line {LINE} in <module>', told), told
