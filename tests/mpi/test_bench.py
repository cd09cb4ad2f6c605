"""Workloads and timing of benchmarks, on every rank; and that a wrong result is found, whatever is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import collectives
from collectives.arguments.calls import COLLECTIVES
from collectives.bench import main, start
from collectives.bench.exchanges import Exchange, neighbours, on_torus
from collectives.bench.programs import EXCHANGES, NAMES, find
from collectives.bench.timing import combine, sample
from collectives.bench.workloads import Workload, usable_count

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
INTEL = "Intel" in MPI.Get_library_version()


@pytest.fixture(scope="module")
def comm():
    made = collectives.Communicator(WORLD)
    yield made
    made.Free()


@pytest.fixture(scope="module")
def plain():
    made = WORLD.Dup()
    yield made
    made.Free()


@pytest.mark.parametrize("whose", ["comm", "plain"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_result_is_right(collective, in_place, whose, request):
    """Blocking, non-blocking and persistent, on MPI's communicator too: the expected results are MPI's."""
    made = request.getfixturevalue(whose)
    if in_place and collective in ("barrier", "bcast"):
        with pytest.raises(ValueError, match="in_place"):
            Workload(made, collective, 4, in_place=True)
        return
    for count, dtype in ((0, "int32"), (1, "int8"), (7, "float32"), (600, "float64")):
        usable = usable_count(collective, count, SIZE)
        load = Workload(made, collective, usable, dtype=dtype, root=range(SIZE), in_place=in_place, rotate=2)
        assert load.validate() is None
        if count == 7:
            assert load.validate("start") is None
            # Persistent gathers of Intel MPI 2021.18 leave the root wrong blocks: it moves its own when they are made.
            if not (INTEL and whose == "plain" and collective == "gather"):
                assert load.validate("plan") is None


class Wrong(MPI.Intracomm):
    """mpi4py's communicator with a mistake in its sum."""

    mistake = ""

    def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
        mine = np.array(sendbuf)
        if self.mistake == "a rank is counted twice, another dropped":
            mine = mine * {0: 2, self.size - 1: 0}.get(self.rank, 1)
        if self.mistake == "a rank is dropped":
            mine = mine * (self.rank != self.size - 1)
        super().Allreduce(mine.astype(recvbuf.dtype), recvbuf, op)
        if self.mistake == "one ulp in one element":
            recvbuf[-1:] = np.nextafter(recvbuf[-1:], np.float32(np.inf))
        if self.mistake == "one bit of one element" and self.rank == 1:
            recvbuf.view(np.uint8)[recvbuf.nbytes // 2] ^= 1
        if self.mistake == "nothing is written":
            recvbuf[:] = sendbuf
        if self.mistake == "the sign of the last element":
            recvbuf[-1] = -recvbuf[-1]


MISTAKES = [
    "a rank is counted twice, another dropped", "a rank is dropped", "one ulp in one element", "one bit of one element",
    "nothing is written", "the sign of the last element",
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake, plain):
    made = Wrong(plain)
    for count in (1, 1000):
        load = Workload(made, "allreduce", count)
        made.mistake = ""
        assert load.validate() is None
        made.mistake = mistake
        found = WORLD.allgather(load.validate())
        assert any(found), (mistake, count)
        if mistake == "one bit of one element":
            assert found[1] is not None
            assert found[0] is None


@pytest.mark.parametrize("mistake", MISTAKES[:3])
def test_the_program_ends_with_1(mistake, plain, monkeypatch, capfd):
    """One wrong result, in any type, fails a run; a right one does not."""
    options = ["--algorithm", "mpi", "-m", "64:64", "-i", "2", "-x", "0", "-c", "-T", "mpi_float"]
    assert main("allreduce", options) == 0
    monkeypatch.setattr("collectives.bench.settings.plain_mpi", Wrong)
    assert main("allreduce", options) == 0
    monkeypatch.setattr(Wrong, "mistake", mistake)
    assert main("allreduce", options) == 1
    shown = capfd.readouterr()
    if RANK == 0:
        assert shown.out.splitlines()[-1].endswith("Fail")
        assert "allreduce, 64 bytes: rank 0: element" in shown.err
        assert "1 ulp away" in shown.err or "ulp" not in mistake


def test_percentiles_are_over_all_samples_of_all_ranks(comm):
    """One slow call of the last rank: in the mean over ranks of each call it would be SIZE times as short."""
    mine = np.full(50, 1.0)
    if RANK == SIZE - 1:
        mine[7] = 101.0
    summary = combine(comm, mine, [50, 100])
    assert summary.percentiles == {50: 1.0, 100: 101.0}
    assert (summary.low, summary.high) == (1.0, 3.0)
    assert summary.mean == pytest.approx(1 + 2 / SIZE)
    assert summary.iterations == 50


def test_calls_are_timed_one_by_one(comm):
    """As long as they take, without what the others wait."""
    durations = iter([0.5, 0.0, 0.002, 0.004])

    def call():
        begin, duration = MPI.Wtime(), next(durations)
        while RANK == 0 and MPI.Wtime() < begin + duration:
            pass

    seconds = sample(comm, call, 3, 1)
    if RANK == 0:
        assert seconds[1] >= 0.0019
        assert seconds[2] >= 0.0039
    assert seconds.min() < 0.4  # neither the call before nor what the other rank waits
    assert len(sample(comm, lambda: None, 10, 3)) == 10
    with pytest.raises(ValueError, match="iterations"):
        sample(comm, lambda: None, 0)


@pytest.mark.parametrize("name", NAMES)
def test_every_program_runs(name, capfd):
    if name in ("latency", "bw", "bibw") and SIZE != 2:
        assert main(name, []) == 1
        assert RANK or "exactly two processes" in capfd.readouterr().err
        return
    if name in ("multi_lat", "mbw_mr") and SIZE % 2:
        assert main(name, []) == 1
        assert RANK or "even number of processes" in capfd.readouterr().err
        return
    if name == "init":  # MPI has been started here; tests/bench/test_bench.py starts it
        with pytest.raises(RuntimeError, match="started already"):
            start.run(find(name), None)
        return
    sizes = [] if "barrier" in name else ["-m", "4:64"]
    assert main(name, [*sizes, "-i", "2", "-x", "1", "-u", "1", "-c"]) == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines() if line and line[0] != "#"]
    assert RANK or {words[-1] for words in lines} == {"Pass"}
    least = 4 if "block" not in name else next(n for n in (4, 8, 16) if n >= SIZE)
    assert (
        RANK
        or "barrier" in name
        or [int(words[0]) for words in lines]
        == [n // SIZE * SIZE if "block" in name else n for n in (4, 8, 16, 32, 64) if n >= least]
    )


@pytest.mark.parametrize("options", [
    ["--algorithm", "all"], ["--off-cache", "-M", "1MiB"], ["--heap"], ["-l"], ["-k", "rotate"],
    ["--engine", "python", "--algorithm", "binomial"], ["-T", "all"], ["-T", "bf"],
])  # fmt: skip
def test_options_of_a_reduce(options, capfd):
    assert main("reduce", [*options, "-m", "4:8", "-i", "2", "-x", "1", "-u", "1", "-c"]) == 0
    shown = capfd.readouterr().out
    rows = [line for line in shown.splitlines() if line and line[0] != "#"]
    here = [name for name in collectives.algorithms("reduce") if name != "hierarchical"]  # which needs several nodes
    tables = {"all": len(here) if "--algorithm" in options else 3}.get(options[-1], 1)
    assert RANK or len(rows) == 2 * tables
    assert RANK or shown.count("# Size") == tables


def test_numbers_of_ranks(capfd):
    assert main("allgather", ["--ranks", f"2:{SIZE}", "-m", "8:8", "-i", "2", "-x", "0"]) == 0
    shown = capfd.readouterr().out
    assert RANK or all(f"# Ranks: {p}." in shown for p in range(2, SIZE + 1))
    assert main("allgather", ["--ranks", f"2,{SIZE + 1}"]) == 2
    assert main("bcast", ["--root-rank", f"fixed:{SIZE}"]) == 2


@pytest.mark.parametrize("collective", EXCHANGES)
def test_wrong_blocks_of_exchanges_are_found(collective, comm, monkeypatch):
    used = comm if collective == "alltoallw" else on_torus(comm, 1, 1)
    load = Exchange(used, collective, 5, dtype="int32", rotate=2)
    assert [load.validate(form) for form in ("call", "start", "plan")] == [None] * 3
    monkeypatch.setattr(load, "_calls", lambda form, keywords: [lambda: None] * 2)  # nothing is sent
    assert "element" in load.validate() if load.sources else load.validate() is None


def test_neighbours_are_mutual():
    for dims in ([1], [2], [5], [2, 3], [4, 4], [2, 2, 2]):
        ranks = range(int(np.prod(dims)))
        for radius in (1, 2):
            every = [neighbours(rank, dims, radius) for rank in ranks]
            assert all(a in every[b] for a in ranks for b in every[a])
            assert all(a not in every[a] for a in ranks)
            assert len({len(each) for each in every}) == 1
    assert neighbours(0, [5], 1) == [1, 4]
    assert neighbours(0, [4, 4], 1) == [1, 3, 4, 12]
    assert neighbours(1, [2, *[1] * 31], 1) == [0]
    assert neighbours(0, [5, 4], 10**12) == [1, 2, 3, 4, 8, 12, 16]  # and not after 10^12 steps


def test_pairs_print_what_omb_prints(capfd):
    if SIZE % 2:
        return
    assert main("mbw_mr", ["-m", "8:8", "-i", "2", "-x", "0", "-W", "4", "H", "H", "--title", "osu"]) == 0
    shown = capfd.readouterr().out.splitlines()
    if RANK == 0:
        assert shown[1].startswith("# OSU MPI Multiple Bandwidth / Message Rate Test v")
        assert f"# [ pairs: {SIZE // 2} ] [ window size: 4 ]" in shown
        assert shown[-2] == "# Size                  MB/s        Messages/s"
        size, rate, messages = map(float, shown[-1].split())
        assert rate == pytest.approx(size * messages / 1e6, abs=0.01)


@pytest.mark.parametrize("name", ["bw", "bibw", "mbw_mr", "multi_lat"])
def test_every_buffer_out_of_the_cache_is_received(name, tmp_path_factory, capfd):
    """In few windows, of which each has fewer messages than there are buffers."""
    if SIZE % 2 or (SIZE != 2 and name in ("bw", "bibw")):
        return
    path = WORLD.bcast(str(tmp_path_factory.mktemp("turn") / "a.json"), 0)
    window = [] if name == "multi_lat" else ["-W", "7"]
    options = ["-m", "4096:4096", "-M", "1MiB", "-i", "2", "-x", "1", "-c", "--off-cache", "--json", path, *window]
    assert main(name, options) == 0, capfd.readouterr().err
    if RANK == 0:
        (record,) = json.loads(Path(path).read_text())["results"]
        assert record["validation"] == "Pass"
        assert record["sets"] > 2 * 7
        assert record["iterations"] == -(-record["sets"] // (7 if window else 1))


def test_both_places_as_nccl_tests(tmp_path_factory, capfd):
    path = WORLD.bcast(str(tmp_path_factory.mktemp("nccl") / "a.json"), 0)
    assert main("allreduce", ["--nccl", "-m", "8:16", "-i", "2", "-x", "0", "-c", "--json", path]) == 0
    shown = capfd.readouterr().out.splitlines()
    if RANK == 0:
        rows = [line.split() for line in shown if line and line[0] != "#"]
        assert [len(row) for row in rows] == [8, 8]
        assert {row[-1] for row in rows} == {"Pass"}
        buses = [float(row[i]) for row in rows for i in (3, 6)]
        average = next(float(line.split(":")[1]) for line in shown if line.startswith("# Avg bus bandwidth"))
        assert average == pytest.approx(sum(buses) / 4, abs=0.01)
        records = json.loads(Path(path).read_text())["results"]
        assert sorted((r["bytes"], r["in_place"]) for r in records) == [(8, False), (8, True), (16, False), (16, True)]
        assert f"# wrote {path}" in shown
