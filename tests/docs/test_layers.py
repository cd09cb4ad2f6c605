"""A lower layer never needs a higher one, and no modules need each other in a circle: see layers.py, which prints them.

MPI and Python stay at their boundaries. Read from the sources.
"""

import ast
import re
import sys

import layers
import pytest
from layers import NAME, ROOT, Reading

PACKAGE = ROOT / NAME
#: What imports without MPI and without a compiler: rooms, and modules of others.
PURE = ("schedules", "algorithms", "analysis", "selection", "files", "trace.spans", "trace.timeline", "trace.perfetto")
LIGHT = {"numpy", NAME}  # all that pure modules import besides the standard library
HEAVY = {"matplotlib", "sklearn", "torch", "jax", "jaxlib", "tqdm", "gymnasium"}
#: The rooms of csrc from the ground up.
C_LAYERS = [
    "base", "simulate", "kernels", "cuda", "heap", "transport", "schedule", "node", "progress", "hierarchy", "p2p",
    "xla",
]  # fmt: skip


@pytest.fixture(scope="module")
def reading() -> Reading:
    return Reading()


def files(reading):
    """Every Python file of the package, with its module."""
    for module, sources in reading.files.items():
        yield from ((module, file) for file in sources if file.suffix == ".py")


def imported(file, statements=None):
    """First names of what a file imports from elsewhere."""
    for node in statements or ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).split(".")[0]


def within(module, rooms):
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def test_every_module_has_a_layer(reading):
    assert {layers.level_of(module) for module in reading.files} == set(range(len(layers.LAYERS)))


def test_no_link_leads_up(reading):
    assert layers.upward(reading.links) == []


def test_no_circles(reading):
    assert layers.circles(reading.links) == []


def test_the_page_shows_the_layers(reading, capsys):
    assert layers.show(reading) == 0
    assert f"```\n{capsys.readouterr().out}```\n" in (ROOT / "docs/architecture.md").read_text()


def test_pure_modules_need_neither_mpi_nor_a_compiler(reading):
    for module, file in files(reading):
        if within(module, PURE):
            assert set(imported(file)) <= {*sys.stdlib_module_names, *LIGHT}, file
    for link in reading.links:
        if within(link.source, PURE):
            assert within(link.target, (*PURE, "errors", "trace")), link


def test_train_uses_public_names_only(reading):
    for link in reading.links:
        if within(link.source, ["train"]):
            assert within(link.target, ["train", "__init__", "files", "drawing"]), link


def test_rl_uses_public_names_of_train_only(reading):
    for link in reading.links:
        if within(link.source, ["rl"]) and within(link.target, ["train"]):
            assert link.target in ("train", "train.agree", "train.checkpoint"), link


def test_torch_is_imported_by_its_adaptors_only(reading):
    for module, file in files(reading):
        if not within(module, ["torch", "horovod", "train.torch", "rl.torch"]):
            assert "torch" not in imported(file), file


def test_jax_is_imported_by_its_package_only(reading):
    for module, file in files(reading):
        if not within(module, ["jax"]):
            assert not {"jax", "jaxlib"} & set(imported(file)), file


def test_imports_of_heavy_packages_are_lazy(reading):
    for module, file in files(reading):
        if not within(module, ["torch", "horovod", "train.torch", "rl.torch", "jax"]):
            assert not set(imported(file, ast.parse(file.read_text()).body)) & HEAVY, file


def test_only_the_transport_knows_mpi_and_nothing_in_c_knows_python():
    sources = [*ROOT.glob("csrc/*/*.[ch]")]
    assert len(sources) > 10
    for file in sources:
        included = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', file.read_text(), re.MULTILINE)
        assert "Python.h" not in included, file
        assert ("mpi.h" in included) == (file.name in ("mpi_transport.c", "mpi_requests.c")), file
        for room in (name.split("/")[0] for name in included if name.split("/")[0] in C_LAYERS and "/" in name):
            assert C_LAYERS.index(room) <= C_LAYERS.index(file.parent.name), f"{file} includes {room}"
