"""The type stubs of the compiled core say what is there, and every public object says what it is for."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import collectives
from collectives import communicator
from collectives.core import _core, _cuda

MODULES = (_core, _cuda)
HERE = [module.__name__ for module in MODULES]


def compiled(scope):
    """Public names that Cython made in the module or a class; special methods other than inherited ones too."""
    names = set()
    for name, value in vars(scope).items():
        own = getattr(value, "__module__", None) in [
            module.__name__ for module in MODULES
        ] or inspect.isgetsetdescriptor(value)
        data = isinstance(value, tuple | int)
        method = inspect.isroutine(value) and scope not in MODULES
        if not name.startswith("_") and (own or data or method):
            names.add(name)
    return names


def written(body):
    """Names of a module or a class in the stub, with the syntax tree of each."""
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = node
    return found


def parameters(function):
    """Names of a stub's parameters, and which of them may be left out."""
    plain = [argument.arg for argument in function.args.args]
    optional = plain[len(plain) - len(function.args.defaults) :] if function.args.defaults else []
    return plain, optional


def embedded(doc):
    """The same from the signature that Cython puts first in a docstring: ``name(int a, list b=None)``."""
    inside = re.match(r"[\w.]+\((.*?)\)(?: *->.*)?$", doc.split("\n")[0]).group(1)
    words = [part.strip().removesuffix(" not None") for part in inside.split(",") if part.strip()]
    names = [word.partition("=")[0].split()[-1] for word in words]
    return names, [name for name, word in zip(names, words, strict=True) if "=" in word]


STUBS = {
    module: written(
        ast.parse(Path(module.__file__).with_name(module.__name__.rpartition(".")[2] + ".pyi").read_text()).body
    )
    for module in MODULES
}
NAMES = {name: node for stub in STUBS.values() for name, node in stub.items()}
HOME = {name: module for module, stub in STUBS.items() for name in stub}
ERRORS = {"CudaError", "GivenUpError", "MismatchError", "OpError"}  # Python's own constructors
CLASSES = sorted(name for name, node in NAMES.items() if isinstance(node, ast.ClassDef) and name not in ERRORS)
FUNCTIONS = sorted(name for name, node in NAMES.items() if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_stub_has_the_names_of_the_module(module):
    assert set(STUBS[module]) == compiled(module)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_what_the_stub_says(name):
    assert parameters(NAMES[name]) == embedded(getattr(HOME[name], name).__doc__)


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_as_the_stub_says(name):
    made, said = getattr(HOME[name], name), written(NAMES[name].body)
    special = {"__init__", "__contains__", "__buffer__"}
    assert set(said) - special == compiled(made)
    for method, node in said.items():
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or method in special:
            continue
        assert parameters(node) == embedded(getattr(made, method).__doc__), f"{name}.{method}"


@pytest.mark.parametrize("name", CLASSES)
def test_constructors_take_what_the_stub_says(name):
    """By the source: the compiled class does not know the signature of its constructor."""
    source = "".join(file.read_text() for file in sorted(Path(_core.__file__).parent.glob("*.p[yx][xi]")))
    body = re.search(rf"^cdef class {name}(?:\(\w+\))?:\n(.*?)(?=^\S|\Z)", source, re.DOTALL | re.MULTILINE).group(1)
    maker = re.search(r"def (__c?init__\(self.*?\)):\n", body, re.DOTALL)
    said = written(NAMES[name].body).get("__init__")
    if maker is None:
        assert said is None
    else:
        assert parameters(said) == embedded(" ".join(maker.group(1).split()))


def public_objects():
    """What users meet: the package's names, what they offer, and what the core offers to the package."""
    for name in collectives.__all__:
        yield name, getattr(collectives, name)
    owners = [getattr(communicator, name) for name in communicator.__all__]
    owners += [getattr(HOME[name], name) for name in CLASSES]
    for owner in owners:
        yield owner.__name__, owner
        for name, value in vars(owner).items():
            if not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                yield f"{owner.__name__}.{name}", value
    for name in FUNCTIONS:
        yield f"_core.{name}", getattr(HOME[name], name)


@pytest.mark.parametrize(("name", "value"), [pytest.param(*item, id=item[0]) for item in public_objects()])
def test_public_objects_have_docstrings(name, value):
    documented = value if inspect.isroutine(value) or isinstance(value, type | property) else type(value)
    lines = (documented.__doc__ or "").strip().splitlines()
    if lines and re.match(r"[\w.]+\(.*\)", lines[0]):  # Cython's signature
        lines = lines[1:]
    assert any(line.strip() for line in lines), f"{name} has no docstring"
