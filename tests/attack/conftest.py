"""Hostile use: programs that no careful user would write, on all three MPIs. `make attack` prints a tally of them.

A program in `programs/` runs on all ranks. It prints, on any ranks, lines of the form ``attack: 120 trials, 0 wrong``,
which are added up. Where every rank prints one, a test demands as many. A program that does not end in time is an
unnamed hang. What is left is a process of the job that still runs, or a name of the job's in /dev/shm.
"""

import collections
import dataclasses
import re
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from attacks import MARK, PROGRAMS, UnnamedHang, clean_up
from jobs import ROOT, mpiexec

CRASH = "Fatal Python error"  # what Python's faulthandler prints of a signal that ends the process
TRIALS = re.compile(r"attack: (\d+) trials, (\d+) wrong")


@dataclasses.dataclass
class Tally:
    """What all tests of the folder have found."""

    trials: int = 0
    wrong: int = 0
    hangs: int = 0
    leftovers: int = 0

    def __str__(self) -> str:
        return (
            f"attack: {self.trials} trials, {self.wrong} wrong, {self.hangs} unnamed hangs, {self.leftovers} leftovers"
        )

    def add(self, trials: int, wrong: int, hangs: int, leftovers: int) -> None:
        """Count what another tally has."""
        self.trials += trials
        self.wrong += wrong
        self.hangs += hangs
        self.leftovers += leftovers


TALLY = pytest.StashKey[Tally]()  # of a test
TOTAL = Tally()  # of all tests of this run, those of other workers too
NAMED: collections.Counter[str] = collections.Counter()  # jobs with kills: "named", or "not named" by any survivor


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("attack")
            item.add_marker("in_turn")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure counts as a hang or as a wrong result; the last report on a test carries its tally to the summary."""
    report = (yield).get_result()
    if not item.get_closest_marker("attack"):
        return
    tally = item.stash.setdefault(TALLY, Tally())
    if report.failed:
        hung = isinstance(call.excinfo.value, UnnamedHang)
        tally.add(0, not hung, hung, 0)
    if report.when == "teardown":
        report.user_properties.append(("attack", dataclasses.astuple(tally)))


def pytest_runtest_logreport(report):
    for name, counts in report.user_properties:
        if name == "attack" and report.when == "teardown":
            TOTAL.add(*counts)
        if name == "kills" and report.when == "teardown":
            NAMED[counts] += 1


def pytest_terminal_summary(terminalreporter):
    if NAMED:
        named, all_ = NAMED["named"], NAMED.total()
        terminalreporter.write_line(f"kills: in {named} of {all_} jobs a survivor named the dead within 5 s")
    if TOTAL.trials:
        terminalreporter.write_line(str(TOTAL))


@pytest.fixture
def tally(request) -> Tally:
    """Where a test that starts no program by :func:`attack` counts its trials."""
    return request.node.stash.setdefault(TALLY, Tally())


@pytest.fixture
def attack(tally) -> Callable[..., str]:
    """Run a program of `programs/` on ranks of an MPI; its output, once it ended well and left nothing.

    ``lines``: how many lines with trials there must be. ``code=None``: MPI_Abort may end it, but not a crash.
    """

    def run(
        mpi: str, ranks: int, program: str, *arguments: str, timeout: float = 120, env: dict[str, str] | None = None,
        flags: Sequence[str] = (), code: int | None = 0, lines: int = 1,
    ) -> str:  # fmt: skip
        job, since = uuid.uuid4().hex, time.time()
        more = env or {}
        paths = str(ROOT), str(ROOT / "tests/support"), *filter(None, [more.get("PYTHONPATH")])
        variables = {**more, "PYTHONPATH": ":".join(paths), MARK: job}
        command = (str(PROGRAMS / f"{program}.py"), *arguments)
        done = mpiexec(mpi, ranks, *command, timeout=timeout, env=variables, flags=flags)
        output = done.stdout + done.stderr[-20_000:]
        counts = [tuple(map(int, found)) for found in TRIALS.findall(done.stdout)]
        tally.trials += sum(trials for trials, _ in counts)
        left = clean_up(job, since)
        tally.leftovers += left
        if done.returncode in (124, 137):
            raise UnnamedHang(output)
        assert left == 0, output
        assert code is None or done.returncode == code, output
        crashed = code is None and CRASH in done.stdout + done.stderr
        assert not crashed, output
        assert len(counts) >= lines, f"{len(counts)} of {lines} lines with trials\n{output}"
        assert not any(wrong for _, wrong in counts), output
        return output

    return run
