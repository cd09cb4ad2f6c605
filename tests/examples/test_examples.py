"""The programs in examples/ run on four ranks, compare themselves with one process, and draw their pictures."""

import ast
import re

import numpy as np
import pytest
from jobs import ROOT, mpiexec
from matplotlib.image import imread

EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs/examples.md").read_text()
DRAWING = ("poisson", "kmeans", "fft_transpose", "train_three_strategies", "adding_an_algorithm")


def without_numbers(text):
    """What is printed on any machine: a sum's last bits, and so a number of steps, may differ."""
    return re.sub(r"\d+(\.\d+)?", "N", text)


def shown(name):
    """What the page says that an example prints: the block after its command."""
    return re.search(
        rf"^mpiexec -n 4 python examples/{name}\.py.*?```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
    )[1]


def docstring(name):
    return ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text()))


@pytest.mark.long("train_three_strategies")
@pytest.mark.parametrize("name", DRAWING)
def test_example(name, tmp_path):
    done = mpiexec("openmpi", 4, f"examples/{name}.py", "--out", str(tmp_path), timeout=60)
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines(keepends=True) if not line.startswith("train ")]
    assert without_numbers("".join(printed)) == without_numbers(shown(name))
    (picture,) = tmp_path.iterdir()
    assert f"out/{picture.name}" in docstring(name)
    if picture.suffix == ".png":
        values = imread(picture)
        assert min(values.shape[:2]) > 300
        assert values[..., :3].std() > 0.05  # it is not empty
        assert np.median(values[..., :3]) > 0.9 or name == "poisson"  # on a light ground
    else:
        assert picture.read_text().count("<line") > 20


def test_ranks_without_rows():
    done = mpiexec("openmpi", 4, "examples/fft_transpose.py", "--shape", "3", "2", timeout=60)
    assert done.returncode == 0, done.stderr
    assert "the spectrum of one process" in done.stdout


def test_on_mpich():
    done = mpiexec("mpich", 4, "examples/kmeans.py", timeout=60)
    assert done.returncode == 0, done.stderr
    assert without_numbers(done.stdout) == without_numbers(shown("kmeans"))


def test_cupy():
    """Without CuPy the example does nothing, says so, and why."""
    done = mpiexec("openmpi", 2, "examples/cupy_allreduce.py", timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "This example did nothing, on 2 of 2 ranks because CuPy is not installed.\n"


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_every_example_is_short_and_on_the_page(name):
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    assert len(lines) <= 90 or name == "pitfalls"
    ranks = {"errors": 3, "jax_regression": 2}.get(name, 4)
    assert f"mpiexec -n {ranks} python examples/{name}.py" in docstring(name)
    assert f"examples/{name}.py" in PAGE


def test_pictures_of_the_page():
    """Each exists, and they are small together."""
    pictures = re.findall(r'src="(img/[\w.-]+)"', PAGE)
    assert len(set(pictures)) >= 7
    assert sum((ROOT / "docs" / picture).stat().st_size for picture in pictures) < 400_000
