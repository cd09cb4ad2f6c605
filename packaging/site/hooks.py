"""What the site has beside the pages of docs/: files of the project's root, pages of the API, and a check of it all."""

from __future__ import annotations

import ast
import logging
import os
import posixpath
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

ROOT = Path(__file__).resolve().parents[2]
LOG = logging.getLogger("mkdocs.hooks")
#: Files of the root, and the pages that they are.
ROOT_PAGES = {
    "README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}  # fmt: skip
#: Pages of the API: title, an introduction, and modules, all of whose public names are on the page.
REFERENCE: dict[str, tuple[str, str, list[str]]] = {
    "collectives": (
        "collectives",
        "[`collectives.Communicator`](communicator.md) has a page of its own.",
        ["collectives"],
    ),
    "communicator": (
        "Communicators",
        "The collectives of `collectives.Communicator` have mpi4py's parameters and [options](../calls.md#options) of "
        "this library. All other methods are mpi4py's.",
        ["collectives.Communicator", "collectives.communicator"],
    ),
    "train": ("collectives.train", "", ["collectives.train"]),
    "train_parts": (
        "Parts of collectives.train",
        "Modules within `collectives.train`.",
        [
            "collectives.train.checkpoint", "collectives.train.tensor", "collectives.train.threads",
            "collectives.train.optim.schedules", "collectives.train.strategies.graphs",
            "collectives.train.strategies.pattern", "collectives.train.pipeline.registry",
            "collectives.train.pipeline.lowering", "collectives.train.pipeline.proof",
            "collectives.train.pipeline.replay", "collectives.train.torch.tensor",
            "collectives.train.torch.transformer",
        ],
    ),
    "torch": ("collectives.torch", "", ["collectives.torch"]),
    "jax": ("collectives.jax", "", ["collectives.jax"]),
    "horovod": ("collectives.horovod", "", ["collectives.horovod"]),
    "rl": ("collectives.rl", "", ["collectives.rl"]),
    "schedules": (
        "Schedules, proofs and models",
        "What algorithms are written with, and what is computed from them without MPI.",
        [
            "collectives.schedules.registry", "collectives.schedules.schedule", "collectives.schedules.patterns",
            "collectives.analysis.verify", "collectives.analysis.cost", "collectives.analysis.draw",
            "collectives.simulation.simulate",
        ],
    ),
    "bench": ("Parts of benchmarks", "", ["collectives.bench.timing", "collectives.bench.workloads"]),
}  # fmt: skip
#: Public names that are on a page by themselves, and not in their module; with the base classes' methods.
ALONE = ["collectives.Communicator"]
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)|src=\"([^\"]+)\"")


def page_of_modules(name: str) -> str:
    """The text of a page of the API."""
    title, introduction, modules = REFERENCE[name]
    parts = [f"# {title}", introduction, *(directive(module) for module in modules)]
    return "\n\n".join(part for part in parts if part) + "\n"


def directive(name: str) -> str:
    """What puts a module, or one of ALONE, on a page."""
    if name in ALONE:
        return f"::: {name}\n    options: {{inherited_members: true}}"
    alone = {each.rpartition(".")[2] for each in ALONE}
    members = [each.rpartition(".")[2] for each in public_names(name)]
    return f"::: {name}\n    options: {{members: {[each for each in members if each not in alone]}}}"


def index_of_modules() -> str:
    """The text of the page that lists the pages of the API."""
    rows = [
        f"| [{title}]({name}.md) | {', '.join(f'`{module}`' for module in modules)} |"
        for name, (title, _, modules) in REFERENCE.items()
    ]
    head = "# Reference\n\nMade from the docstrings.\n\n| page | modules |\n|---|---|\n"
    return head + "\n".join([*rows, "| [Commands](commands.md) | `python -m collectives` |", ""])


def page_of_commands() -> str:
    """The text of the page with the help of every command, as the commands print it."""
    run = [sys.executable, "-m", "collectives"]
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    parts = ["# Commands\n\nWhat `python -m collectives COMMAND -h` prints.\n"]
    for name in re.findall(r"^    (\w+)  ", shown([*run, "-h"], environment), re.MULTILINE):
        parts.append(f"## {name}\n\n```text\n{shown([*run, name, '-h'], environment).strip()}\n```\n")
    return "\n".join(parts)


def shown(command: list[str], environment: dict[str, str]) -> str:
    """What a command prints."""
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def public_names(module: str) -> list[str]:
    """What a module exports, as full names, without running it: ``__all__``, else its public functions and classes."""
    base = ROOT.joinpath(*module.split("."))
    body = ast.parse((base / "__init__.py" if base.is_dir() else base.with_suffix(".py")).read_text()).body
    assigned = {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}
    if "__all__" in assigned:
        return [f"{module}.{name}" for name in ast.literal_eval(assigned["__all__"])]
    defined = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return [f"{module}.{name}" for name in defined if not name.startswith("_")]


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File

    made = {page: (ROOT / name).read_text() for name, page in ROOT_PAGES.items()}
    made |= {f"reference/{name}.md": page_of_modules(name) for name in REFERENCE}
    made |= {"reference/index.md": index_of_modules(), "reference/commands.md": page_of_commands()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that hold in the repository, as links of the site; of one to a file that is no page, the name stays."""
    folder = "" if page.file.src_uri in ROOT_PAGES.values() else "docs"
    return LINK.sub(lambda match: link_of_site(match, folder), markdown)


def link_of_site(match: re.Match[str], folder: str) -> str:
    """A link or picture of a page in ``folder`` of the repository, for the site."""
    text, link, picture = match.groups()
    target, anchor = urldefrag(link or picture)
    path = posixpath.normpath(posixpath.join(folder, target))
    if not target or urlsplit(target).scheme or not (ROOT / path).exists():
        return match[0]
    there = ROOT_PAGES.get(path) or path.removeprefix("docs/")
    if picture:
        return f'src="{there}"'
    if path in ROOT_PAGES or path.startswith("docs/"):
        shown = title_of(path) if text.endswith(".md") else text
        return f"[{shown}]({there}{'#' * bool(anchor)}{anchor})"
    return text if text == path else f"{text} (`{path}`)"


def title_of(path: str) -> str:
    """The title of a page, which the site shows in place of its file's name."""
    return (ROOT / path).read_text().partition("\n")[0].removeprefix("# ")


class Links(HTMLParser):
    """What a page of the site refers to, what a browser would fetch to show it, and the names of its places."""

    def __init__(self, text: str):
        super().__init__()
        self.targets: set[str] = set()
        self.names: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect both from a tag."""
        found = dict(attrs)
        self.names |= {value for name in ("id", "name") if (value := found.get(name))}
        self.targets |= {value for name in ("href", "src") if (value := found.get(name))}
        shown = found.get("src") or (found.get("href") if tag == "link" else None) or ""
        self.fetched |= {shown} if urlsplit(shown).scheme.startswith("http") else set()


def broken_links(site: Path) -> list[str]:
    """Links within the site that lead nowhere, or to no such place on a page; and what would come by the network."""
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    wrong = []
    for path, page in pages.items():
        wrong += [f"{path.relative_to(site)}: {address} is fetched" for address in sorted(page.fetched)]
        for target in sorted(page.targets):
            address, anchor = urldefrag(target)
            if urlsplit(address).scheme or path.name == "404.html":
                continue
            there = (path.parent / unquote(address)).resolve() if address else path
            if not there.exists() or (anchor and there in pages and unquote(anchor) not in pages[there].names):
                wrong.append(f"{path.relative_to(site)}: {target}")
    return wrong


def described(site: Path) -> set[str]:
    """The names that the pages of the API describe, from the inventory of the site."""
    data = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(data).decode().splitlines()}


def on_post_build(config: Any) -> None:
    """Warn of links that are broken, and of public names that no page describes; make docs then fails."""
    site = Path(config.site_dir)
    for link in broken_links(site):
        LOG.warning("broken link: %s", link)
    pages = [name for _, _, names in REFERENCE.values() for name in names]
    modules = [name for name in pages if name not in ALONE]
    wanted = {name for module in modules for name in public_names(module)} - {"collectives.communicator.Communicator"}
    for name in sorted({*ALONE, *wanted} - described(site)):
        LOG.warning("not in the reference: %s", name)
