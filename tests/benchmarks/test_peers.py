"""The comparison with other MPIs: its statistics on known data, its tables, and a small run of it."""

import json
import math
import random
import statistics
import subprocess
import sys

import pytest
from jobs import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import _peers_calls as calls  # noqa: E402
import _peers_collectives as collectives  # noqa: E402
import _peers_report as report  # noqa: E402
import _peers_survey as survey  # noqa: E402
from _peers_jobs import Failure, Job  # noqa: E402
from _peers_report import Mode, Table  # noqa: E402

PEERS = ["ompi/m", "ompi/s", "mpich/m", "mpich/s", "impi/m", "impi/s", "gloo"]
ONE = Mode("out", "one")


def table(rows, ranks=2, ours="private", mode=ONE, rounds=3, **more):
    """A table of times in us."""
    seconds = {n: {name: [us * 1e-6 for us in times] for name, times in row.items()} for n, row in rows.items()}
    return Table(ranks, 2, ours, mode, rounds, PEERS, seconds, **more)


# --- statistics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "ranks"),  # which of the ordered values, from tables of the sign test at 95 %
    [(1, (1, 1)), (2, (1, 2)), (5, (1, 5)), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (15, (4, 12)), (20, (6, 15)),
     (25, (8, 18)), (50, (18, 33))],
)  # fmt: skip
def test_the_interval_is_that_of_the_sign_test(n, ranks):
    values = random.Random(n).sample(range(1, n + 1), n)
    assert report.median_interval(values) == ranks


def test_the_interval_covers_the_median_as_often_as_it_says():
    draw = random.Random(1)
    trials = [report.median_interval([draw.expovariate(1) for _ in range(20)]) for _ in range(2000)]
    covered = sum(low <= math.log(2) <= high for low, high in trials) / len(trials)
    assert 0.94 <= covered <= 0.98


def test_ratios_are_taken_round_by_round():
    """A machine that is ten times slower in one round is so for both."""
    theirs = [2.0, 20.0, 4.0]
    found = report.ratio([1.0, 10.0, 3.0], theirs)
    assert (found.median, found.low, found.high) == (0.5, 0.5, 0.75)
    assert str(found) == "0.50 [0.50, 0.75]"


def test_the_best_has_the_lowest_median_not_the_lowest_time():
    samples = {"a": [1.0, 5.0, 5.0], "b": [4.0, 4.0, 4.0], "c": [0.1, 0.1, 0.1]}
    assert report.best(samples, ["a", "b", "missing"]) == "b"
    assert report.best(samples, ["missing"]) is None


@pytest.mark.parametrize(
    ("text", "nbytes"), [("8", 8), ("64Ki", 65536), ("64KiB", 65536), ("64MiB", 64 << 20), ("2Gi", 2 << 30)]
)
def test_sizes(text, nbytes):
    assert report.parse_size(text) == nbytes
    assert report.parse_size(report.size_name(nbytes)) == nbytes


@pytest.mark.parametrize("text", ["", "x", "0", "6", "-8", "4kB"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError):  # noqa: PT011  # argparse shows its own text
        report.parse_size(text)


# --- tables and targets -------------------------------------------------------------------------------------------


def full_row(scale):
    return {"private": [scale] * 3, **{name: [scale * (i + 2)] * 3 for i, name in enumerate(PEERS)}}


def test_the_layout_of_a_table():
    made = table({8: full_row(0.25), 64 << 20: full_row(12345.6)})
    lines = made.lines()
    assert lines[0] == "2 ranks, private arrays, out of place, one buffer: us, medians of 3 rounds"
    assert lines[1].split() == ["bytes", "ours", "best", *PEERS, "ours/best", "[range]"]
    assert lines[2].split()[:5] == ["8", "0.25", "ompi/m", "0.50", "0.75"]
    assert lines[2].endswith("0.50 [0.50, 0.50]")
    assert lines[3].split()[:4] == ["64Mi", "12346", "ompi/m", "24691"]
    assert lines[4] == "geometric mean of the ratios 0.500"
    assert lines[6] == "2 ranks, private arrays, out of place, one buffer: us, minima"
    assert max(map(len, lines)) <= 100
    assert len({len(line) for line in lines[1:4] + lines[7:10]}) == 1


def test_who_is_missing_or_slow_has_no_figure():
    row = {name: times for name, times in full_row(1).items() if name not in ("ompi/m", "mpich/s")}
    line = table({8: row}, slow=[(8, "mpich/s")]).lines()[2].split()
    assert line[:7] == ["8", "1.00", "ompi/s", "-", "3.00", "4.00", "slow"]
    assert table({8: {}}).lines()[2].split() == ["8", "-", "-", *"-------", "-"]


def test_minima_are_compared_with_the_lowest_of_all():
    row = {"private": [3, 2, 9], "ompi/m": [5, 5, 5], "impi/s": [1, 8, 8]}
    lines = table({8: row}).lines()
    assert (lines[2].split()[2], lines[7].split()[2]) == ("ompi/m", "impi/s")
    assert lines[7].endswith(" 2.00")
    assert lines[8] == "geometric mean of the ratios 2.000"


def test_the_memory_limit_is_shown_beside_shared_arrays():
    row = {"heap": [2000] * 3, "private": [3000] * 3, "copy": [1024] * 3, "fold": [512] * 3}
    shown = [report.limit_lines(table({1 << 20: row}, ours=name, limits=("copy", "fold")), 1 << 20)
             for name in ("heap", "private")]  # fmt: skip
    assert shown[0][0] == "memory limit at 1Mi, 2 ranks at once, each reading s bytes and writing s bytes:"
    assert shown[0][2].split() == ["fold", "512", "us", "8.2", "GB/s", "over", "all", "ranks"]
    assert shown[1] == []


def test_the_algorithms_of_ours():
    assert table({8: full_row(1)}, algorithms={8: "shm"}).lines()[4] == "algorithms of ours: shm"
    made = table({}, algorithms={8: "shm", 64: "shm", 1 << 20: "ring"})
    assert made.runs_of_algorithms() == "shm up to 64, ring up to 1Mi"
    assert table({}, algorithms={8: ""}).runs_of_algorithms() == ""


def test_targets_of_two_ranks():
    rows = {8: {"private": [0.3] * 3, "impi/s": [0.7] * 3}, 64: {"private": [1.1] * 3, "impi/s": [1] * 3}}
    highest, mean, small = report.targets(table(rows))
    assert (highest.value, highest.verdict) == (pytest.approx(1.1), "FAIL")
    assert "(at 64)" in highest.what
    assert (mean.value, mean.verdict) == (pytest.approx(math.sqrt(0.3 / 0.7 * 1.1)), "FAIL")
    assert (small.value, small.verdict) == (pytest.approx(0.3), "PASS")


def test_targets_of_the_heap():
    """The memory limit is the fastest of the passes."""
    rows = {64 << 20: {"heap": [1400] * 3, "impi/s": [9000] * 3, "copy": [2000] * 3, "fold": [1000] * 3}}
    mean, limit, small = report.targets(table(rows, ours="heap", limits=("copy", "triad", "fold")))
    assert (mean.value, mean.verdict) == (pytest.approx(14 / 90), "PASS")
    assert (limit.value, limit.verdict) == (pytest.approx(1.4), "PASS")
    assert small.verdict == "not measured"


def test_targets_of_four_ranks_on_two_cores():
    """Small messages against Open MPI and Intel MPI, the mean against all."""
    rows = {8: {"private": [2] * 3, "mpich/m": [1] * 3, "impi/m": [2] * 3, "ompi/s": [3] * 3}}
    highest, mean = report.targets(table(rows, ranks=4))
    assert (highest.value, highest.verdict) == (1.0, "PASS")
    assert (mean.value, mean.verdict) == (2.0, "FAIL")
    assert report.targets(table(rows, ranks=3)) == []


def test_what_was_not_measured_does_not_pass():
    assert {goal.verdict for goal in report.targets(table({}))} == {"not measured"}


# --- several collectives ------------------------------------------------------------------------------------------


def of(collective, ours, algorithm="shm", reason=""):
    """A table in which the best peer takes 1 us at each of some sizes."""
    rows = {nbytes: {"private": [us] * 3, "impi/s": [1.0] * 3, "ompi/m": [2.0] * 3} for nbytes, us in ours.items()}
    more = {"algorithms": dict.fromkeys(ours, algorithm), "reasons": dict.fromkeys(ours, reason)}
    return table(rows, mode=Mode("out", "one", collective), **more)


def test_the_summary_is_worst_first_and_has_hand_overs_apart():
    lines = survey.lines([
        of("bcast", {8: 0.5, 64: 0.5}), of("scan", {8: 0.5, 64: 2}), of("gather", {8: 1, 64: 1.5}, "mpi", "no reason")
    ])  # fmt: skip
    assert [line.split() for line in lines[1:]] == [
        ["scan", "1.000", "2.00", "[2.00,", "2.00]", "64", "shm"],
        ["bcast", "0.500", "0.50", "[0.50,", "0.50]", "8", "shm"],
        [],
        "handed over to the MPI library".split(),
        ["gather", "1.225", "1.50", "[1.50,", "1.50]", "64", *"8, 64: no reason".split()],
    ]


def test_the_targets_of_several_collectives():
    """The mean is over the collectives that are ours, whatever their number of sizes; the highest is of all."""
    mean, highest = survey.targets(
        [of("barrier", {0: 0.2}), of("scan", {8: 0.8, 64: 0.8}), of("gather", {8: 2}, "mpi")]
    )
    assert (mean.value, mean.verdict) == (pytest.approx(0.4), "PASS")
    assert (highest.value, highest.verdict) == (2, "FAIL")
    assert highest.what == "highest ratio (gather at 8)"
    assert mean.where == "2 ranks, private arrays, out of place, one buffer"


def test_a_collective_that_was_not_measured_does_not_pass():
    assert [g.verdict for g in survey.targets([of("scan", {8: 0.5}), table({8: {}})])] == ["not measured"]


def test_the_sizes_of_a_collective():
    wanted = [4, 8, 16 << 20, 64 << 20]
    assert collectives.sizes("barrier", 2, wanted) == [0]
    assert collectives.sizes("bcast", 2, wanted) == wanted
    assert collectives.sizes("reduce_scatter", 2, wanted) == wanted[1:]
    assert collectives.sizes("alltoallv", 2, wanted) == wanted[:3]  # the vector is of all blocks


@pytest.mark.parametrize("collective", collectives.NAMES)
def test_what_is_expected_has_the_length_of_what_is_received(collective):
    for rank in range(3):
        received = collectives.lengths(collective, rank, 3, 6)[1]
        assert len(calls.expected(collective, rank, 3, 6)) in ({received} if received else {0, 6, 18})


def test_what_is_expected_of_some_collectives():
    first, second, third = (calls.pattern(rank)[:4] for rank in range(3))
    assert calls.expected("scan", 1, 3, 4).tolist() == (first + second).tolist()
    assert calls.expected("exscan", 2, 3, 4).tolist() == (first + second).tolist()
    assert calls.expected("exscan", 0, 3, 4).tolist() == [-1] * 4
    assert calls.expected("alltoall", 1, 3, 1).tolist() == [first[1], second[1], third[1]]
    assert calls.expected("reduce_scatter", 1, 2, 4).tolist() == (first + second)[2:].tolist()


# --- jobs ---------------------------------------------------------------------------------------------------------


class Script(Job):
    """A job of plain Python processes that say hello and then do something of their own."""

    def commands(self):
        hello = "import json, os, socket, time\ns = socket.socket(socket.AF_UNIX)\ns.connect(PATH)\n"
        hello += "s.sendall(json.dumps(dict(rank=RANK, size=2, pid=os.getpid())).encode() + b'\\n')\n"
        scripts = [
            f"PATH, RANK = {str(self.file('sock'))!r}, {rank}\n{hello}s.recv(99)\n{self.kind}" for rank in range(2)
        ]
        return [[sys.executable, "-c", script] for script in scripts]


@pytest.fixture
def script(tmp_path):
    """Makes such a job."""
    made = []

    def make(code, limit=20.0):
        made.append(Script("a/b", "openmpi", code, 2, "multiple", tmp_path, limit))
        made[0].start()
        made[0].join()
        return made[0]

    yield make
    made[0].kill()


def test_a_job_answers(script):
    assert script("s.sendall(b'{\"value\": %d}\\n' % RANK)\ns.recv(99)").ask("anything") in ([0, 1], [1, 0])


@pytest.mark.parametrize(
    ("code", "limit", "words"),
    [
        ("time.sleep(60)", 1.0, "2 of 2 ranks gave no answer within 1 s"),
        ("RANK or time.sleep(60); raise SystemExit('no more')", 20.0, "ended [no more]"),
        ('s.sendall(b\'{"error": "ValueError: 1"}\\n\') if RANK else time.sleep(60)\ntime.sleep(60)', 20.0, "Error: 1"),
    ],
)
def test_a_job_that_fails_is_ended_and_says_why(script, code, limit, words):
    job = script(code, limit)
    with pytest.raises(Failure) as caught:
        job.ask("anything")
    assert words in str(caught.value)
    assert words in job.failure
    assert all(process.poll() is not None for process in job.processes)


# --- all of it ----------------------------------------------------------------------------------------------------


def test_a_small_run(tmp_path):
    file = tmp_path / "peers.json"
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "peers.py", "--rounds", "2", "--sizes", "8,64Ki", "--peers", "openmpi",
         "--buffers", "private", "--place", "out,in", "--json", file],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "targets: 2 ranks, private arrays, in place, one buffer" in done.stdout
    found = json.loads(file.read_text())
    assert found["missing"] == []
    assert [job["software"]["thread_level"] for job in found["contestants"]] == ["multiple", "multiple", "single"]
    results = {(r["place"], r["bytes"], r["contestant"]): r["us"] for r in found["results"]}
    names = ("private", "ompi/m", "ompi/s")
    assert set(results) == {(place, n, name) for place in ("out", "in") for n in (8, 65536) for name in names}
    assert all(len(us) == 2 and 0 < statistics.median(us) < 1e6 for us in results.values())


@pytest.mark.quick("all", "persistent")
@pytest.mark.parametrize("names", ["all", "ibcast,iscan,ialltoallv,ibarrier", "persistent"])
def test_a_small_run_of_every_collective(names, tmp_path):
    file = tmp_path / "peers.json"
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "peers.py", "--collective", names, "--rounds", "1", "--sizes", "64",
         "--batch", "0.1", "--peers", "openmpi", "--threads", "single", "--json", file],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "summary: 2 ranks, private arrays, out of place, one buffer" in done.stdout
    found = json.loads(file.read_text())
    assert found["missing"] == []
    results = {(r["collective"], r["contestant"]) for r in found["results"]}
    kinds = {"all": "{}", "persistent": "{}_persistent"}
    wanted = [kinds[names].format(name) for name in collectives.NAMES] if names in kinds else names.split(",")
    assert results == {(name, who) for name in wanted for who in ("private", "ompi/s")}


def test_forms_of_collectives():
    assert [collectives.form_of(name) for name in ("iscan", "scan", "reduce_scatter_persistent")] == [
        ("scan", "i{}"), ("scan", "{}"), ("reduce_scatter", "{}_persistent")
    ]  # fmt: skip


@pytest.mark.parametrize("options", [["bcst"], ["all", "--peers", "gloo"], ["all", "--place", "in"]])
def test_options_that_do_not_go_with_several_collectives(options):
    command = [sys.executable, ROOT / "benchmarks" / "peers.py", "--collective", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "not one of" in done.stderr) == (2, True)
