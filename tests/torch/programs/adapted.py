"""torch's own distributed tests, without what excludes a test for the name of the backend.

``torch/testing/_internal/distributed/distributed_test.py`` of the installed version is compiled with other decorators;
the tests themselves are not touched, but for a temporary file that rank 0 removes while others may still read it. What
comes off a test, and is noted in its attribute ``marked``:

* ``backend``: conditions on the backend's name. A test meant for NCCL or MPI then runs, on CPU memory.
* ``gpu``: demands for GPUs. The test runs with :func:`cpu_device.on_cpu` instead.
* ``linux``: PyTorch has switched the test off on Linux, by an issue of its own.
* ``worldsize``: ``skip_if_small_worldsize``, which asks for 8 ranks of every backend but MPI.

A test that then fails on Gloo proves nothing about another backend; one that passes on Gloo must pass on ours.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import sys
import types

import torch.distributed as dist
from cpu_device import on_cpu

SOURCE = "torch.testing._internal.distributed.distributed_test"
GPU = {"skip_if_no_gpu", "skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend"}


class CpuBackend(str):
    """A backend's name that equals ``gloo`` too: bodies of tests prepare CPU modules for that name only."""

    def __eq__(self, other):
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


def mark(decorator: ast.expr) -> str | None:
    """What a decorator excludes a test for, if it is to come off."""
    text = ast.unparse(decorator)
    name = text.split("(")[0]
    if name in GPU:
        return "gpu"
    if "BACKEND" in text or name == "require_backend_is_available":
        return "gpu" if "nccl'" in text and "!=" in text and "gloo" not in text and "mpi" not in text else "backend"
    if name == "unittest.skipIf" and "IS_LINUX" in text:
        return "linux"
    return "worldsize" if name == "skip_if_small_worldsize" else None


class Adapt(ast.NodeTransformer):
    """Takes decorators off tests, and writes ``@adapted(...)`` in their place, outermost; off their helpers too."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if node.name.startswith("test_"):
            found = [(decorator, mark(decorator)) for decorator in node.decorator_list]
            marks = sorted({what for _, what in found if what})
            new = ast.parse(f"adapted({marks!r})", mode="eval").body
            node.decorator_list = [ast.copy_location(new, node), *(kept for kept, what in found if not what)]
            ast.fix_missing_locations(node)
        elif node.name.startswith("_test_"):
            node.decorator_list = [decorator for decorator in node.decorator_list if not mark(decorator)]
        return node


def adapted(marks: list[str]):
    """Note what came off a test; let one that is marked for GPUs run on the CPU."""

    def decorate(test):
        @functools.wraps(test)
        def run(*args, **kwargs):
            if "gpu" not in marks:
                return test(*args, **kwargs)
            with on_cpu():
                return test(*args, **kwargs)

        run.marked = marks
        return run

    return decorate


def removed_after_all(rank_temp_file):
    """``_rank_temp_file``, whose file rank 0 removes when all ranks are done with it."""

    @contextlib.contextmanager
    def file():
        with rank_temp_file() as name:
            yield name
            dist.barrier()

    return file


def load(backend: str) -> types.ModuleType:
    """The module of tests for a backend; the environment has WORLD_SIZE, BACKEND and INIT_METHOD."""
    spec = importlib.util.find_spec(SOURCE)
    tree = Adapt().visit(ast.parse(spec.loader.get_source(SOURCE)))
    module = types.ModuleType(SOURCE)
    module.__file__ = spec.origin
    module.__dict__.update(adapted=adapted, __package__=SOURCE.rpartition(".")[0])
    sys.modules[SOURCE] = module  # objects of its classes are pickled
    exec(compile(tree, spec.origin, "exec", dont_inherit=True), module.__dict__)
    module.BACKEND = CpuBackend(backend)
    module._rank_temp_file = removed_after_all(module._rank_temp_file)
    return module
