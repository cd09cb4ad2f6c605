"""Instruction sets: their choice, what depends on them on real ranks, and that no kernel leaves its buffers."""

import subprocess

import kernel_lib
import pytest
from jobs import mpiexec

from collectives.core import _core

SETS = [name for name in ("baseline", "avx2", "avx512") if _core.isa_supported(name)]


#: All other tests run on the last.
OTHERS = SETS[:-1] or SETS


@pytest.mark.parametrize("isa", [n if n in OTHERS else pytest.param(n, marks=pytest.mark.slow) for n in SETS])
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


def test_isa_selection(kernels, monkeypatch):
    """By name, by environment, and unchanged after a name that is unknown."""
    lib = kernels.lib
    assert lib.coll_isa_supported(b"baseline")
    assert not lib.coll_isa_supported(b"mmx")

    def select(name):
        return lib.coll_isa_select(name), lib.coll_isa().decode()

    assert select(b"baseline") == (0, "baseline")
    assert select(b"mmx") == (-1, "baseline")
    monkeypatch.delenv("COLLECTIVES_ISA", raising=False)
    assert select(None) == (0, kernels.isas()[-1])
    monkeypatch.setenv("COLLECTIVES_ISA", "baseline")
    assert select(None) == (0, "baseline")
    monkeypatch.setenv("COLLECTIVES_ISA", "mmx")
    assert select(None) == (-1, "baseline")


@pytest.mark.slow
def test_sanitizers(tmp_path):
    """No access outside buffers and no undefined behaviour in any kernel."""
    flags = ["-O1", "-std=c11", "-ffp-contract=off"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    program, empty = tmp_path / "check_kernels", tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    probe = [kernel_lib.compiler(), *sanitize, "-o", program]
    if subprocess.run([*probe, empty], capture_output=True).returncode:
        pytest.skip("the compiler has no sanitizers")
    source = kernel_lib.ROOT / "tests" / "csrc" / "check_kernels.c"
    objects = kernel_lib.compile_all(tmp_path, [*kernel_lib.SOURCES, source], flags + sanitize)
    subprocess.run([*probe, *objects], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
