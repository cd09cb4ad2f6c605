"""benchmarks/gpu.py says by its exit code whether results are right, and measures, on the stand-in for a GPU."""

import json

import pytest
import stand_in
from jobs import mpiexec

GPU = "benchmarks/gpu.py"
#: The program with the stand-in's kernels.
RIGHT = """
import sys
sys.path.insert(0, "benchmarks")
import stand_in, gpu, numpy
stand_in.use_kernels()
"""
RUN = "sys.exit(gpu.main())"
#: With another opinion of what a sum is.
WRONG = RIGHT + 'gpu.OPS["sum"] = gpu.MPI.SUM, numpy.maximum\n'


@pytest.fixture
def environment(stand_in_driver):
    return stand_in_driver


def test_without_a_gpu():
    done = mpiexec("openmpi", 2, GPU, "--check", env={stand_in.VARIABLE: "/nowhere.so"})
    assert done.returncode == 77, done
    assert "no GPU: NVIDIA's driver cannot be used: /nowhere.so" in done.stdout


@pytest.mark.slow
def test_right_results_and_figures(environment, tmp_path):
    file = tmp_path / "figures.json"
    done = mpiexec("openmpi", 2, "-c", RIGHT + RUN, "--mib", "8", "--json", str(file), env=environment)
    assert done.returncode == 0, done
    assert "all results are right" in done.stdout
    figures = json.loads(file.read_text())
    assert figures["wrong"] == []
    assert min(figures["seconds"].values()) > 0
    assert figures["shares"]["staging"] > 0
    assert figures["shares"]["peers"] > 0


@pytest.mark.slow
def test_wrong_results(environment):
    done = mpiexec("openmpi", 2, "-c", WRONG + RUN, "--check", env=environment)
    assert done.returncode == 1, done
    assert "allreduce sum of 1000 f4\n" in done.stdout
    assert "allreduce sum of 1000 f4 by staging" in done.stdout
