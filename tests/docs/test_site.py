"""The site of docs/: every page has its place, and so has every public name. `make docs` checks links and anchors."""

import importlib.util
import re
import subprocess

import pytest
from jobs import ROOT

from collectives.arguments.calls import COLLECTIVES

SPEC = importlib.util.spec_from_file_location("hooks", ROOT / "packaging/site/hooks.py")
SITE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SITE)
CONFIG = (ROOT / "mkdocs.yml").read_text()
PLACED = re.findall(r"^      - (?:.*: )?(\S+\.md)$", CONFIG.split("\nnav:\n")[1], re.MULTILINE)
MODULES = [name for _, _, names in SITE.REFERENCE.values() for name in names if name not in SITE.ALONE]
READY = ROOT / ".venvs/docs/ready"


def test_every_page_has_its_place_once():
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    made = ["reference/index.md", "reference/commands.md", *(f"reference/{name}.md" for name in SITE.REFERENCE)]
    assert sorted(PLACED) == sorted([*pages, *SITE.ROOT_PAGES.values(), *made])


def test_the_readme_lists_every_page():
    listed = re.findall(r"\]\(docs/([\w-]+\.md)\)", (ROOT / "README.md").read_text().split("## Documentation\n")[1])
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("module", ["collectives", "collectives.train", "collectives.rl", "collectives.communicator"])
def test_names_that_are_found_are_those_of_the_module(module):
    assert SITE.public_names(module) == [f"{module}.{name}" for name in importlib.import_module(module).__all__]
    assert module in MODULES


def test_modules_of_programs_on_pages_are_in_the_reference():
    texts = [path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    used = {name for text in texts for name in re.findall(r"^(?:from|import) (collectives\S*)", text, re.MULTILINE)}
    assert len(used) > 10
    assert used <= set(MODULES)


@pytest.mark.parametrize(
    ("text", "on_the_site"),
    [
        ("[a](other.md#b)", "[a](other.md#b)"),
        ("[gpu.md](gpu.md#tests)", "[Arrays on GPUs](gpu.md#tests)"),
        ("[a](../README.md#install)", "[a](index.md#install)"),
        ("[a](../Makefile)", "a (`Makefile`)"),
        ("[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
        ("x[i](y)", "x[i](y)"),
    ],
)
def test_links(text, on_the_site):
    assert SITE.LINK.sub(lambda match: SITE.link_of_site(match, "docs"), text) == on_the_site


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there">1</a><a href="b.html#away">2</a><img src="c.svg">')
    text = '<h2 id="there"></h2><a href="https://example.org">3</a><a href="a.html">4</a><script src="https://x.org/y">'
    (tmp_path / "b.html").write_text(text)
    assert sorted(SITE.broken_links(tmp_path)) == [
        "a.html: b.html#away", "a.html: c.svg", "b.html: https://x.org/y is fetched",
    ]  # fmt: skip


@pytest.mark.slow
def test_make_docs():
    """It warns of names that the reference has not, of links and of anchors; a warning is an error."""
    if not READY.exists():
        pytest.skip("there is no .venvs/docs, which make docs makes")
    done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = SITE.described(ROOT / "out/site")
    assert {"collectives.Communicator", "collectives.train.distribute"} <= found
    methods = [name for c in COLLECTIVES.values() for name in (c.method, f"I{c.name}", f"{c.method}_init")]
    own = ["allreduce", "ibcast", "empty", "zeros", "full", "share", "explain", "last", "timeout", "shrink", "trace"]
    assert {f"collectives.Communicator.{name}" for name in (*methods, *own)} <= found
