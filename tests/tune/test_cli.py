"""Command lines of tune: what is refused, and files that need no measurement."""

import os

import pytest
from jobs import mpiexec
from tables import entry

from collectives.cli.commands import main
from collectives.selection import table
from collectives.selection.layout import Layout
from collectives.selection.table import Table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--collectives", "bcats"], "--collectives: 'bcats' is none of allreduce"),
        (["--max-size", "4"], "--max-size: 4 is below the smallest size, 8 bytes"),
        (["--minutes", "0"], "argument --minutes: '0' is not a number of minutes above 0"),
        (["--check", "none.json"], "none.json: No such file or directory"),
        (["--merge", "none.json", "-o", "m.json"], "none.json: No such file or directory"),
        (["--ranks", "2,3"], "--ranks: expected numbers from 2 to 2, the ranks of this job"),
        (["-o", "nowhere/t.json"], "cannot write nowhere/t.json: there is no directory"),
        (["--without", "shm,shn"], "--without: 'shn' is none of binomial"),
    ],
)
def test_command_lines_that_cannot_be(options, message):
    done = mpiexec("openmpi", 2, "-m", "collectives", "tune", *options, timeout=60)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--json x.json", "--json has no effect without --check"),
        ("--check t.json -o m.json", "--output has no effect with --check"),
        ("--merge t.json -o m.json --json x.json", "--json has no effect with --merge"),
        ("--merge t.json -o m.json --ranks 5", "--ranks has no effect with --merge"),
        ("--merge t.json -o m.json --without shm", "--without has no effect with --merge"),
        ("--merge t.json -o m.json --minutes 7", "--minutes has no effect with --merge"),
        ("--export t.json -o m.conf --json x.json", "--json has no effect with --export"),
        ("--export t.json -o m.conf --max-size 64", "--max-size has no effect with --export"),
        ("--merge t.json m.json", "--merge needs -o FILE"),
        ("--export t.json", "--export needs -o FILE"),
        ("--export t.json -o t.json", "-o t.json: --export would replace the table by rules for Open MPI"),
        ("--check t.json --ranks 2,4 --json x.json", "--json keeps the figures of one number of ranks"),
        ("--check t.json --only AMD", "--only has no effect with --check"),
        ("--merge t.json -o m.json --only AMD", "--only has no effect with --merge"),
        ("--only AMD", "--only has no effect without --check"),
        ("--export t.json -o m.conf --only ARM", "t.json: no entry of Open MPI, or none that --only chooses"),
        ("--collectives ,", "--collectives: name at least one"),
        ("--without nope", "--without: 'nope' is none of "),
    ],
)
def test_options_without_effect_are_refused(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table.save(Table([entry()]), "t.json")
    before = (tmp_path / "t.json").read_text()
    with pytest.raises(SystemExit) as ended:
        main(["tune", *options.split()])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]
    assert (tmp_path / "t.json").read_text() == before


def test_tables_are_merged_into_one_of_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table.save(Table([entry()]), "tuning.json")
    table.save(Table([entry(layout=Layout(2, 2))]), "new.json")
    assert main(["tune", "--merge", "tuning.json", "new.json", "-o", "tuning.json"]) == 0
    assert len(table.load("tuning.json").entries) == 2


@pytest.mark.parametrize("name", ["rules.conf", "rules.json"])
def test_rules_are_written_whole_or_not_at_all(name, tmp_path, monkeypatch, capsys):
    """What cannot be moved into its place leaves the old file, and the table is as it was."""
    monkeypatch.chdir(tmp_path)
    table.save(Table([entry()]), "t.json")
    assert main(["tune", "--export", "t.json", "-o", name]) == 0
    assert capsys.readouterr().err.startswith(f"{name}: no rule: the table has no models of Open MPI's own choices")
    assert table.load("t.json").entries == [entry()]
    made = (tmp_path / name).read_text()
    assert "tune --export" in made or "rule_file_version" in made

    def fails(*paths):
        raise OSError(28, "No space left on device", name)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(SystemExit):
        main(["tune", "--export", "t.json", "-o", name])
    assert (tmp_path / name).read_text() == made


def test_a_link_to_the_table_is_not_replaced_either(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table.save(Table([entry()]), "t.json")
    os.symlink("t.json", "rules.conf")
    with pytest.raises(SystemExit):
        main(["tune", "--export", "t.json", "-o", "rules.conf"])
    assert table.load("t.json").entries == [entry()]
