"""DistributedDataParallel under torch's distributed autograd: torch's tests of it, on any backend.

    mpiexec -n 6 python tests/torch/programs/autograd.py BACKEND FOLDER TEST

``torch/testing/_internal/distributed/ddp_under_dist_autograd_test.py`` makes its groups with Gloo by name; another name
is put there. Remote calls are torch's own, which a process can begin once. 4 ranks run the tests that compare, 6 those
with a master and a remote worker.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import traceback
import types

from ranks import RANK, SIZE

SOURCE = "torch.testing._internal.distributed.ddp_under_dist_autograd_test"


def load(backend: str) -> types.ModuleType:
    """The module of tests, with another backend for its groups."""
    spec = importlib.util.find_spec(SOURCE)
    tree, found = ast.parse(spec.loader.get_source(SOURCE)), 0
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "backend" and ast.unparse(node.value) == "'gloo'":
            node.value, found = ast.copy_location(ast.Constant(backend), node.value), found + 1
    assert found >= 6, "the tests name no backend any more"
    module = types.ModuleType(SOURCE)
    module.__package__ = SOURCE.rpartition(".")[0]
    sys.modules[SOURCE] = module  # what remote calls name is looked up by name
    exec(compile(tree, spec.origin, "exec", dont_inherit=True), module.__dict__)
    return module


def main() -> None:
    """Run a test; a rank that fails ends the job."""
    backend, folder, name = sys.argv[1:]
    if backend == "collectives":
        import collectives.torch  # noqa: F401
    from torch.testing._internal.common_utils import TestCase
    from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture

    # Without the barrier a remote call may reach a rank that has not made its group yet, with any backend.
    os.environ.update(MASTER_ADDR="127.0.0.1", TORCH_DIST_INIT_BARRIER="1")
    module = load(backend)
    tests = {4: module.DdpComparisonTest, 6: module.DdpUnderDistAutogradTest}[SIZE]
    case = type("Tests", (TestCase, TensorPipeRpcAgentTestFixture, tests), {"rank": RANK})
    instance = case(name)
    instance.file_name = f"{folder}/{name}"
    try:
        getattr(instance, name)()
    except BaseException:
        sys.stderr.write(f"--- rank {RANK} of {SIZE}, {backend}, {name}:\n{traceback.format_exc()}\n")
        sys.stderr.flush()
        os._exit(1)
    if RANK == 0:
        print(f"{name} passed", flush=True)


if __name__ == "__main__":
    main()
