r"""mpi4py's own tests, in a world that is of ours.

    mpiexec -n 3 python -m collectives run --replace-world \
        tests/communicator/programs/mpi4py_suite.py FOLDER COLLECTIVES|WORLD ...

FOLDER has the tests of mpi4py's source distribution, of the version that runs. Every communicator that they make of
MPI.COMM_WORLD is of ours too. The tests of DIFFERENCES must fail, all others pass; all that is said is counts.
"""

import importlib
import sys
import unittest

from mpi4py import MPI

import collectives

MODULES = {
    "COLLECTIVES": (
        "cco_buf", "cco_vec", "cco_nb_buf", "cco_nb_vec", "cco_pr_buf", "cco_pr_vec", "cco_obj", "cco_buf_inter",
        "cco_vec_inter", "cco_obj_inter",
    ),
    "WORLD": (  # what programs do with a world besides
        "attributes", "cco_ngh_buf", "cco_ngh_obj", "cco_pr_ngh_buf", "comm", "comm_inter", "comm_topo", "errhandler",
        "exceptions", "file", "group", "handle", "p2p_buf", "p2p_buf_matched", "p2p_buf_part", "p2p_obj",
        "p2p_obj_matched", "pickle", "request", "session", "status", "subclass", "threads", "ulfm", "util_pkl5",
        "util_sync", "win",
    ),
}  # fmt: skip
TOPOLOGIES = ("Cartcomm", "Distgraphcomm", "DistgraphcommAdjacent", "Graphcomm")
#: Tests, by the end of their names, of what is not as in mpi4py's world, and why.
DIFFERENCES = {
    "CommWorld.testPyProps": "comm.group is a class of ours, which can be called: a block of grouped calls",
    "CommWorldDup.testPyProps": "the same",
    "CommWorld.testPickle": "MPI.Intracomm(world) is found under no name; the world itself can be pickled",
    "P2PObjWorld.testCommLock": "mpi4py's locks for calls with objects are not ours: a Turn has their place",
    "P2PObjWorldDup.testCommLock": "the same",
    **{f"TopoWorld.test{kind}": "communicators with a topology are of our types" for kind in TOPOLOGIES},
    **{f"TopoWorldDup.test{kind}": "the same" for kind in TOPOLOGIES},
    "ULFMWorld.testRevoke": "on a revoked communicator our collectives raise CollectiveError, not MPI.Exception",
}
used = {}  # how often each algorithm ran


def count_algorithms(method):
    """A method that begins a collective, noting which algorithm was chosen."""

    def noting(self, *args, **kwargs):
        draft, choice = method(self, *args, **kwargs)
        key = args[0].name, choice.algorithm.name
        used[key] = used.get(key, 0) + 1
        return draft, choice

    return noting


def tests_of(suite):
    """The tests of a suite and of those in it."""
    for test in suite:
        yield from tests_of(test) if isinstance(test, unittest.TestSuite) else [test]


def main(folder, *kinds):
    sys.path.insert(0, folder)
    world = MPI.COMM_WORLD
    assert isinstance(world, collectives.Communicator), "not under --replace-world"
    collectives.Communicator._prepare = count_algorithms(collectives.Communicator._prepare)
    backends = importlib.import_module("arrayimpl").ArrayBackends
    backends[:] = [kind for kind in backends if "GPU" not in kind.__name__]  # memory of a GPU, as they say, is refused
    suite = unittest.TestSuite()
    for name in [name for kind in kinds for name in MODULES[kind]]:
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"test_{name}")))
    for test in tests_of(suite):
        if test.id().endswith(tuple(DIFFERENCES)):
            test.__unittest_expecting_failure__ = True  # what does not fail, then, is reported
    stream = sys.stderr if world.rank == 0 else open("/dev/null", "w")
    result = unittest.TextTestRunner(stream, verbosity=1, failfast=True).run(suite)
    if not result.wasSuccessful():
        unexpected = [(test, "differs no more") for test in result.unexpectedSuccesses]
        for test, trace in [*result.failures, *result.errors, *unexpected]:
            print(f"rank {world.rank} of {world.size}, {test}:\n{trace}", file=sys.stderr, flush=True)
        MPI.Intracomm(world).Abort(1)
    if world.rank == 0:
        ours = sum(n for (_, algorithm), n in used.items() if algorithm != "mpi")
        print(f"{result.testsRun} tests, {len(result.skipped)} skipped, {ours} of {sum(used.values())} calls ours")
        print("handed over:", sorted(name for name, algorithm in used if algorithm == "mpi"))


main(*sys.argv[1:])
