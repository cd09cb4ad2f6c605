"""Every algorithm: proved for every p, and right on numbers."""

import numpy as np
import pytest

from collectives.analysis.verify import verify, verify_schedules
from collectives.schedules import registry
from collectives.schedules.build import build
from collectives.schedules.registry import ScheduleAlgorithm
from collectives.schedules.schedule import Kind

FOUND = [registry.find(kind, name) for kind in registry.collectives() for name in registry.algorithms(kind)]
SCHEDULES = [a for a in FOUND if isinstance(a, ScheduleAlgorithm)]
each_algorithm = pytest.mark.parametrize("algorithm", SCHEDULES, ids=lambda a: f"{a.collective}-{a.name}")


@each_algorithm
def test_proved_for_every_size(algorithm):
    for p in range(1, 18):
        promised(algorithm, p)


def promised(algorithm, p):
    """Prove it; it takes as many rounds and blocks as it says."""
    proof = verify(algorithm, p)
    assert (proof.rounds, proof.sent) == (algorithm.rounds(p), algorithm.sent(p))


@pytest.mark.slow
@each_algorithm
def test_proved_for_larger_sizes(algorithm):
    for p in (*range(18, 65), 96, 100, 127, 128, 129):
        promised(algorithm, p)


@each_algorithm
def test_memory_is_promised(algorithm):
    """Proofs count it; where nothing is promised, segments are cut by a guess."""
    assert algorithm.memory is not None


def test_no_copy_where_the_last_write_can_be_the_result():
    """Ring and circulant end with a reduction of the own block alone, leaves of a scatter with its arrival."""
    for collective, name, p in (("reduce_scatter", "ring", 5), ("reduce_scatter", "circulant", 7)):
        for rank in range(p):
            assert Kind.COPY not in build(registry.find(collective, name), rank, p).steps["kind"][-1:]
    leaf = build(registry.find("scatter", "binomial"), 3, 4)
    assert leaf.steps["kind"].tolist() == [Kind.RECV]
    assert leaf.scratch == 0


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 21])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("algorithm", [a for a in SCHEDULES if a.collective == "allreduce"], ids=lambda a: a.name)
def test_sums_and_ordered_products(algorithm, p, in_place):
    """Run on real operands: sums for all, words (which do not commute) for those that keep the order."""
    nblocks = algorithm.blocks(p)
    numbers = np.random.default_rng(p).integers(0, 1000, (p, nblocks)).astype(object)
    for result in _run(algorithm, numbers, in_place):
        assert result == numbers.sum(axis=0).tolist()
    if algorithm.ordered:
        words = np.array([[f"{r}.{b} " for b in range(nblocks)] for r in range(p)], dtype=object)
        for result in _run(algorithm, words, in_place):
            assert result == ["".join(words[:, b]) for b in range(nblocks)]


def _run(algorithm, inputs, in_place):
    """A plain interpreter of the records: each round of each rank when its messages can be had."""
    p, nblocks = inputs.shape
    schedules = [build(algorithm, rank, p) for rank in range(p)]
    memory = []
    for rank, schedule in enumerate(schedules):
        own = inputs[rank].copy()
        fresh = [np.full(nblocks, None, dtype=object) for _ in range(schedule.scratch)]
        memory.append([own, own if in_place else np.full(nblocks, None, dtype=object), *fresh])
    runs = [_rank(schedule, memory[rank]) for rank, schedule in enumerate(schedules)]
    wires, waiting = {}, {rank: next(run, None) for rank, run in enumerate(runs)}
    while any(waiting.values()):
        for rank, request in waiting.items():
            if request is None:
                continue
            sends, peers = request
            for peer, data in sends:
                wires.setdefault((peer, rank), []).append(data)
            request[0].clear()
            if all(len(wires.get((rank, peer), [])) >= peers.count(peer) for peer in peers):
                arrived = [wires[rank, peer].pop(0) for peer in peers]
                try:
                    waiting[rank] = runs[rank].send(arrived)
                except StopIteration:
                    waiting[rank] = None
    return [vectors[1].tolist() for vectors in memory]


def _rank(schedule, memory):
    def part(buffer, step, arrived):
        return arrived if buffer == -1 else memory[buffer][step["block"] : step["block"] + step["nblocks"]]

    for steps in schedule.rounds():
        sends = [(int(s["peer"]), part(s["left"], s, None).copy()) for s in steps if s["kind"] == Kind.SEND]
        receives = [s for s in steps if s["kind"] in (Kind.RECV, Kind.RECV_REDUCE)]
        arrived = yield sends, [int(s["peer"]) for s in receives]
        mpi_queries = iter(arrived)
        for s in (s for s in steps if s["kind"] != Kind.SEND):
            data = next(mpi_queries) if s["kind"] in (Kind.RECV, Kind.RECV_REDUCE) else None
            if s["kind"] == Kind.RECV:
                result = data
            elif s["kind"] == Kind.COPY:
                result = part(s["left"], s, data).copy()
            else:
                result = part(s["left"], s, data) + part(s["right"], s, data)
            memory[s["dst"]][s["block"] : s["block"] + s["nblocks"]] = result


def test_the_promised_names_are_there():
    names = registry.algorithms("allreduce")
    assert {"naive", "ring", "tree", "double_tree", "recursive_doubling", "recursive_halving"} <= set(names)
    assert {"recursive_multiplying", "circulant"} <= set(names)
    for collective, promised in (
        ("barrier", {"dissemination"}), ("bcast", {"binomial", "scatter_allgather"}), ("reduce", {"binomial", "naive"}),
        ("allgather", {"ring", "bruck", "recursive_doubling", "circulant"}), ("gather", {"binomial", "linear"}),
        ("reduce_scatter", {"ring", "recursive_halving", "circulant"}), ("scatter", {"binomial", "linear"}),
        ("alltoall", {"linear", "pairwise", "bruck"}), ("scan", {"recursive_doubling", "linear"}),
        ("exscan", {"recursive_doubling", "linear"}), ("gatherv", {"linear"}), ("allgatherv", {"ring", "circulant"}),
    ):  # fmt: skip
        assert promised | {"shm", "mpi"} <= set(registry.algorithms(collective))


@pytest.mark.parametrize(
    "algorithm", [a for a in SCHEDULES if a.spec.reduces], ids=lambda a: f"{a.collective}/{a.name}"
)
def test_which_keep_the_order(algorithm):
    """An algorithm that keeps the order of operands on all numbers of ranks says so, and no other does."""
    roots = (0, 1) if algorithm.spec.rooted else (0,)
    proofs = [
        verify_schedules([build(algorithm, rank, p, root) for rank in range(p)], algorithm)
        for p in range(2, 10)
        for root in roots
    ]
    assert algorithm.ordered == all(proof.ordered for proof in proofs)
    assert algorithm.linear == all(proof.linear for proof in proofs)


@each_algorithm
def test_says_what_it_is_in_one_line(algorithm):
    name, _, what = algorithm.summary.partition(": ")
    assert name
    assert what.endswith(".")
    assert len(algorithm.summary) < 110


def test_all_reduce_volume_is_the_optimum_where_it_is_promised():
    for name in ("ring", "circulant"):
        algorithm = registry.find("allreduce", name)
        for p in range(2, 40):
            assert algorithm.sent(p) / algorithm.blocks(p) == pytest.approx(2 * (p - 1) / p)


def test_registering_a_name_twice_is_refused():
    ring = registry.find("allreduce", "ring")
    with pytest.raises(ValueError, match="ring"):
        registry.register("allreduce", "ring", ring.generator, blocks=ring.blocks, rounds=ring.rounds, sent=ring.sent)


def test_rank_outside_the_communicator_is_refused():
    with pytest.raises(ValueError, match="rank 4"):
        build(registry.find("allreduce", "ring"), 4, 4)
    with pytest.raises(ValueError, match="root 4"):
        build(registry.find("bcast", "binomial"), 0, 4, 4)
