"""A lower layer never imports a higher one; MPI and Python stay at their boundaries. Read from the sources."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "collectives"

#: Modules of the package from the ground up; a module may import those of its own row and below.
LAYERS = [
    {"errors", "machine", "_core", "patterns", "spec", "records", "spans", "timeline"},
    {"schedule"},
    {"registry"},
    {"algorithms"},
    {"verify", "symbolic", "folds", "cost", "node_cost", "draw"},
    {"cost_model", "select", "tuning"},
    {"diagnosis"},
    {"mpilib", "deaths", "doors", "farewell", "inquiry", "datatypes", "lifetime"},
    {"leases", "reference", "heap", "clocks", "perfetto"},
    {"memory"},
    {"buffers", "vectors", "packing", "reproducible"},
    {
        "request",
        "context",
        "waiting",
        "watching",
        "giving_up",
        "departures",
        "ending",
        "making",
        "rehearsal",
        "telling",
        "turns",
        "bootstrap",
        "node",
        "trace",
        "settings",
        "limits",
        "watchdog",
        "flight",
        "plans",
        "letters",
        "mpiruns",
        "local",
    },
    {"calls"},
    {"checks", "movement", "reductions", "widening", "exchange"},
    {"operations", "later", "methods", "objects", "grouped", "derived"},
    {"communicator"},
    {"__init__"},
    {"torch", "train"},
    {"horovod"},
    {"cli", "info", "launch", "bench", "curves", "plot", "tune", "trace_report", "trace_picture", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PURE = {
    "patterns",
    "spec",
    "records",
    "schedule",
    "registry",
    "algorithms",
    "verify",
    "symbolic",
    "folds",
    "cost",
    "cost_model",
    "node_cost",
    "draw",
    "select",
    "spans",
    "timeline",
    "perfetto",
    "tuning",
}
LIGHT = {"numpy", "collectives"}  # all that pure modules import besides the standard library


def modules():
    """Every Python file of the package: the name of its layer, and the file."""
    for file in sorted(PACKAGE.rglob("*.py")):
        yield file.relative_to(PACKAGE).parts[0].removesuffix(".py"), file


def imports(file, *, typing=False):
    """Absolute names of what a file imports; what only type checkers read is left out unless asked for."""
    tree = ast.parse(file.read_text())
    hidden = set()
    if not typing:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                hidden.update(id(inner) for statement in node.body for inner in ast.walk(statement))
    package = ("collectives", *file.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            target = ".".join(filter(None, (base, node.module)))
            yield from (f"{target}.{name.name}" for name in node.names)


def layer_of(name):
    """The layer of ``collectives.x.y``, None for what is not of the package."""
    parts = name.split(".")
    if parts[0] != "collectives":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LEVEL else "__init__"


def test_every_module_has_a_layer():
    assert {layer for layer, _ in modules()} | {"_core"} == set(LEVEL)


@pytest.mark.parametrize(("layer", "file"), list(modules()), ids=lambda x: x if isinstance(x, str) else x.stem)
def test_no_import_from_above(layer, file):
    if layer == "__init__":  # the front door: loads what it names when it is asked for
        return
    for name in imports(file):
        other = layer_of(name)
        if other is not None and not (file.parent.name == "algorithms" and other == "__init__"):
            assert LEVEL[other] <= LEVEL[layer], f"{file.name} imports {name}"


def test_pure_modules_need_neither_mpi_nor_a_compiler():
    for layer, file in modules():
        if layer in PURE:
            for name in imports(file):
                assert "_core" not in name.split("."), f"{file.name} imports {name}"
                top = name.split(".")[0]
                assert top in LIGHT or top in __import__("sys").stdlib_module_names, f"{file.name} imports {name}"
                assert layer_of(name) in PURE | {None, "errors", "__init__"}, f"{file.name} imports {name}"


def test_train_uses_public_names_only():
    for layer, file in modules():
        if layer == "train":
            for name in imports(file, typing=True):
                parts = name.split(".")
                if parts[0] == "collectives":
                    assert len(parts) == 1 or parts[1] == "train" or not parts[1].startswith("_"), f"{file}: {name}"
                    assert layer_of(name) in ("train", "__init__"), f"{file} imports {name}"


def test_torch_is_imported_by_its_adaptors_only():
    for layer, file in modules():
        if layer not in ("torch", "horovod") and file.relative_to(PACKAGE).as_posix() != "train/torch.py":
            assert not any(name.split(".")[0] == "torch" for name in imports(file, typing=True)), file


def test_imports_of_heavy_packages_are_lazy():
    """matplotlib, sklearn, torch, tqdm: only inside functions."""
    for layer, file in modules():
        for node in ast.parse(file.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            if layer not in ("torch", "horovod") and file.name != "torch.py":
                assert not {n.split(".")[0] for n in names} & {"matplotlib", "sklearn", "torch", "tqdm", "gymnasium"}, (
                    file
                )


def c_files():
    return [*ROOT.glob("csrc/**/*.c"), *ROOT.glob("csrc/**/*.h")]


def test_only_the_transport_knows_mpi_and_nothing_in_c_knows_python():
    assert len(c_files()) > 10
    for file in c_files():
        included = set(re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', file.read_text(), re.MULTILINE))
        assert "Python.h" not in included, file
        assert ("mpi.h" in included) == (file.name == "transport_mpi.c"), file
