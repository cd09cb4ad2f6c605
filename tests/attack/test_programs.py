"""Programs of others, unmodified, under `run --replace-world`: what they print is what they print on mpi4py alone."""

import pytest
from jobs import ROOT, mpiexec

THIRD = ROOT / "tests/attack/programs/third"
RUN = ("-m", "collectives", "run")
PROGRAMS = [
    (str(THIRD / "pools.py"),),
    (str(THIRD / "futures.py"), "executor"),
    ("-m", "mpi4py.futures", str(THIRD / "futures.py"), "pool"),
    (str(THIRD / "fft.py"),),
]


@pytest.mark.quick("pool-3", "mpi4py-fft-3")
@pytest.mark.parametrize("ranks", [3, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("program", PROGRAMS, ids=["emcee in schwimmbad", "executor", "pool", "mpi4py-fft"])
def test_prints_what_it_does_on_mpi4py(tally, program, ranks):
    (fftw,) = (ROOT / ".venvs/programs/lib").glob("python3*/site-packages/pyfftw.libs")  # mpi4py-fft is linked to it
    lines = {}
    for world, command in (("Intracomm", program), ("Communicator", (*RUN, "--replace-world", *program))):
        done = mpiexec("programs", ranks, *command, timeout=60, env={"LD_LIBRARY_PATH": str(fftw)})
        assert done.returncode == 0, done.stdout + done.stderr
        lines[world] = [line.removeprefix(f"{world}: ") for line in done.stdout.splitlines()]
        assert f"{world}: " in done.stdout
    tally.trials += len(lines["Intracomm"])
    assert lines["Communicator"] == lines["Intracomm"]
