"""Benchmarks as scripts see them: output that parsers of the OSU Micro-Benchmarks read, options, exit codes, JSON.

What needs all ranks is in tests/mpi/test_bench.py.
"""

import argparse
import ast
import json
import re

import numpy as np
import pytest
from jobs import ROOT, mpiexec
from tables import entry

from collectives.bench import curves, main, options, table
from collectives.bench.cli import add_arguments
from collectives.bench.operands import difference, fold, operand, ulps
from collectives.bench.programs import COLLECTIVES, NAMES, find
from collectives.bench.results import bandwidths
from collectives.launch.usage import UsageError
from collectives.selection.table import Table, save

SCRIPTS = ROOT / "benchmarks/osu"


def arguments(name, *words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([name, *words])


def sizes(*words, name="allreduce"):
    return options.message_sizes(find(name), arguments(name, *words))


# --- output -------------------------------------------------------------------------------------------------------


def test_the_text_of_the_contract():
    program, args = find("allreduce"), arguments("allreduce")
    shown = table.columns(program, args)
    made = table.head(program, "mpi_char", [], shown).splitlines()
    made += [table.row(program, n, {"avg": us}, shown) for n, us in ((1, 28.46), (2, 64.22), (1 << 31, 1e6))]
    assert made == [
        "",
        "# OSU-format collectives MPI Allreduce Latency Test v0.1.0",
        "# Datatype: MPI_CHAR.",
        "# Size       Avg Latency(us)",
        "1                      28.46",
        "2                      64.22",
        "2147483648        1000000.00",
    ]


def test_all_columns_in_order():
    program, args = find("bcast"), arguments("bcast", "-f", "-c", "-z", "50,99.9", "--bw")
    shown = table.columns(program, args)
    widths = [10, 18, 18, 18, 12, 18, 18, 18, 18, 18]
    titles = ["# Size", "Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations", "Validation",
              "P50 Tail Lat(us)", "P99.9 Tail Lat(us)", "algbw(GB/s)", "busbw(GB/s)"]  # fmt: skip
    assert table.head(program, "mpi_int", [], shown).splitlines()[-1] == "".join(
        t.rjust(w) if i else t.ljust(w) for i, (t, w) in enumerate(zip(titles, widths, strict=True))
    )
    values = {"avg": 1, "min": 0.5, "max": 2, "iterations": 1000, "validation": "Pass", "p50": 1, "p99.9": 9.999,
              "algbw": 12.5, "busbw": 25}  # fmt: skip
    cells = ["64", "1.00", "0.50", "2.00", "1000", "Pass", "1.00", "10.00", "12.50", "25.00"]
    assert table.row(program, 64, values, shown) == "".join(
        c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
    )


def test_non_blocking_columns():
    program = find("ibcast")
    shown = table.columns(program, arguments("ibcast"))
    last = table.head(program, "mpi_char", [], shown).splitlines()[-1]
    assert last == "# Size".ljust(10) + "".join(
        t.rjust(18) for t in ("Overall(us)", "Compute(us)", "Pure Comm.(us)", "Overlap(%)")
    )


def test_a_barrier_has_no_size():
    program = find("barrier")
    shown = table.columns(program, arguments("barrier"))
    assert table.head(program, "mpi_char", [], shown).splitlines()[-1] == "# Avg Latency(us)"
    assert table.row(program, 0, {"avg": 1.5}, shown) == "1.50".rjust(17)


def test_parsers_read_it(tmp_path):
    """Ramble's patterns and ReFrame's, as they are."""
    done = mpiexec("openmpi", 2, "benchmarks/osu_allreduce.py", "-m", "16", "-i", "20", "--json", str(tmp_path / "a"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("\n# OSU")
    assert done.stdout.isascii()
    assert re.search(r"# OSU.*Test (?P<ver>v[0-9\.]+)", done.stdout)["ver"] == "v0.1.0"
    assert re.search(r"#\s+Size\s+Avg Latency\(us\)\s*$", done.stdout, re.MULTILINE)
    rows = re.findall(r"^(?P<size>[0-9]+)\s+(?P<latency>[0-9]+\.[0-9]+)\s*$", done.stdout, re.MULTILINE)
    assert [int(n) for n, _ in rows] == [1, 2, 4, 8, 16]
    assert float(re.search(r"^8\s+(\S+)", done.stdout, re.MULTILINE)[1]) == float(rows[3][1]) > 0
    comments = [line for line in done.stdout.splitlines() if line and not re.match(r"\d", line)]
    assert all(line.startswith("#") for line in comments)
    content = json.loads((tmp_path / "a").read_text())
    assert [f"{record['us']['avg']:.2f}" for record in content["results"]] == [us for _, us in rows]
    assert content["machine"]["cores"] >= 1
    assert content["software"]["library"].startswith("Open MPI")
    assert {record["ran"] for record in content["results"]} == {"shm"}
    for record in content["results"]:
        assert record["us"]["min"] <= record["us"]["avg"] <= record["us"]["max"]
        assert record["us"]["p50"] <= record["us"]["p90"] <= record["us"]["p99"]


def test_the_algorithm_is_that_of_the_measured_calls(tmp_path):
    """Not that of a barrier after them; and with --algorithm shm a table that has another one does not matter."""
    rules = {"allreduce": [(64, "shm", None), (None, "ring", None)]}
    save(Table([entry(machine="*", mpi="*", rules=rules)]), tmp_path / "table")
    env = {"COLLECTIVES_TUNING": str(tmp_path / "table")}
    words = ["bench", "allreduce", "-m", "64:128", "-i", "3", "-x", "1", "--json", str(tmp_path / "a")]
    for more, expected in ([], ["shm", "ring"]), (["--algorithm", "shm"], ["shm", "shm"]):
        done = mpiexec("mpich", 2, "-m", "collectives", *words, *more, env=env)
        assert done.returncode == 0, done.stderr
        assert ("# Algorithms: shm up to 64, ring up to 128." in done.stdout) == (not more)
        assert [record["ran"] for record in json.loads((tmp_path / "a").read_text())["results"]] == expected


def test_a_bandwidth_of_no_bytes_is_not_drawn(tmp_path):
    words = ("bw", "-m", "0:4", "-i", "2", "-x", "1", "-W", "2", "--json", str(tmp_path / "a"))
    done = mpiexec("mpich", 2, "-m", "collectives", "bench", *words, "-G", "tty")
    assert done.returncode == 0, done.stdout + done.stderr
    (curve,) = curves.curves(curves.read(tmp_path / "a"))
    assert list(curve.points) == [1, 2, 4]


# --- exit codes and options ---------------------------------------------------------------------------------------


def test_too_few_ranks(capsys):
    """This process is one rank."""
    assert main("allreduce", []) == 1
    assert capsys.readouterr().err == "This test requires at least two processes\n"
    assert main("latency", []) == 1
    assert capsys.readouterr().err == "This test requires exactly two processes\n"


@pytest.mark.parametrize(("words", "why"), [
    (["-T", "mpi_short"], "begins none of"), (["-m", "8:4"], "the least is more than the most"),
    (["-m", "2MiB:"], "the least, 2097152 bytes, is above the most, 1048576"),
    (["-m", "1:2:3"], "MIN"), (["-i", "0"], "at least 1"), (["-x", "-1"], "at least 0"), (["-z", "101"], "percentiles"),
    (["-G", "gif"], "tty, png, pdf"), (["-d", "cuda"], "host memory only"), (["-k", "2"], "no use"),
    (["-t", "3"], "no use"), (["--algorithm", "binomial"], "no algorithm 'binomial'"), (["-W", "4"], "no use"),
    (["--algorithm", "mpi", "--heap"], "neither"), (["--nccl", "-f"], "no use"),
    (["-N", "cart:33:1"], "more than 32 dimensions"),
])  # fmt: skip
def test_wrong_options(words, why, capsys):
    with pytest.raises(SystemExit) as ended:
        main("allreduce", words)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_options_without_use_are_refused_for_every_program():
    for name in NAMES:
        program = find(name)
        options.check(program, arguments(name))
        for words in (["-t", "1"], ["-W", "8"], ["-k", "rotate"]):
            needed = {"-t": program.form == "start", "-W": program.streams, "-k": program.rooted}[words[0]]
            if needed:
                options.check(program, arguments(name, *words))
            else:
                with pytest.raises(UsageError, match="no use"):
                    options.check(program, arguments(name, *words))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(("init", words) for words in (["-i", "5"], ["-x", "5"], ["-c"], ["-f"], ["--off-cache"], ["-G", "tty"],
                                        ["-T", "all"])),
        ("barrier", ["-T", "all"]), ("barrier", ["--off-cache"]), ("allreduce", ["--nccl", "-f"]),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(name, words):
    with pytest.raises(UsageError, match="no use"):
        options.check(find(name), arguments(name, *words))


@pytest.mark.parametrize("words", [["allreduce", "-m", "64:64"], ["barrier"], ["bcast", "-m", "0:1"]])
def test_a_picture_of_one_size_is_refused(words):
    """Before anything is measured; as text it can be shown."""
    program = find(words[0])
    for kind in ("png", "pdf", "tty,png"):
        with pytest.raises(UsageError, match="--graph p.*: a picture needs messages of two sizes or more"):
            options.check(program, arguments(*words, "-G", kind))
    options.check(program, arguments(*words, "-G", "tty"))
    options.check(find("bcast"), arguments("bcast", "-m", "0:2", "-G", "png"))


def test_a_picture_of_which_one_size_is_left_is_a_note(tmp_path):
    """The file of results is written, and the exit code is that of the measurements."""
    words = ("-m", "4:8", "-T", "mpi_double", "-i", "1", "-x", "0", "--json", str(tmp_path / "a.json"), "-G", "png")
    code = "import os, sys; from collectives.cli.commands import main; os.chdir(sys.argv.pop(1)); sys.exit(main())"
    done = mpiexec("openmpi", 2, "-c", code, str(tmp_path), "bench", "bcast", *words)
    assert done.returncode == 0, done.stderr
    assert "# osu_bcast.png is not drawn: nothing to draw" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


NOWHERE = ["--json", "/no/such/folder/a.json"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["allreduce", *NOWHERE], "cannot write /no/such"), (["init", *NOWHERE], "cannot write /no/such"),
        (["allreduce", "-G", "png"], "drawing needs matplotlib"),  # which .venvs/mpich does not have
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(words, why):
    """By rank 0, which writes it: other hosts may lack the folder."""
    done = mpiexec("mpich", 2, "-m", "collectives", "bench", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count(why) == 1
    assert "Latency" not in done.stdout
    assert "MPI_Init" not in done.stdout


def test_help_is_plain_and_comes_once(capsys):
    with pytest.raises(SystemExit) as ended:
        main("allreduce", ["-h"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.isascii()
    for option in (
        "-f, --full", "-m, --message-size", "-M, --mem-limit", "-u, --validation-warmup", "-l, --in-place",
        "-z, --tail-lat", "-G, --graph", "-d, --accelerator", "-k, --root-rank", "--algorithm", "--off-cache",
        "--ranks", "--json", "--bw",
    ):  # fmt: skip
        assert all(word in shown for word in option.split(", "))


def test_defaults():
    program, args = find("allreduce"), arguments("allreduce")
    assert (args.mem_limit, args.validation_warmup, args.type) == (512 << 20, 5, ["mpi_char"])
    assert sizes() == [1 << i for i in range(21)]
    assert sizes(name="latency")[-1] == 4 << 20
    assert sizes(name="barrier") == [0]
    assert [options.iterations(program, args, n) for n in (8192, 8193)] == [(1000, 100), (100, 10)]
    given = arguments("allreduce", "-i", "7", "-x", "0")
    assert [options.iterations(program, given, n) for n in (8, 1 << 20)] == [(7, 0), (7, 0)]


def test_the_help_has_the_numbers_of_calls_of_all_programs(capsys):
    with pytest.raises(SystemExit):
        main("allreduce", ["-h"])
    shown = " ".join(capsys.readouterr().out.split())
    programs = {"default ": "allreduce", "latency and multi_lat ": "multi_lat", "bw, bibw and mbw_mr ": "mbw_mr"}
    for head, name in programs.items():
        short, long = (options.iterations(find(name), arguments(name), n) for n in (8192, 8193))
        for few, many in zip(short, long, strict=True):
            assert f"{head}{few}, above 8192 B {many}" in shown


def test_ranges_and_types():
    assert sizes("-m", "32") == [1, 2, 4, 8, 16, 32]
    assert sizes("-m", "3:13") == [3, 6, 12]
    assert sizes("-m", "0:2") == [0, 1, 2]
    assert sizes("-m", "512Ki:") == [1 << 19, 1 << 20]
    assert sizes("-m", ":4") == [1, 2, 4]
    assert sizes("-m", f"{1 << 31}:{1 << 33}") == [1 << 31, 1 << 32, 1 << 33]
    assert arguments("bcast", "-T", "all").type == ["mpi_char", "mpi_int", "mpi_float"]
    assert arguments("bcast", "-T", "MPI_F").type == ["mpi_float"]
    assert arguments("bcast", "-T", "mpi_").type == ["mpi_char"]


# --- programs -----------------------------------------------------------------------------------------------------


def test_there_is_a_script_for_every_program():
    from collectives.arguments.calls import COLLECTIVES as calls

    assert set(COLLECTIVES) == set(calls)
    assert {p.collective for name in NAMES if (p := find(name)).rooted} == {c.name for c in calls.values() if c.rooted}
    scripts = {path.stem.removeprefix("osu_"): path for path in SCRIPTS.glob("osu_*.py")}
    assert set(scripts) == set(NAMES)
    for name, path in scripts.items():
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree).startswith(find(name).title)
        assert ast.unparse(tree.body[-1]) == f"sys.exit(main('{name}'))"


def test_starting_mpi_is_timed():
    done = mpiexec("openmpi", 2, "benchmarks/osu/osu_init.py", "--title", "osu")
    assert done.returncode == 0, done.stderr
    number = r"\d+\.\d\d ms"
    line = rf"min: ({number}), max: ({number}), avg: ({number})"
    shown = re.fullmatch(
        rf"\n# OSU MPI Init Test v[0-9.]+\n# By .*\nnprocs: 2, {line}\n# collectives.Communicator\(.*?: {line}\n",
        done.stdout,
    )
    assert shown, done.stdout
    low, high, mean = (float(text.split()[0]) for text in shown.groups()[:3])
    assert 0 < low <= mean <= high


def test_letters_say_where_the_buffers_are(capsys):
    for words in (["-m", "8:8", "H", "H"], ["H", "H"]):
        assert arguments("bw", *words[-2:]).buffers == ["H", "H"]
    for words, why in ((["D", "D"], "host memory only"), (["H"], "two letters"), (["X", "H"], "neither H nor D")):
        with pytest.raises(SystemExit) as ended:
            main("bw", words)
        assert ended.value.code == 2
        assert why in capsys.readouterr().err


def test_bandwidths_are_those_of_nccl_tests():
    assert bandwidths("allreduce", 4, 8 * 10**9, 2.0) == (4.0, 6.0)
    for name in ("allgather", "reduce_scatter", "alltoall"):
        assert bandwidths(name, 4, 8 * 10**9, 2.0) == (4.0, 3.0)
    for name in ("bcast", "reduce"):
        assert bandwidths(name, 4, 8 * 10**9, 2.0) == (4.0, 4.0)


# --- data ---------------------------------------------------------------------------------------------------------

TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint64", "float16", "bfloat16", "float32", "float64")


def dtype_of(name):
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 64, 300])
@pytest.mark.parametrize("name", TYPES)
def test_sums_are_exact_in_any_order(name, size):
    dtype = dtype_of(name)
    each = [operand(dtype, rank, size, 0, 400) for rank in range(size)]
    forward, backward = fold(np.add, each), fold(np.add, each[::-1])
    assert forward.tobytes() == backward.tobytes()
    exact = sum(x.astype(object) for x in each) if dtype.kind in "iu" else sum(x.astype(np.float64) for x in each)
    assert (forward.astype(exact.dtype) == exact).all()
    assert np.array_equal(np.concatenate([operand(dtype, 0, size, 0, 7), operand(dtype, 0, size, 7, 400)]), each[0])


@pytest.mark.parametrize("name", TYPES)
def test_ranks_differ(name):
    """At every element up to 8 ranks, at some element each of 40."""
    dtype = dtype_of(name)
    eight = np.array([operand(dtype, rank, 8, 0, 400) for rank in range(8)])
    assert all(len(set(column.tolist())) == 8 for column in eight.T)
    assert len({operand(dtype, rank, 40, 0, 400).tobytes() for rank in range(40)}) == 40
    assert operand(dtype, 0, 8, 0, 400).tobytes() != operand(dtype, 0, 8, 0, 400, seed=1).tobytes()


def test_distances_in_ulps():
    one = np.array([1, -1, 0, 1e30, 5e-324, -5e-324])
    assert ulps(one, one).tolist() == [0] * 6
    assert ulps(one, np.nextafter(one, np.inf)).tolist() == [1] * 6
    assert ulps(one[4:5], one[5:6]).tolist() == [2]
    assert difference(np.array([0.0]), np.array([-0.0])) is None
    for name in ("float16", "bfloat16", "float32", "float64"):
        values = np.array([3, 5, 7], dtype_of(name))
        wrong = values.copy()
        wrong.view(f"u{values.itemsize}")[1] += 1
        assert difference(values.copy(), values) is None
        found = difference(wrong, values)
        assert found[0] == 1
        assert found[1].endswith("1 ulp away")
    assert difference(np.array([1, 2, 4]), np.array([1, 2, 3])) == (2, "4, expected 3")
    assert difference(np.array([np.nan]), np.array([1.0]))[0] == 0


# --- long messages ------------------------------------------------------------------------------------------------


def test_memory_is_respected():
    words = ("-m", "1:1MiB", "-M", "64KiB", "-i", "1", "-x", "0")
    done = mpiexec("openmpi", 2, "-m", "collectives", "bench", "alltoall", *words)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\d+) ", done.stdout, re.MULTILINE)[-1] == "8192"
    assert "# Left out: 16384 bytes and more, whose buffers need more than --mem-limit 65536." in done.stdout


@pytest.mark.slow
def test_beyond_2_to_the_31_elements():
    nbytes = (1 << 31) + 5
    words = ("-m", f"{nbytes}:{nbytes}", "-M", "3GiB", "-i", "1", "-x", "0", "-u", "0", "-c")
    done = mpiexec("openmpi", 2, "-m", "collectives", "bench", "bcast", *words)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^{nbytes}\s+\S+\s+Pass$", done.stdout, re.MULTILINE)
