"""What tune has measured is not lost if its table cannot be written, and no rank waits for one that failed."""

import argparse
import threading
import time
from types import SimpleNamespace

import pytest
from jobs import mpiexec
from tables import entry

from collectives import files
from collectives.selection import table
from collectives.selection.layout import Layout
from collectives.selection.table import Table
from collectives.tune import job

FULL = """
import errno, sys
from collectives.selection import table
from collectives.tune import job

def save(*args):
    raise OSError(errno.ENOSPC, "No space left on device", "t.json")

job.save = save
from collectives.cli.commands import main
sys.exit(main(["tune", "-o", sys.argv[1], "--collectives", "barrier", "--minutes", "0.02"]))
"""


def test_an_entry_is_kept_beside_a_table_that_was_broken_meanwhile(tmp_path, capsys):
    path = tmp_path / "t.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"t\.json"):
        job._keep(entry(), str(path))
    assert path.read_text() == "{"
    assert "t.json.new; see --merge" in capsys.readouterr().err
    (kept,) = table.load(f"{path}.new").entries
    assert kept == entry()
    table.save(Table([entry(machine="another")]), path)
    assert job._keep(entry(), str(path)).entries == table.load(path).entries
    assert len(table.load(path).entries) == 2


def test_what_was_kept_beside_a_table_stays(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("{")
    for layout in (Layout(1, 2), Layout(1, 4)):
        with pytest.raises(ValueError, match=r"t\.json"):
            job._keep(entry(layout=layout), str(path))
    found = [table.load(f"{path}{end}").entries for end in (".new", ".new2")]
    assert found == [[entry(layout=Layout(1, 2))], [entry(layout=Layout(1, 4))]]


def test_two_jobs_that_end_together_add_both_entries(tmp_path, monkeypatch):
    path, entries = tmp_path / "t.json", [entry(layout=Layout(nodes, 2)) for nodes in (2, 4)]

    def slow(*args):
        time.sleep(0.2)
        table.save(*args)

    monkeypatch.setattr(job, "save", slow)
    jobs = [threading.Thread(target=job._keep, args=(each, str(path))) for each in entries]
    for thread in jobs:
        thread.start()
    for thread in jobs:
        thread.join()
    assert sorted(e.layout.nodes for e in table.load(path).entries) == [2, 4]
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]


def test_the_lock_of_a_killed_job_holds_nobody_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE", 0.05)
    (tmp_path / "t.json.lock").touch()
    job._keep(entry(), str(tmp_path / "t.json"))
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]


def test_a_device_is_written_and_never_read():
    """Reading /dev/stdout, a pipe, would wait for ever."""
    args = argparse.Namespace(output="/dev/null", check=None, ranks=None)
    assert job._wrong(args, 2) is None
    assert job._keep(entry(), "/dev/null").entries == [entry()]


@pytest.mark.parametrize("check", [None, "t.json"])
def test_a_collective_without_algorithms_is_refused(check, capsys):
    """Before a table is read or anything measured. A check measured for all its minutes, and raised an error then."""
    bench = SimpleNamespace(candidates=lambda *_: ["mpi"], may_choose=lambda *_: False, comm=SimpleNamespace(rank=0))
    assert job._measure(argparse.Namespace(check=check), bench, ["barrier"], [8], 1.0) == 2
    assert "error: --without, --mpi: they leave no algorithm of barrier" in capsys.readouterr().err


def test_all_ranks_end_if_the_table_cannot_be_written(tmp_path):
    done = mpiexec("mpich", 2, "-c", FULL, str(tmp_path / "t.json"), timeout=100)
    assert done.returncode not in (0, 124), done.stdout
    assert "No space left on device" in done.stderr
