"""What tune has measured is not lost if its table cannot be written, and no rank waits for one that failed."""

import pytest
from jobs import mpiexec
from tables import entry

from collectives.selection import table
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


def test_all_ranks_end_if_the_table_cannot_be_written(tmp_path):
    done = mpiexec("mpich", 2, "-c", FULL, str(tmp_path / "t.json"), timeout=100)
    assert done.returncode not in (0, 124), done.stdout
    assert "No space left on device" in done.stderr
