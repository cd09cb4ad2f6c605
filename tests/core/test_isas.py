"""What depends on the instruction set, through the engine on real ranks: on each set that this processor has."""

import pytest
from jobs import mpiexec

from collectives.core import _core

SETS = [name for name in ("baseline", "avx2", "avx512") if _core.isa_supported(name)]


@pytest.mark.parametrize("isa", SETS)
def test_every_type_and_op(isa, record_property):
    """On all algorithms; and the engine itself on arrays that begin at any byte."""
    variables = {"COLLECTIVES_ISA": isa, "PYTHONPATH": "tests/support:."}
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/mpi/test_allreduce.py", "-k", "every_type_and_op")
    done = mpiexec("openmpi", 3, *command, timeout=300, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    assert "1 passed" in done.stdout
    done = mpiexec("openmpi", 2, "tests/attack/programs/unaligned.py", "30", timeout=300, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    assert done.stdout.count(" trials, 0 wrong") == 2
    record_property("instruction set", isa)
