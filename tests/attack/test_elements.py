"""Elements of every size, at every address: lines, slices, parts and segments that they do not divide."""

import pytest

RUNS = [("rows", 5), ("bytes", 2), ("bytes", 4)]


@pytest.mark.parametrize(("kind", "ranks"), RUNS)
def test_long_elements(attack, mpi, kind, ranks):
    attack(mpi, ranks, "long_elements", kind)


@pytest.mark.parametrize("isa", ["baseline", "best"])
def test_unaligned_arrays(attack, mpi, isa):
    attack(mpi, 2, "unaligned", "60", env={} if isa == "best" else {"COLLECTIVES_ISA": isa})


@pytest.mark.slow
def test_all_unaligned_arrays(attack, mpi):
    attack(mpi, 3, "unaligned", timeout=600)
