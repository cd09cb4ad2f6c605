"""Programs that end on one rank, in every way there is, while the others wait for it: these say who ended, and where.

And programs that end well, in which nobody says anything.
"""

import json

import pytest
from jobs import LIVE_ON, MPIS, ROOT, mpiexec

PROGRAMS = ROOT / "tests/attack/programs"

LINES = (PROGRAMS / "endings.py").read_text().splitlines()
#: Waits of this library; those of MPI itself (Idup, requests that MPI serves) know of no ends.
WAITS = [
    "blocking", "ring", "nonblocking", "nonblocking_ring", "persistent", "persistent_ring", "objects", "python",
    "init", "dup", "split", "create", "create_group", "free", "new",
]  # fmt: skip
#: What the others say.
ENDS = {
    "return": f"rank 0 ended its program ({PROGRAMS / 'endings.py'})",
    "raise": f"rank 0 raised ZeroDivisionError at {PROGRAMS / 'endings.py'}:%raises and ended",
    "exit_0": f"rank 0 ended its program ({PROGRAMS / 'endings.py'})",
    "exit_3": f"rank 0 ended its program ({PROGRAMS / 'endings.py'})",
    "exit_in_a_thread": f"rank 0 ended its program ({PROGRAMS / 'endings.py'})",
    "finalize": f"rank 0 called MPI_Finalize at {PROGRAMS / 'endings.py'}:%ends",
    "os_exit": "rank 0 died",
    "exec": "rank 0 runs another program now",
    "abort": "rank 0 died",
}
ABORTED = 3  # the exit code of all, whether the others have raised by then or not
QUICK = [("raise", "blocking"), ("return", "ring"), ("finalize", "nonblocking_ring"), ("return", "dup"),
         ("exit_0", "new")]  # fmt: skip


def line_of(words):
    return next(i for i, line in enumerate(LINES, 1) if f"the place where it {words}" in line)


def check(mpi, how, what, tmp_path, tally):
    results = tmp_path / f"{mpi}-{how}-{what}"
    results.touch()
    flags = LIVE_ON[mpi] if how == "os_exit" else []
    env = {"RESULTS": str(results)}
    done = mpiexec(mpi, 3, str(PROGRAMS / "endings.py"), how, what, timeout=60, env=env, flags=flags)
    output = f"{mpi} {how} {what}: {done.stdout + done.stderr}"
    tally.trials += 1
    tally.hangs += done.returncode in (124, 137)
    assert done.returncode == ABORTED if how == "abort" else done.returncode not in (0, 124, 137), output
    told = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(told) == 2 or how == "abort", output
    words = ENDS[how].replace("%raises", str(line_of("raises"))).replace("%ends", str(line_of("ends")))
    for _, seconds, kind, message in told:
        assert kind == "PeerFailure", (output, told)
        assert words in message, (output, told)
        assert seconds < 5, (output, told)


@pytest.mark.quick("openmpi-raise-blocking", "impi-return-ring")
@pytest.mark.parametrize(("how", "what"), QUICK)
def test_who_waits_names_who_ended(mpi, how, what, tmp_path, tally):
    check(mpi, how, what, tmp_path, tally)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ENDS)
def test_every_end_in_every_wait(mpi, how, tmp_path, tally):
    """Each on one of the three MPIs, and on all of them each wait with some end."""
    first = MPIS.index(mpi) + list(ENDS).index(how)
    for what in WAITS[first % len(MPIS) :: len(MPIS)]:
        check(mpi, how, what, tmp_path, tally)


NORMAL = ["at_different_times", "while_others_send", "under_way", "waits_for_one_that_has_left", "needed_no_more",
          "scanned_no_more", "served_by_mpi",
          "in_a_thread", "in_a_group"]  # fmt: skip


@pytest.mark.parametrize("how", NORMAL[:2])
def test_ends_that_are_none_of_the_others_business(mpi, how, attack):
    quiet(attack(mpi, 3, "endings_normal", how))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", NORMAL[2:])
def test_more_of_them(mpi, how, attack):
    quiet(attack(mpi, 3, "endings_normal", how))


def quiet(output):
    assert output.split() == "attack: 1 trials, 0 wrong".split(), output
