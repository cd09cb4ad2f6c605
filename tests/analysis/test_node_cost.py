"""The formulas of node_cost.py beside loads and stores counted in the engine's own code; the page that shows them."""

import re

import pytest
from drivers import compile_driver, run
from jobs import ROOT

from collectives.analysis import node_cost
from collectives.analysis.node_cost import Machine
from collectives.selection import policy

KINDS = ["allreduce", "reduce", "bcast", "allgather", "gather", "reduce_scatter", "scatter", "alltoall", "scan"]
COUNTERS = ["lines", "loaded", "stored", "staged", "reread", "taken", "given"]
MOVED = COUNTERS[1:]
RANKS = [2, 3, 16, 20, 64]
NEVER = 1  # bytes: a limit below every message


@pytest.fixture(scope="module")
def counter(tmp_path_factory, kernel_objects):
    """Counts one call: a dictionary for each rank."""
    program = tmp_path_factory.mktemp("lines") / "lines"
    compile_driver(program, "node_lines.c", "-DCOLL_MODEL", kernels=kernel_objects)

    def count(p, nbytes, kind="allreduce", heap=False, copy=NEVER, read=NEVER, segment=4 << 10):
        printed = run(program, p, KINDS.index(kind), nbytes, int(heap), copy, read, segment, timeout=30)
        return [dict(zip(COUNTERS, map(int, row.split()), strict=True)) for row in printed.splitlines()]

    return count


@pytest.mark.parametrize("nbytes", [0, 8, 56, 60, 120])
@pytest.mark.parametrize("p", RANKS)
def test_lines_of_inline_calls(counter, p, nbytes):
    fetched = [rank["lines"] for rank in counter(p, nbytes)]
    if p <= node_cost.GROUP:
        found = node_cost.flat(p, nbytes, Machine())
        assert fetched == [found.chain] * p
        assert sum(fetched) == found.total
        return
    found = node_cost.grouped(p, nbytes, Machine())
    leaders = -(-p // node_cost.GROUP)
    result = -(-(node_cost.FLAG + nbytes) // node_cost.LINE)
    members = [n for rank, n in enumerate(fetched) if rank % node_cost.GROUP]
    assert members == [result + 1] * (p - leaders)
    waited = leaders - 1  # leaders that found a bundle missing, and looked whether its rank is in the same call
    assert sum(fetched) == found.total + waited
    assert max(fetched) == found.chain - result + 1


def is_mean(rows, expected):
    """Whether ranks move what the formula says, in the mean: slices differ by a line."""
    return all(sum(row[what] for row in rows) / len(rows) == pytest.approx(getattr(expected, what)) for what in MOVED)


@pytest.mark.parametrize("p", RANKS)
def test_bytes_of_all_reduce(counter, p):
    s = p * 1024
    assert is_mean(counter(p, 2048, read=4096), node_cost.read(p, 2048))
    assert is_mean(counter(p, s), node_cost.slices(p, s))
    assert is_mean(counter(p, s, heap=True), node_cost.direct(p, s))


@pytest.mark.parametrize("p", RANKS)
def test_flags_of_long_calls(counter, p):
    """Those of arrival, and for each segment one for what is staged and one for what is folded.

    Nothing is staged of arrays on heaps, of which so few bytes are folded at once that each rank has a segment here.
    """
    segments = -(-p * 1024 // 4096)
    assert {rank["lines"] for rank in counter(p, 2048, read=4096)} == {p - 1}
    direct = [rank["lines"] for rank in counter(p, p * 1024, heap=True)]
    assert {rank["lines"] for rank in counter(p, 1024, heap=True)} <= {2 * (p - 1)}
    assert min(direct) >= 2 * (p - 1)
    assert max(direct) <= (1 + p) * (p - 1)
    found = [rank["lines"] for rank in counter(p, p * 1024)]
    assert min(found) >= 3 * (p - 1)
    assert max(found) <= (1 + 3 * segments) * (p - 1)  # a rank returns after each segment here, and may look again
    assert segments > 1 or set(found) == {3 * (p - 1)}


@pytest.mark.parametrize("heap", [False, True])
@pytest.mark.parametrize("p", [2, 3, 8])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_bytes_of_pull(counter, kind, p, heap):
    """Of the rank that takes most; the own block is copied without passing through the engine's counted moves."""
    s = p * 3072
    rows = counter(p, s, kind, heap)
    if kind == "reduce" and p >= 4:
        return  # by slices
    busiest = max(rows, key=lambda row: row["taken"])
    expected = node_cost.pull(kind, p, s, heap=heap)
    kept = s / p if kind in ("allgather", "alltoall", "gather") else 0
    for what in ("staged", "taken", "given"):
        assert busiest[what] == getattr(expected, what), what
    assert busiest["loaded"] == expected.loaded - kept
    assert busiest["stored"] == expected.stored - kept


@pytest.mark.parametrize("kind", ["alltoall", "scatter", "reduce_scatter"])
def test_short_blocks_for_many_ranks_go_by_lines(counter, kind):
    """Not by elements, where a segment has less than a line for each rank: then a block of 64 bytes took 16 steps."""
    few, many = (max(row["lines"] for row in counter(p, p * 64, kind)) / (p - 1) for p in (16, 64))
    assert many <= few + 1


def test_levels_hold_all_that_is_moved():
    """What fits in caches is neither lost nor counted twice."""
    for p in (2, 16, 64):
        for scheme, heap in ((node_cost.read, False), (node_cost.slices, False), (node_cost.direct, True)):
            moved = scheme(p, 4096)
            at = node_cost.levels(moved, p, 4096, Machine(), heap=heap)
            assert at.memory == 0
            assert at.private + at.shared == pytest.approx(moved.all)


def test_numbers_of_the_engine():
    header = (ROOT / "csrc/node/internal.h").read_text()
    assert f"GROUP = {node_cost.GROUP}," in header
    assert f"STAGING = {node_cost.RING >> 20} << 20" in header
    assert Machine().stream == policy.NODE_LIMITS[False][4]


def test_the_page_shows_what_the_module_prints(capsys):
    page = (ROOT / "docs/big-nodes.md").read_text()
    command = re.search(r"python -m collectives\.analysis\.node_cost(.*)", page)[1].split()
    assert node_cost.main(command) == 0
    assert capsys.readouterr().out == "\n".join(re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
