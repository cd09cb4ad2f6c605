"""Ranks are killed at random moments of mixed collectives: every survivor raises within seconds, and names the dead.

A stopped rank is not dead: who waits for it longer than the timeout names it as the one waited for.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
import uuid
from typing import NamedTuple

import pytest
from attacks import CRASHED, MARK, clean_up
from jobs import LIVE_ON, MPIS, start

from collectives.system import machine

PROGRAM = "tests/attack/programs/kills.py"
WITHIN = 5.0  # seconds from the kill to each survivor's error
FAR_OFF = 20  # seconds of a timeout that is not to be waited for
ATTEMPTS = 4  # to kill ranks so that a survivor can say something
KINDS = {"unequal blocks": "11", "made and freed": "12"}  # of calls in the program
KILLS = [signal.SIGKILL, signal.SIGSEGV]


#: MPICH's launcher ends the survivors all the same, often sooner than they can say anything.
ENDED_BY_LAUNCHER = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: (Killed|Segmentation fault)"


#: What the watchdog says of a rank that MPI keeps.
STUCK = (
    r"on rank (\d+) of \d: in a call of MPI's that does not come back; "
    r"the process of rank (?:{0})(?:, (?:{0}))* has ended"
)


#: The line of the watchdog when the timeout is over in a call of MPI's.
OVERDUE = r"collectives: CollectiveTimeout: ([^\n]*); stuck in a call of MPI's"


#: Intel MPI 2021 itself may end a rank by an assertion in its own collective when a peer dies.
ASSERTED = r"Abort\(1\) on node (\d+): Internal error"


class Job(NamedTuple):
    """What became of one job: the ranks that were hit, seconds from then to the errors of the others, their texts."""

    victims: list[int]
    seconds: dict[int, float]
    texts: dict[int, str]
    kinds: dict[int, str]
    running: list[int]
    output: str
    lasted: float  # seconds until the others had ended


def lines_of(results):
    return [json.loads(line) for line in results.read_text().splitlines(keepends=True) if line.endswith("\n")]


def processes(results, ranks):
    """The ranks' processes, once all have told."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = {line["rank"]: line["pid"] for line in lines_of(results) if "pid" in line}
        if len(found) == ranks:
            return found
        time.sleep(0.01)
    raise TimeoutError(results.read_text())


def running(pid):
    """Whether a process has not ended."""
    return machine.process(pid)[0] not in "ZX"


def hit(mpi, ranks, seed, how, victims, results, job, timeout=FAR_OFF, kind=()):
    """Start a job, send a signal to some ranks at a random moment, and wait for the others.

    The launcher is none of ours: Open MPI's sometimes waits for a minute after its ranks have ended.
    """
    chance = random.Random(seed)
    results.touch()
    env = {MARK: job, "COLLECTIVES_TIMEOUT": str(timeout), "RESULTS": str(results)}
    process = start(mpi, ranks, PROGRAM, str(seed), str(len(victims)), *kind, env=env, flags=LIVE_ON[mpi])
    ours = {}
    try:
        ours = processes(results, ranks)
        time.sleep(chance.random())
        for rank in victims:
            os.kill(ours[rank], how)
        begin = time.monotonic()
        others = [pid for rank, pid in ours.items() if rank not in victims]
        while any(map(running, others)) and time.monotonic() < begin + timeout + 20:
            time.sleep(0.02)
        lasted = time.monotonic() - begin
        left = [pid for pid in others if running(pid)]
        output = ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            output = process.communicate(timeout=0.5 if mpi == "openmpi" else 10)[0]
    finally:
        process.kill()
        process.wait()
        for pid in ours.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    told = {line["rank"]: line for line in lines_of(results) if "raised" in line}
    return Job(
        victims,
        {rank: line["time"] - begin for rank, line in told.items()},
        {rank: line["text"] for rank, line in told.items()},
        {rank: line["raised"] for rank, line in told.items()},
        left,
        output,
        lasted,
    )


def survived(mpi, ranks, seed, results, tally, how, number, kind):
    """Kill; every survivor names a dead rank in time, and nothing is left. Whether any survivor could raise."""
    job, since = uuid.uuid4().hex, time.time()
    victims = random.Random(seed).sample(range(ranks), number)
    found = hit(mpi, ranks, seed, how, victims, results, job, kind=kind)
    tally.hangs += len(found.running)
    left = clean_up(job, since)
    tally.leftovers += left
    survivors = sorted(set(range(ranks)) - set(victims))
    dead = "|".join(map(str, victims))
    assert found.running == [], found
    assert left == 0, found
    ended = mpi == "mpich" and found.lasted < WITHIN and re.search(ENDED_BY_LAUNCHER, found.output)
    ended = ended or mpi == "openmpi" and re.search(CRASHED, found.output)
    if ended and not found.seconds:
        return False
    silent = re.findall(STUCK.format(dead), found.output)
    if mpi == "impi":
        silent += re.findall(ASSERTED, found.output)
    told = {*found.seconds, *map(int, silent)} - set(victims)
    assert sorted(told) == survivors or ended, found
    for rank in found.seconds:
        text = found.texts[rank]
        split = f" of {ranks}: " not in text.partition("\n")[0]  # by parity, as made() in kills.py does
        names = "|".join(str(victim // 2) for victim in victims) if split else dead
        assert re.search(rf"rank ({names})\b[^\n]* (died|has ended)", text), found
        assert found.kinds[rank] == "PeerFailure", found
    assert max(found.seconds.values(), default=0) < WITHIN, found
    return bool(found.seconds)


@pytest.fixture
def check(tmp_path, tally, record_property):
    """Kill ranks of a job; it counts only if a survivor named the dead in time, for which there are some attempts."""

    def run(mpi, ranks, seed, how=signal.SIGKILL, number=1, kind=()):
        for attempt in range(ATTEMPTS):
            results = tmp_path / str(attempt)
            named = survived(mpi, ranks, seed + 1000 * attempt, results, tally, how, number, kind)
            record_property("kills", "named" if named else "not named")
            if named:
                tally.trials += 1
                return
        pytest.skip("no survivor could raise: the launcher ended all ranks first, or MPI kept them")

    return run


@pytest.mark.parametrize(("mpi", "seed"), [(mpi, seed) for seed, mpi in enumerate(MPIS)])
def test_some_kills(check, mpi, seed):
    check(mpi, 3, seed)


@pytest.mark.parametrize("mpi", ["openmpi", "impi"])
def test_a_kill_while_requests_are_tested(check, mpi):
    """A program that waits by `Test` in a loop learns of it as one that waits by `Wait`."""
    check(mpi, 2, 0, kind=["9"])


@pytest.mark.parametrize("kind", ["unequal blocks", pytest.param("made and freed", marks=pytest.mark.slow)])
def test_a_kill_in_one_kind(check, mpi, kind):
    check(mpi, 3, 50, kind=[KINDS[kind]])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(300, 324))
@pytest.mark.parametrize("kind", ["unequal blocks", "made and freed"])
def test_many_kills_in_one_kind(check, kind, seed):
    check(MPIS[seed % 3], 2 + seed // 3 % 3, seed, kind=[KINDS[kind]])


@pytest.mark.quick("300000-3")
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("nbytes", [8, 300_000, 900_000])
def test_who_runs_ahead_of_a_dead_root(attack, ranks, nbytes):
    """Into one call after another that needs nobody, until the ring is full that the dead would have read."""
    attack("impi", ranks, "full_ring", str(nbytes), flags=LIVE_ON["impi"], code=None, lines=ranks - 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 136))
def test_many_kills(check, seed):
    """On 2 to 4 ranks; every fourth time two of them die, where that leaves one."""
    ranks = 2 + seed // 3 % 3
    number = 2 if seed % 4 == 0 and ranks > 2 else 1
    check(MPIS[seed % 3], ranks, seed, KILLS[seed // 9 % 2], number)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 206))
def test_a_stopped_rank_is_waited_for(seed, tmp_path, tally):
    """It is not called dead, and those that wait for it raise in time."""
    job, since, ranks, timeout = uuid.uuid4().hex, time.time(), 3, 3
    victim = seed % ranks
    found = hit(
        MPIS[seed // 2 % 3], ranks, seed, signal.SIGSTOP, [victim], tmp_path / "results", job, timeout, ["waits"]
    )
    tally.trials += 1
    tally.leftovers += (left := clean_up(job, since))
    stuck = re.findall(OVERDUE, found.output)  # the stopped one may be within MPI's own call that makes a communicator
    # A launcher may have the stopped one go on at the end, and raise. The first one that is stuck aborts all.
    others = {0, 1, 2} - {victim} if not stuck else set(found.seconds) - {victim}
    assert set(found.seconds) >= others, found
    assert {found.kinds[rank] for rank in others} <= {"CollectiveTimeout"}, found
    texts = [found.texts[rank] for rank in others] + stuck
    assert texts, found
    assert all(re.search(rf"waiting for rank [\d, ]*{victim}\b", text) for text in texts), found
    assert not any("died" in text for text in texts), found
    assert max((found.seconds[rank] for rank in others), default=0) < timeout + WITHIN, found
    assert found.lasted < timeout + 2 * WITHIN, found
    assert left == 0
