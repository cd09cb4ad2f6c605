"""Selection tables, the choices that follow from them, the fit of models, and the search on simulated machines."""

import argparse
import itertools
import json
import re

import pytest
from jobs import ROOT, mpiexec
from tables import MODEL, entry

from collectives.errors import CollectiveError
from collectives.runtime import settings
from collectives.schedules import registry
from collectives.selection import model as cost_model
from collectives.selection import policy
from collectives.selection import table as tuning
from collectives.selection.layout import Layout
from collectives.selection.policy import Demand, Rules, Tuned, choose
from collectives.selection.table import Entry, Table
from collectives.tune import cli, openmpi

# --- files --------------------------------------------------------------------------------------------------------


def test_a_table_is_read_as_it_was_written(tmp_path):
    path = str(tmp_path / "table.json")
    tuning.save(Table([entry(), entry(layout=Layout(4, 2), limits=None)]), path)
    found = tuning.load(path)
    assert found.path == path
    assert found.entries == [entry(), entry(layout=Layout(4, 2), limits=None)]
    assert list(tmp_path.iterdir()) == [tmp_path / "table.json"]


def as_data(**changes):
    """A table as its JSON says it, with changes to the entry; dots separate the names on the way."""
    data = tuning._as_json(Table([entry()]))
    for way, value in changes.items():
        at = data["entries"][0]
        *names, last = way.split("__")
        for name in names:
            at = at[int(name[1:]) if re.fullmatch(r"_\d+", name) else name]
        at[last] = value
    return json.loads(json.dumps(data))


BAD = {
    "machine": (None, "table, entry 1: machine: expected a string, not nothing"),
    "nodes": (0, "table, entry 1: nodes: 0 is not at least 1"),
    "ranks_per_node": (True, "table, entry 1: ranks_per_node: expected an integer, not True"),
    "ranks": (3, "table, entry 1: ranks: 3 is not from 2 to 2"),
    "nodes__": (10**400, f"table, entry 1: nodes: {10**39} is above 9223372036854775807"),
    "rulez": ({}, "table, entry 1: unknown field 'rulez'; known: machine"),
    "rules__alreduce": ([], "table, entry 1, alreduce: unknown collective; known: allgather"),
    "rules__bcast": ([], "table, entry 1, bcast: expected a list of rows"),
    "rules__allreduce___0__algorithm": ("rign", "table, entry 1, allreduce, row 1: allreduce has no algorithm 'rign'"),
    "rules__allreduce___0__upto": ("1KB", "table, entry 1, allreduce, row 1: upto: expected a number, not '1KB'"),
    "rules__allreduce___0__upto__": (1 << 63, f"table, entry 1, allreduce, row 1: upto: {1 << 63} is above"),
    "rules__allreduce___1__segment__": (1 << 80, f"table, entry 1, allreduce, row 2: segment: {1 << 80} is above"),
    "rules__allreduce___0__segment": (64, "table, entry 1, allreduce, row 1: segment: allreduce by shm takes none"),
    "rules__allreduce___1__segment": (-1, "table, entry 1, allreduce, row 2: segment: -1 is not at least 1"),
    "rules__allreduce___1__upto": (4096, "table, entry 1, allreduce, row 2: never reached"),
    "rules__alltoallv": (
        [{"upto": 10, "algorithm": "linear"}], "table, entry 1, alltoallv, row 1: upto: the ranks of alltoallv",
    ),
    "rules__alltoall": ([7], "table, entry 1, alltoall, row 1: expected an object, not 7"),
    "node_limits__segment": (100_000, "table, entry 1, node_limits: shortest, segment: not powers of two"),
    "node_limits__private": (1 << 63, f"table, entry 1, node_limits: private: {1 << 63} is above {(1 << 63) - 1}"),
    "node_limits__copy": (1 << 20, "table, entry 1, node_limits: copy, read: not copy <= read <= 65536"),
    "models__allreduce___0__pieces": ([], "table, entry 1, models of allreduce, 1: pieces: upto must grow"),
    "models__allreduce___0__pieces___0__upto": (
        1 << 63, f"table, entry 1, models of allreduce, 1, piece 1: upto: {1 << 63} is above",
    ),
    "models__allreduce___0__pieces___1__beta": (
        -1.0, "table, entry 1, models of allreduce, 1, piece 2: beta: -1.0 is not a finite number from 0 on",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", BAD)
def test_what_is_wrong_with_a_table_is_said_with_its_place(way):
    value, message = BAD[way]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        tuning.parse(as_data(**{way.removesuffix("__"): value}))


def test_files_that_are_no_tables(tmp_path):
    path = tmp_path / "table.json"
    for text, message in [
        (b"{", "line 1, column 2: not JSON"), (b"\xff", ": not a text in UTF-8"), (b"[]", ": expected an object"),
        (b'{"format": "a list", "version": 1, "entries": []}', ": format 'a list', not 'collectives tuning table'"),
        (b'{"format": "", "version": 9, "entries": []}', ": version 9, and this library reads version 1; tune again"),
        (json.dumps({**as_data(), "entries": as_data()["entries"] * 2}).encode(), ", entry 2: the same machine, mpi"),
        (b"[" * 200_000, ": nested too deeply: not a table of tune"), (b"1" * 5000, ": Exceeds the limit"),
    ]:  # fmt: skip
        path.write_bytes(text)
        with pytest.raises(ValueError, match=f"^{re.escape(str(path))}.*{re.escape(message)}"):
            tuning.load(path)
    with pytest.raises(FileNotFoundError):
        tuning.load(tmp_path / "none.json")


def test_merging():
    newer = entry(rules={"bcast": [(None, "chain", 65536)]}, models={("bcast", "chain", 65536): MODEL}, limits=None)
    other = entry(layout=Layout(2, 2))
    merged = tuning.merge([Table([entry(), other]), Table([newer])]).entries
    assert [e.layout for e in merged] == [Layout(1, 2), Layout(2, 2)]
    assert merged[0].rules == entry().rules | newer.rules
    assert set(merged[0].models) == {("allreduce", "ring", 65536), ("bcast", "chain", 65536)}
    assert merged[0].limits == entry().limits
    assert merged[1] == other
    # What was tuned again forgets the models of before.
    again = entry(rules={"allreduce": [(None, "shm", None)]}, models={})
    assert tuning.merge([Table([entry()]), Table([again])]).entries[0].models == {}


def test_what_was_noted_of_other_collectives_stays_when_one_is_tuned_again(tmp_path):
    """The check of a table counted lengths that the models are fitted to as predictions."""
    first = {
        "date": "2026-01-02", "fitted": {"allreduce": [8, 32], "bcast": [8], "scan": []},
        "not_measured": ["allreduce (64 bytes)", "bcast (16 bytes)", "scan (any length)"],
    }  # fmt: skip
    second = {"date": "2026-01-03", "fitted": {"bcast": [64], "allreduce": []}}
    second["not_measured"] = ["bcast (8 to 32 bytes)", "allreduce (any length)"]
    newer = entry(rules={"bcast": [(None, "chain", None)]}, models={}, made=second)
    (merged,) = tuning.merge([Table([entry(made=first)]), Table([newer])]).entries
    assert merged.made == {
        "date": "2026-01-03", "fitted": {"allreduce": [8, 32], "scan": [], "bcast": [64]},
        "not_measured": ["allreduce (64 bytes)", "scan (any length)", "bcast (8 to 32 bytes)"],
    }  # fmt: skip
    assert merged.rules["allreduce"] == entry().rules["allreduce"]
    assert merged.models == entry().models
    # What people wrote there instead is passed over.
    odd = entry(made={"fitted": "by hand", "not_measured": [7]}, rules={"bcast": [(None, "mpi", None)]})
    assert tuning.merge([Table([odd]), Table([newer])]).entries[0].made["fitted"] == {"bcast": [64]}
    assert tuning.merge([Table([newer]), Table([odd])]).entries[0].made["fitted"] == {}


# --- choices ------------------------------------------------------------------------------------------------------


def test_entries_of_a_machine_and_an_mpi(tmp_path, monkeypatch):
    tuning.save(Table([entry(), entry(mpi="MPICH 5.0"), entry(machine="AMD*", mpi="*")]), tmp_path / "t.json")
    monkeypatch.setenv("COLLECTIVES_TUNING", str(tmp_path / "t.json"))
    assert len(tuning.from_environment("AMD EPYC, 2 cores", "Open MPI 5.0").entries) == 2
    assert len(tuning.from_environment("AMD EPYC, 64 cores", "Open MPI 5.0").entries) == 1
    assert len(tuning.from_environment("AMD EPYC, 2 cores").entries) == 3
    assert tuning.from_environment("ARM", "Open MPI 5.0").entries == []
    monkeypatch.setenv("COLLECTIVES_TUNING", str(tmp_path / "none.json"))
    with pytest.raises(ValueError, match="^COLLECTIVES_TUNING=.*none.json': No such file"):
        tuning.from_environment("ARM")
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^COLLECTIVES_TUNING: .*none.json: version: expected an integer"):
        tuning.from_environment("ARM")


ROWS = {
    "allreduce": [(100, "shm", None), (1000, "circulant", None), (None, "mpi", None)],
    "bcast": [(100, "mpi", None)],
}


def pick(collective, nbytes, **changes):
    return choose(Rules(tuned=Tuned(ROWS, "t.json (here)")), Demand(collective, nbytes, **changes))


def test_tuned_rows_come_before_the_defaults():
    assert [pick("allreduce", n).algorithm.name for n in (100, 101, 1001)] == ["shm", "circulant", "mpi"]
    assert str(pick("allreduce", 500)) == "circulant: tuned, t.json (here), up to 1000 bytes"
    assert pick("allreduce", 500).tuned
    assert pick("bcast", 101).why == "all ranks share a node"  # no row
    assert not pick("bcast", 101).tuned
    assert pick("scan", 1).algorithm.name == "shm"  # not in the table
    assert pick("allreduce", 500, forced="ring").why == "asked for in the call"
    forced = Rules(forced={"allreduce": "tree"}, tuned=Tuned(ROWS, "t.json"))
    chosen = choose(forced, Demand("allreduce", 500))
    assert (chosen.algorithm.name, chosen.why) == ("tree", "set by COLLECTIVES_ALGORITHM")


def test_what_never_ends_is_not_read_for_ever():
    with pytest.raises(ValueError, match="/dev/zero: longer than 64 MiB"):
        tuning.load("/dev/zero")


@pytest.mark.parametrize("nbytes", [50, 500, 5000])
def test_what_was_not_measured_is_left_to_the_defaults(nbytes):
    """Whatever rows name, calls that the algorithm cannot serve are served as if there were no table."""
    yes_or_no, uses = [True, False], ["chosen", "named", "never"]
    for changes in itertools.product([None, "two nodes"], yes_or_no, yes_or_no, yes_or_no, uses):
        asked = dict(zip(("apart", "commutes", "linear", "exact", "mpi"), changes, strict=True))
        found = pick("allreduce", nbytes, **asked)
        plain = choose(Rules(), Demand("allreduce", nbytes, **asked))
        able = registry.find("allreduce", next(n for limit, n, _ in ROWS["allreduce"] if not limit or nbytes <= limit))
        serves = {
            "shm": asked["apart"] is None,
            "circulant": asked["commutes"] and not asked["linear"] and not asked["exact"],
            "mpi": asked["mpi"] == "chosen" and not asked["linear"] and not asked["exact"],
        }[able.name]
        assert found.algorithm.name == (able.name if serves else plain.algorithm.name), asked


def test_how_far_the_node_local_engine_serves_everything():
    rules = Rules(tuned=Tuned({**ROWS, "reduce": [(9, "shm", None), (99, "shm", None), (None, "naive", None)]}, ""))
    reach = rules.local_reach()
    assert {name: to for name, to in reach.items() if to is not None} == {"allreduce": 100, "reduce": 99}
    assert set(policy.LOCAL) - set(reach) == {"bcast"}
    forced = Rules(forced={"allgather": "ring", "bcast": "shm"}).local_reach()
    assert set(policy.LOCAL) - set(forced) == {"allgather", "allgatherv"}
    assert Rules().local_reach() == dict.fromkeys([*policy.LOCAL, *registry.EXCHANGES])
    assert Rules(tuned=Tuned({"bcast": [(8, "shm", None)]}, "")).local_reach()["bcast"] is None  # by default, above


def test_no_table_gives_exchanges_to_the_mpi_library():
    """Whose blocks may arrive in another order than ours; a program that asks for it gets it."""
    tuned = Rules(tuned=Tuned({"alltoallv": [(None, "mpi", None)]}, "a table"))
    assert choose(tuned, Demand("alltoallv", 0)).algorithm.name == "mpi"
    for name in registry.EXCHANGES:
        for apart in (None, "two nodes"):
            demand = Demand(name, 0, apart=apart)
            assert choose(tuned, demand).algorithm is choose(Rules(), demand).algorithm
            assert choose(tuned, demand._replace(forced="mpi")).algorithm.name == "mpi"
        asked = Rules(forced={"alltoallv": "mpi"}, tuned=tuned.tuned)
        assert choose(asked, Demand(name, 0)).algorithm.name == "mpi"
    assert tuned.local_reach() == {name: to for name, to in Rules().local_reach().items() if name != "alltoallv"}


# --- on ranks -----------------------------------------------------------------------------------------------------


def nested(depth):
    """A list within a list, and so on."""
    return "[" * depth + "]" * depth


NO_TABLES = {
    "nested too deeply": nested(200_000),
    "is above 9223372036854775807": json.dumps(as_data(machine="*", mpi="*", rules__allreduce___0__upto=1 << 80)),
    "nodes: 1000000000000000": json.dumps(as_data(machine="*", mpi="*", nodes=10**400)),
}


@pytest.mark.parametrize("words", NO_TABLES)
def test_all_ranks_refuse_what_is_no_table(words, tmp_path):
    """Rank 0 alone reads the file; the others wait for what it says."""
    (tmp_path / "t.json").write_text(NO_TABLES[words])
    text = (
        "import collectives; from mpi4py.MPI import COMM_WORLD\n"
        "try: collectives.Communicator(COMM_WORLD)\n"
        "except ValueError as e: print(e)\n"
    )
    env = {"COLLECTIVES_TUNING": str(tmp_path / "t.json"), "COLLECTIVES_TIMEOUT": "10"}
    done = mpiexec("openmpi", 2, "-c", text, timeout=60, env=env)
    assert done.stdout.count(words) == 2, done.stdout + done.stderr


def test_what_rank_0_cannot_read_is_said_to_all(monkeypatch):
    """Whatever ends the reading, rank 0 has something to tell."""

    def ends(*_):
        raise OverflowError("planted")

    monkeypatch.setattr(tuning, "from_environment", ends)
    found = settings.agreed()
    assert isinstance(found, CollectiveError)
    assert str(found) == "rank 0 cannot read its settings: OverflowError: planted"


def test_what_is_noted_for_people_goes_to_no_other_rank(tmp_path, monkeypatch):
    """However deeply it is nested, the rest of the table can be sent."""
    (tmp_path / "t.json").write_text(json.dumps(as_data()).replace('"made": {', f'"made": {{"x": {nested(400)}, ', 1))
    monkeypatch.setenv("COLLECTIVES_TUNING", str(tmp_path / "t.json"))
    (found,) = tuning.from_environment("AMD EPYC, 2 cores").entries
    assert found.made == {}
    assert tuning.load(tmp_path / "t.json").entries[0].made["x"]


@pytest.mark.alone
def test_tune_and_use_the_table(tmp_path):
    """Seconds of tuning give a table that is read, that the ranks agree on, and that explain names."""
    path = str(tmp_path / "tuning.json")
    command = ("-m", "collectives", "tune", "-o", path, "--collectives", "bcast,alltoallv", "--max-size", "2048")
    for options in ([], ["--without", "shm", "--collectives", "allreduce"]):
        done = mpiexec("openmpi", 2, *command, "--minutes", "0.05", *options, timeout=120)
        assert done.returncode == 0, done.stderr
    assert re.search(r"^No time for allreduce \(.*\): the defaults serve these", done.stdout, re.MULTILINE) or (
        "allreduce" not in str(tuning.load(path).entries[0].made["not_measured"])
    ), done.stdout
    (made,) = tuning.load(path).entries
    assert made.layout == Layout(1, 2)
    assert set(made.rules) <= {"bcast", "alltoallv", "allreduce"}
    assert {"bcast", "alltoallv", "allreduce"} == set(made.made["fitted"]) | {"bcast", "alltoallv"}
    assert ("allreduce", "shm", None) not in made.models
    assert ("bcast", "shm", None) in made.models
    for (collective, name, _), model in made.models.items():
        work = cost_model.load(registry.find(collective, name), 2, 512)
        assert 1e-8 < model.seconds(work, 512) < 1, (collective, name)
    made.rules["bcast"] = [(256, "shm", None), (None, "mpi", None)]
    tuning.save(Table([made]), path)
    text = "import collectives; from mpi4py.MPI import *; c = collectives.Communicator(COMM_WORLD); "
    text += "print(c.explain('bcast', 512))"
    done = mpiexec("openmpi", 2, "-c", text, env={"COLLECTIVES_TUNING": path})
    assert re.fullmatch(
        rf"(mpi: tuned, {path} \(1 node x 2\), for longer messages; expected \S+ us\n){{2}}", done.stdout
    ), done.stdout + done.stderr


def rows_for_tests(nodes):
    """A row of each kind for every collective: of the MPI library's own where data only move."""
    rules = {}
    for collective in policy.DEFAULT:
        own = "linear" if collective in registry.PRIVATE_LENGTHS else registry.algorithms(collective)[0]
        longer = "ring" if "ring" in registry.algorithms(collective) else "mpi"
        rules[collective] = [(100, "shm", None), (6000, own, None), (None, longer, None)]
    for collective in registry.PRIVATE_LENGTHS:
        rules[collective] = [(None, "mpi", None)]
    return Entry("*", "*", Layout(1, nodes), rules | {"bcast": [(None, "mpi", None)], "reduce": [(None, "mpi", None)]})


@pytest.mark.in_turn
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_collective_by_the_rows_of_a_table(mpi, ranks, tmp_path):
    entry = rows_for_tests(ranks)
    tuning.save(Table([entry]), tmp_path / "t.json")
    env = {"COLLECTIVES_TUNING": str(tmp_path / "t.json")}
    done = mpiexec(mpi, ranks, "tests/selection/programs/tuned.py", timeout=120, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    for collective, runs in found["call"].items():
        for nbytes, (ran, said) in runs.items():
            known = int(nbytes) if collective not in registry.PRIVATE_LENGTHS else 0
            named = next(name for limit, name, _ in entry.rules[collective] if limit is None or known <= limit)
            assert (ran, said.split(":")[0]) == (named, named), (collective, nbytes, said)
    for form in ("start", "plan"):  # MPI's own are not chosen for calls that the program does not wait for
        assert "mpi" not in {ran for runs in found[form].values() for ran, _ in runs.values()}


PAGE = (ROOT / "docs/tuning.md").read_text()


def test_the_program_and_the_table_on_the_page(tmp_path):
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (table,) = re.findall(r"^```json\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (only,) = tuning.parse(json.loads(table)).entries
    only.machine = only.mpi = "*"
    tuning.save(Table([only]), tmp_path / "tuning.json")
    (tmp_path / "prog.py").write_text(program)
    done = mpiexec("openmpi", 2, str(tmp_path / "prog.py"), env={"COLLECTIVES_TUNING": str(tmp_path / "tuning.json")})
    told = sorted(done.stdout.splitlines())
    assert [line.split(":")[0] for line in told] == [
        f"{rank} {choice}" for rank in (0, 1) for choice in ("ring, segments of 262144 bytes", "shm", "shm")
    ], done.stdout + done.stderr


def test_the_page_names_what_open_mpi_has_too():
    (rows,) = re.findall(r"Open MPI's number \|\n\|---\|---\|\n(.*?)\n\n", PAGE, re.DOTALL)
    names = {
        "all-gather": "allgather", "all-gather (v)": "allgatherv", "all-reduce": "allreduce", "all-to-all": "alltoall",
        "all-to-all (v)": "alltoallv", "broadcast": "bcast", "reduce-scatter": "reduce_scatter",
        "reduce-scatter (block)": "reduce_scatter_block",
    }  # fmt: skip
    shown = {}
    for row in rows.splitlines():
        collective, same = row.strip("| ").split(" | ")
        shown[names.get(collective, collective)] = {k: int(v) for k, v in re.findall(r"(\w+): (\d+)", same)}
    assert shown == {kind: {k: v[0] for k, v in same.items()} for kind, same in openmpi.ALGORITHMS.items()}


@pytest.mark.parametrize("line", re.findall(r"python -m collectives tune (.*?)(?: --minutes .*)?$", PAGE, re.MULTILINE))
def test_the_commands_on_the_page(line):
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    parser.parse_args(line.split())
