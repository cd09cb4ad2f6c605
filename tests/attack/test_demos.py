"""mpi4py's demos, unmodified, under `run --replace-world`: they end well and print what they print on mpi4py alone."""

import functools
import re

import pytest
from jobs import ROOT, mpiexec

DEMOS = (ROOT / ".venvs/mpi4py-tests/demo").resolve()
RUN = ("-m", "collectives", "run", "--replace-world")
WITH_INPUT = (
    "import io, runpy, sys; sys.stdin = io.StringIO('100\\n'); runpy.run_path(sys.argv[1], run_name='__main__')"
)

#: Ranks and arguments of each demo that runs; the first ones run in `make test`.
QUICK = {"compute-pi/cpi-cco.py": (3, [])}
SLOW = {
    "reductions/test_reductions.py": (5, ["-q"]), "sequential/test_seq.py": (5, []),
    "helloworld.py": (3, []), "compute-pi/cpi-rma.py": (3, []), "init-fini/test_0.py": (2, []),
    "mandelbrot/mandelbrot.py": (3, []), "mandelbrot/mandelbrot-seq.py": (1, []), "test-run/run-script.py": (2, []),
    "threads/sendrecv.py": (1, []), **{f"profiling/{name}.py": (3, []) for name in ("cpi", "ring", "threads")},
    **{f"nxtval/nxtval-{name}.py": (3, []) for name in ("threads", "dynproc", "onesided", "scalable")},
    **{f"futures/run_{name}.py": (3, []) for name in ("cpi", "hello", "primes", "julia", "mandelbrot")},
    **{f"mpi-ref-v1/ex-2.{n}.py": (2, []) for n in ("01", "08", "16", "29", "32", "34", "35")},
    **{f"mpi-ref-v1/ex-3.{n:02}.py": (2, []) for n in (*range(1, 10), 11, 12, 13)},
    **{f"osu_{name}.py": (2, []) for name in (
        "allgather", "alltoall", "alltoallv", "barrier", "bcast", "bibw", "bw", "gather", "latency", "multi_lat",
        "scatter",
    )},
}  # fmt: skip
TIMES = ("osu_", "mandelbrot/", "futures/run_julia", "futures/run_mandelbrot", "reductions/")  # what they print differs
ANY_ORDER = "compute-pi/cpi-rma.py"  # adds up numbers below 4 by Accumulate, in the order in which ranks come

#: Demos that do not run here, by the begin of their names.
LEFT_OUT = {
    "compute-pi/cpi-dpm.py": "spawns processes, whose world is not replaced",
    "cuda-aware-mpi/": "needs a GPU",
    "futures/perf_": "measures pools without end",
    "futures/run_crawl.py": "reads pages of the Internet",
    "futures/test_": "tests mpi4py.futures by spawning; programs/third/futures.py runs its pools",
    "init-fini/test_": "needs MPI not to be initialized before it, as it is under --replace-world",
    "libmpi-cffi/": "needs a module compiled by cffi, which reaches MPI without mpi4py",
    "mandelbrot/mandelbrot-master.py": "spawns a worker written in Fortran",
    "nxtval/nxtval-mpi3.py": "fails on Open MPI without this library, too",
    "reductions/reductions.py": "a module of test_reductions.py",
    "sequential/seq.py": "a module of test_seq.py",
    "spawning/": "spawns processes, whose world is not replaced",
    "test-run/test_run.py": "starts mpi4py.run, in the place of our run",
    "wrap-": "needs a compiled module",
}


def reason(demo):
    """Why a demo is left out, or None."""
    return next((why for begin, why in LEFT_OUT.items() if demo.startswith(begin)), None)


def without_times(demo, output):
    """What a demo printed, as lines in any order; of a demo that prints times with all numbers the same."""
    lines = sorted(output.splitlines())
    if demo.startswith(TIMES):
        return [re.sub(r"[\d.]+(e[+-]\d+)?", "#", " ".join(line.split())) for line in lines]
    return lines


def words_and_numbers(lines, number):
    """The lines, each cut into words and decimal fractions, these given to `number`."""
    pieces = [re.split(r"(\d+\.\d+(?:e[+-]\d+)?)", line) for line in lines]
    return [[number(float(piece)) if at % 2 else piece for at, piece in enumerate(line)] for line in pieces]


@pytest.mark.parametrize("demo", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_prints_what_it_does_on_mpi4py(tally, demo):
    ranks, arguments = {**QUICK, **SLOW}[demo]
    command = [str(DEMOS / demo), *arguments]
    if demo.startswith("compute-pi/"):
        command = ["-c", WITH_INPUT, *command]
    if demo.startswith("futures/run_") and demo not in ("futures/run_julia.py", "futures/run_mandelbrot.py"):
        command = ["-m", "mpi4py.futures", *command]
    folder = ("--wdir", str((DEMOS / demo).parent))
    printed = []
    for prefix in ((), RUN):
        done = mpiexec("openmpi", ranks, *prefix, *command, timeout=300, flags=folder, env={"MPLBACKEND": "agg"})
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append(without_times(demo, done.stdout))
    tally.trials += 1
    if demo == ANY_ORDER:
        but_for_rounding = functools.partial(pytest.approx, rel=0, abs=1e-14)
        printed = [words_and_numbers(printed[0], but_for_rounding), words_and_numbers(printed[1], float)]
    assert printed[1] == printed[0]


def test_every_demo_runs_or_is_known_not_to():
    demos = {str(file.relative_to(DEMOS)) for file in DEMOS.rglob("*.py")}
    run = {*QUICK, *SLOW}
    assert len(demos) > 70
    assert run <= demos
    assert {demo for demo in demos - run if reason(demo) is None} == set()
    assert {begin for begin in LEFT_OUT if not any(d.startswith(begin) for d in demos - run)} == set()
