"""Pictures: the text grid, the contents of blocks, SVG."""

import re
import tracemalloc
import xml.etree.ElementTree as ElementTree

import pytest

from collectives.analysis import draw, rounds
from collectives.analysis.folds import rank_set
from collectives.schedules import registry
from collectives.schedules.registry import ScheduleAlgorithm
from collectives.schedules.schedule import Kind

FOUND = [registry.find(kind, name) for kind in registry.collectives() for name in registry.algorithms(kind)]
SCHEDULES = [a for a in FOUND if isinstance(a, ScheduleAlgorithm)]
SVG = "{http://www.w3.org/2000/svg}"


def grid(name, p, **options):
    return draw.text(registry.find("allreduce", name), p, **options)


def test_ring_of_three_in_full():
    assert grid("ring", 3) == (
        "allreduce ring, p = 3, 3 blocks, 4 rounds\n"
        "\n"
        "round   rank 0  rank 1  rank 2\n"
        "\n"
        "    0   >1 [2]  >2 [0]  >0 [1]\n"
        "        +2 [1]  0+ [2]  1+ [0]\n"
        "\n"
        "    1   >1 [1]  >2 [2]  >0 [0]\n"
        "        +2 [0]  0+ [1]  1+ [2]\n"
        "\n"
        "    2   >1 [0]  >2 [1]  >0 [2]\n"
        "        <2 [2]  <0 [0]  <1 [1]\n"
        "\n"
        "    3   >1 [2]  >2 [0]  >0 [1]\n"
        "        <2 [1]  <0 [2]  <1 [0]\n"
        "\n"
        "  >q   send to rank q\n"
        "  <q   receive from rank q\n"
        "  +q   receive from rank q and reduce, own data on the left\n"
        "  q+   receive from rank q and reduce, own data on the right\n"
        "  [2] block 2, [2-4] blocks 2 to 4, [2<-0] from block 0 on; without brackets: the whole vector\n"
    )


def test_like_steps_share_a_line():
    lines = grid("naive", 5).splitlines()
    assert any("+1-4" in line for line in lines)
    assert any(">1-4" in line for line in lines)
    assert any("[7,0-2]" in line for line in grid("circulant", 8).splitlines())


def test_scratch_vectors_are_named():
    shown = grid("recursive_multiplying", 3)
    assert "<1 S0" in shown
    assert "V=S0+V" in shown
    assert "S0, S1, ...: scratch" in shown


def test_one_rank_only():
    shown = grid("tree", 4, ranks=[3])
    assert "rank 3" in shown
    assert "rank 2 " not in shown
    assert "+" not in shown.split("round")[-1].split("\n\n  >q")[0]


def test_values():
    lines = [line.split() for line in grid("recursive_doubling", 4, values=True).splitlines()]
    assert ["0:", "0-1*", "0:", "0-1*", "0:", "2-3*", "0:", "2-3*"] in lines
    assert ["0:", "all*"] * 4 in lines


def test_one_rank_has_nothing_to_do():
    assert "no messages" in grid("ring", 1)


@pytest.mark.parametrize("algorithm", SCHEDULES, ids=lambda a: a.name)
@pytest.mark.parametrize("p", [1, 2, 5, 8])
def test_every_algorithm_fits_a_terminal_and_ends_complete(algorithm, p):
    width = max(map(len, draw.text(algorithm, p, values=True).splitlines()))
    assert width <= (140 if algorithm.name == "bruck" else 120)  # copies from block to block
    for root in range(p if algorithm.spec.rooted else 1):
        last = list(rounds.frames(algorithm, p, root))[-1:]
        for frame in last:
            for rank, vector in enumerate(frame.values):
                wanted = rounds.complete(algorithm, rank, p, root)
                assert all(w in (None, held) for w, held in zip(wanted, vector, strict=True))
        assert bool(last) == (p > 1) or algorithm.spec.exchanges


@pytest.mark.parametrize("algorithm", SCHEDULES, ids=lambda a: a.name)
@pytest.mark.parametrize("p", [1, 4, 6])
def test_svg_has_an_arrow_for_each_pair_and_round(algorithm, p):
    root = ElementTree.fromstring(draw.svg(algorithm, p))
    arrows = [line for line in root.iter(f"{SVG}line") if line.find(f"{SVG}title") is not None]
    messages = {
        (number, step.peer, rank, step.kind)
        for number, frame in enumerate(rounds.frames(algorithm, p))
        for rank, steps in frame.steps.items()
        for step in steps
        if step.kind in (Kind.RECV, Kind.RECV_REDUCE)
    }
    assert len(arrows) == len(messages)
    width, height = float(root.get("width")), float(root.get("height"))
    for line in arrows:
        assert 0 < float(line.get("x1")) < width
        assert 0 < float(line.get("y2")) < height


def test_labels_need_nothing_that_a_renderer_may_lack():
    """An outline behind letters is drawn over them by renderers without paint-order; a rectangle is behind them."""
    text = draw.svg(registry.find("allreduce", "ring"), 3)
    assert "paint-order" not in text
    assert text.isascii()
    assert set(re.findall(r"&\w+;", text)) <= {"&lt;", "&gt;", "&amp;"}
    shapes = list(ElementTree.fromstring(text))
    labels = [i for i, shape in enumerate(shapes) if shape.get("class") == "label"]
    assert len(labels) == 3 * 4
    for i in labels:
        ground = shapes[i - 1]
        left, top = float(ground.get("x")), float(ground.get("y"))
        assert ground.tag == f"{SVG}rect"
        assert left < float(shapes[i].get("x")) < left + float(ground.get("width"))
        assert top < float(shapes[i].get("y")) < top + 1.2 * float(ground.get("height"))


def test_rank_sets():
    assert rank_set(0b1) == "0"
    assert rank_set(0b1011) == "0-1,3"
    assert rank_set(0) == ""


@pytest.mark.parametrize("algorithm", SCHEDULES, ids=lambda a: f"{a.collective}-{a.name}")
def test_some_ranks_have_the_steps_that_they_have_among_all(algorithm):
    for p, root, ranks in ((1, 0, [0]), (5, 0, [3, 1]), (8, 2 if algorithm.spec.rooted else 0, [7, 2])):
        every = [frame.steps for frame in rounds.frames(algorithm, p, root)]
        some = [frame.steps for frame in rounds.frames_without_values(algorithm, p, root, ranks)]
        assert some == [{rank: steps[rank] for rank in ranks} for steps in every]


def test_one_rank_of_a_linear_algorithm_needs_little_memory():
    tracemalloc.start()
    told = draw.text(registry.find("alltoall", "linear"), 200, ranks=[5])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "1 round\n" in told
    assert peak < 512 << 10


def test_one_rank_of_many_needs_little_memory():
    tracemalloc.start()
    told = grid("ring", 1024, ranks=[5])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "2046 rounds" in told
    assert peak < 20 << 20
