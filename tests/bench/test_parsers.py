"""Scripts that were written for the OSU Micro-Benchmarks read the output of our programs.

The patterns are those of two programs, as they are: Ramble's application osu-micro-benchmarks
(GoogleCloudPlatform/ramble, 2025), and ReFrame's checks (hpctestlib, and the tutorial in the package reframe-hpc).
"""

import argparse
import re

import pytest
from jobs import mpiexec

from collectives.bench import table
from collectives.bench.cli import add_arguments
from collectives.bench.options import check
from collectives.bench.programs import NAMES, find

TITLE = re.compile(r"# OSU.*Test (?P<ver>v[0-9\.]+)")
DATATYPE = re.compile(r"# Datatype: (?P<type>\S+)\.")
INIT = re.compile(
    r"nprocs: (?P<nprocs>[0-9]+), min: (?P<min>[0-9\.]+) ms, max: (?P<max>[0-9\.]+) ms, avg: (?P<avg>[0-9\.]+) ms"
)
NUMBER, SIZE = r"\s+[0-9\.]+", r"\s*(?P<msg_size>[0-9]+)"
LAT, BW = (r"\s+".join(rf"P{p} Tail {what}" for p in (50, 90, 99)) for what in (r"Lat\(us\)", r"BW\(MB/s\)"))
#: Ramble's patterns of a table's head, and of its rows: with -z, its default option, and without.
HEADS = {
    "latency": (r"#\s+Size\s+Avg Latency\(us\)\s*$", SIZE + NUMBER + r"\s*$"),
    "latency -z": (rf"# Size\s+Avg Latency\(us\)\s+{LAT}$", SIZE + 4 * NUMBER + r"\s*$"),
    "overlap": (r"#\s+Size\s+Overall\(us\)\s+Compute\(us\)\s+Pure Comm\.\(us\)\s+Overlap\(%\)\s*$", None),
    "overlap -z": (
        r"# Size\s+Overall\(us\)\s+Compute\(us\)\s+Pure Comm\.\(us\)\s+Overlap\(%\)"
        r"  P50 Tail Lat\(us\)  P90 Tail Lat\(us\)  P99 Tail Lat\(us\)\s*$",
        None,
    ),
    "bandwidth": (r"# Size\s+Bandwidth \(MB/s\)\s*$", SIZE + NUMBER + r"\s*$"),
    "bandwidth -z": (
        r"# Size\s+Bandwidth \(MB/s\) P50 Tail BW\(MB/s\) P90 Tail BW\(MB/s\) P99 Tail BW\(MB/s\)\s*$",
        SIZE + 4 * NUMBER + r"\s*$",
    ),
    "rate": (r"# Size\s+MB/s\s+Messages/s\s*$", SIZE + 2 * NUMBER + r"\s*$"),
    "rate -z": (
        r"# Size\s+MB/s\s+Messages/s P50 Tail BW\(MB/s\) P90 Tail BW\(MB/s\) P99 Tail BW\(MB/s\)\s*$",
        SIZE + 5 * NUMBER + r"\s*$",
    ),
    "barrier": (r"# Avg Latency\(us\)\s*$", r"\s*[0-9\.]+\s*$"),
    "barrier -z": (rf"# Avg Latency\(us\)\s+{LAT}\s*$", r"\s*[0-9\.]+" + 3 * NUMBER + r"\s*$"),
}


def kind(name):
    """Which of the tables a program prints."""
    program = find(name)
    if program.form == "start":
        return "overlap"
    if program.form == "mbw_mr":
        return "rate"
    return "bandwidth" if program.streams else "latency" if program.sized else "barrier"


@pytest.mark.parametrize("option", [[], ["-z"]], ids=str)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("init", "ibarrier")])
def test_ramble_reads_every_table(name, option):
    """The head is of the kind that the program has, and of no other; the rows match."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    program, args = find(name), parser.parse_args([name, *option])
    check(program, args)
    shown = table.columns(program, args)
    lines = table.head(program, "mpi_char", [], shown).splitlines()
    assert any(TITLE.match(line) for line in lines)
    assert not program.sized or any(DATATYPE.match(line) for line in lines)
    wanted = " ".join([kind(name), *option])
    assert [key for key, (head, _) in HEADS.items() if re.match(head, lines[-1] + "\n")] == [wanted]
    row = table.row(program, 4096, {column.key: 12345.678 for column in shown}, shown)
    if HEADS[wanted][1] is not None:
        assert re.match(HEADS[wanted][1], row)
    if program.sized:
        assert re.match(r"(?P<msg_size>[0-9.]+)+\s+(?P<fom>[0-9.]+)", row)["msg_size"] == "4096"
        assert re.search(r"^4096\s+(\S+)", row)[1] == "12345.68"  # ReFrame's


#: ReFrame's benchmarks, and the sizes at which it reads a number.
REFRAME = {"osu_allreduce": 8, "osu_bw": 4194304}


@pytest.mark.parametrize("name", REFRAME)
def test_reframe_reads_what_it_measures(name):
    """``validate_test`` finds the row, and ``_extract_metric`` its first number. tests/bench/test_reframe.py has its
    own checks, all of them."""
    size = REFRAME[name]
    options = ["-m", str(size), "-x", "3", "-i", "10", "-c", *(["H", "H"] if name == "osu_bw" else [])]
    done = mpiexec("openmpi", 2, f"benchmarks/osu/{name}.py", *options, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^{size}.*Pass", done.stdout, re.MULTILINE)
    assert float(re.search(rf"^{size}\s+(\S+)", done.stdout, re.MULTILINE)[1]) > 0


def test_ramble_reads_the_times_of_init():
    done = mpiexec("openmpi", 2, "benchmarks/osu/osu_init.py", timeout=60)
    found = next(filter(None, map(INIT.match, done.stdout.splitlines())))
    assert int(found["nprocs"]) == 2
    assert 0 < float(found["min"]) <= float(found["avg"]) <= float(found["max"])
