"""mpi4py's own tests of collectives, with this library's communicators in the place of mpi4py's.

    mpiexec -n 3 python tests/mpi/mpi4py_suite.py FOLDER [MODULE ...]

FOLDER has the tests of mpi4py's source distribution, of the version that runs. MPI.COMM_WORLD and MPI.COMM_SELF are
replaced before they are imported, so that every communicator they make is of ours too; all that is said is counts.
"""

import importlib
import sys
import unittest

from mpi4py import MPI

import collectives

MODULES = (
    "cco_buf", "cco_vec", "cco_nb_buf", "cco_nb_vec", "cco_pr_buf", "cco_pr_vec", "cco_obj", "cco_buf_inter",
    "cco_vec_inter", "cco_obj_inter",
)  # fmt: skip
used = {}  # how often each algorithm ran


def count_algorithms(method):
    """A method that begins a collective, noting which algorithm was chosen."""

    def noting(self, *args, **kwargs):
        draft, choice = method(self, *args, **kwargs)
        key = args[0].name, choice.algorithm.name
        used[key] = used.get(key, 0) + 1
        return draft, choice

    return noting


def main(folder, *modules):
    sys.path.insert(0, folder)
    collectives.Communicator._prepare = count_algorithms(collectives.Communicator._prepare)
    MPI.COMM_WORLD = world = collectives.Communicator(MPI.COMM_WORLD)
    MPI.COMM_SELF = collectives.Communicator(MPI.COMM_SELF)
    backends = importlib.import_module("arrayimpl").ArrayBackends
    backends[:] = [kind for kind in backends if "GPU" not in kind.__name__]  # memory of a GPU, as they say, is refused
    suite = unittest.TestSuite()
    for name in modules or MODULES:
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"test_{name}")))
    stream = sys.stderr if world.rank == 0 else open("/dev/null", "w")
    result = unittest.TextTestRunner(stream, verbosity=1, failfast=True).run(suite)
    if not result.wasSuccessful():
        for test, trace in [*result.failures, *result.errors]:
            print(f"rank {world.rank} of {world.size}, {test}:\n{trace}", file=sys.stderr, flush=True)
        MPI.Intracomm(world).Abort(1)
    if world.rank == 0:
        ours = sum(n for (_, algorithm), n in used.items() if algorithm != "mpi")
        print(f"{result.testsRun} tests, {len(result.skipped)} skipped, {ours} of {sum(used.values())} calls ours")
        print("handed over:", sorted(name for name, algorithm in used if algorithm == "mpi"))


main(*sys.argv[1:])
