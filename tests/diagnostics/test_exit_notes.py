"""What a process leaves when its program ends: others read it, and cannot change it."""

import mmap
import os
import subprocess
import sys

import pytest

from collectives.diagnostics.exit_notes import Note, Reader

LEAVER = """
import sys
from collectives.diagnostics import exit_notes as farewell
print(farewell.note(), flush=True)
for line in sys.stdin:
    farewell.leave("ended its program", {str(n): n for n in range(int(line))})
    print("done", flush=True)
"""
FORGED = b"2" + (19).to_bytes(8, "little") + b'["died of boredom"]'


@pytest.fixture
def leaver():
    """A process that has a note: its number, that of the file, and how to have it leave word of communicators."""
    process = subprocess.Popen([sys.executable, "-c", LEAVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    number = int(process.stdout.readline())

    def leave(communicators):
        print(communicators, file=process.stdin, flush=True)
        assert process.stdout.readline() == "done\n"

    yield process.pid, number, leave
    process.communicate()


def test_a_note_is_read_once_it_is_there(leaver):
    pid, number, leave = leaver
    reader = Reader(pid, number)
    assert reader.read() is None
    leave(300)
    assert reader.read() == Note(False, "ended its program", {str(n): n for n in range(300)})
    reader.close()


def test_a_descriptor_of_another_program_is_not_read():
    """After exec the number may be a pipe, which cannot be read at a position, or whose opening waits."""
    ends = os.pipe()
    reader = Reader(os.getpid(), ends[0])
    assert reader.read() is None
    assert not reader.runs_on()
    reader.close()
    for end in ends:
        os.close(end)


def test_a_note_that_would_be_too_long_says_how_at_least(leaver):
    pid, number, leave = leaver
    leave(100_000)
    reader = Reader(pid, number)
    assert reader.read() == Note(False, "ended its program", {})
    reader.close()


def write_at_begin(file):
    os.pwrite(file, FORGED, 0)


def map_it(file):
    mmap.mmap(file, 4096)[: len(FORGED)] = FORGED


@pytest.mark.parametrize("forge", [write_at_begin, map_it, lambda file: os.ftruncate(file, 0)])
def test_no_other_process_can_change_it(leaver, forge):
    """Though it may open it for writing, as whatever belongs to processes of its user."""
    pid, number, leave = leaver
    reader = Reader(pid, number)
    file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
    for _ in range(2):
        with pytest.raises(PermissionError):
            forge(file)
        before = reader.read()
        leave(1)
    assert before == reader.read() == Note(False, "ended its program", {"0": 0})
    os.close(file)
    reader.close()


TELLER = """
import atexit
import sys
from collectives.diagnostics import exit_notes
atexit.register(lambda: print(exit_notes.ending(), exit_notes.uncaught() is not None))
def runs_tests():
    try:
        raise ValueError("in a test")
    except ValueError as error:
        sys.last_exc = sys.last_value = error
"""


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("", "ended its program"),
        ("raise KeyError(1)", "raised KeyError"),
        ("(lambda: 1 / 0)()", "raised ZeroDivisionError"),
        ("runs_tests()", "ended its program"),
        ("sys.ps1 = '>>> '; raise KeyError(1)", "ended its program"),
    ],
)
def test_what_others_caught_did_not_end_the_program(rest, told):
    """pytest puts the exception of a test that failed where the interpreter puts an uncaught one; shells go on."""
    done = subprocess.run([sys.executable, "-c", TELLER + rest], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(told)
    assert done.stdout.endswith(f"{told.startswith('raised')}\n")
