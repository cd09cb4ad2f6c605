"""allreduce_tree on arrays of JAX, on real ranks, by the program jax_trees.py."""

import re

import pytest
from jobs import ROOT, mpiexec


@pytest.mark.long
@pytest.mark.quick("3")
@pytest.mark.skipif(
    not (ROOT / ".venvs/jax/ready").exists(), reason="there is no .venvs/jax, which make build-all makes"
)
@pytest.mark.parametrize("ranks", [2, 3])
def test_trees_of_jax_are_reduced(ranks):
    program = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/train/programs/jax_trees.py")
    done = mpiexec("jax", ranks, *program, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"10 passed", done.stdout)) == ranks
