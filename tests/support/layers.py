"""The layers of the package, read from its sources.

``python tests/support/layers.py`` prints them, and what breaks them.

Counted are imports, those within functions and for type checkers too; strings that name modules; and reaches into what
a module is handed: in Cython attributes of the names in HANDED, unless a compiled base class has them or a Protocol
beside the Cython code declares them, in Python private ones that only higher modules define. Nothing is imported.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
NAME = "collectives"
#: Packages, or modules beside them, from the ground up; those of one row may import each other.
LAYERS = [
    "errors", "files", "drawing", "schedules", "algorithms", "analysis", "selection", "core", "system", "arguments",
    "cuda", "diagnostics", "waiting", "trace", "runtime", "communicator", "__init__", "train", "rl", "torch", "horovod",
    "jax", "launch", "bench", "tune", "simulation", "advise", "cli", "__main__",
]  # fmt: skip
#: What Cython code calls objects of these classes.
HANDED = {"comm": "Communicator", "context": "Context", "shape": "Shape", "choice": "Choice"}


class Link(NamedTuple):
    source: str
    target: str
    how: str  # "import", "within a function", "typing", "string", "reach"
    where: str  # file and line
    what: str


class Class(NamedTuple):
    name: str
    module: str
    file: Path
    bases: frozenset[str]
    members: frozenset[str]


def level_of(module: str) -> int:
    return next((level for level, row in enumerate(LAYERS) if module.partition(".")[0] in row.split()), -1)


class Reading:
    """What the sources say: the modules with their files, and the links between them."""

    def __init__(self, root: Path = ROOT):
        self.root, self.package = root, root / NAME
        self.files: dict[str, list[Path]] = {}
        for file in sorted(f for f in self.package.rglob("*.py*") if f.suffix in (".py", ".pyi", ".pyx")):
            parts = file.relative_to(self.package).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
            included = re.findall(r'^include "(.*)"', file.read_text(), re.MULTILINE) if file.suffix == ".pyx" else []
            self.files.setdefault(module, []).extend([file, *(file.parent / name for name in included)])
        sources = [(module, file) for module in self.files for file in self.files[module]]
        trees = {file: ast.parse(file.read_text()) for _, file in sources if file.suffix in (".py", ".pyi")}
        self.classes = [c._replace(module=m) for m, f in sources for c in _classes(f, trees.get(f))]
        higher_first = sorted(self.classes, key=lambda c: level_of(c.module), reverse=True)
        self.lowest = {name: c.module for c in higher_first for name in c.members}  # that has a member of this name
        found = (self._python(m, f, trees[f]) if f in trees else self._cython(m, f) for m, f in sources)
        self.links = [link for links in found for link in links if link.target != link.source]

    def _module(self, file: Path, name: str, whole: bool = False) -> str | None:
        dots = len(name) - len(name.lstrip("."))
        folder = (NAME, *file.relative_to(self.package).parts[:-1])
        parts = [*(folder[: len(folder) - dots + 1] if dots else ()), *filter(None, name.lstrip(".").split("."))]
        ends = (".".join(parts[1:end]) for end in range(len(parts), len(parts) - 1 if whole else 1, -1))
        found = next((known for known in ends if known in self.files), None if whole else "__init__")
        return found if parts[:1] == [NAME] else None

    def _python(self, module: str, file: Path, tree: ast.Module) -> Iterator[Link]:
        nodes, path = list(ast.walk(tree)), str(file.relative_to(self.root))  # once: both take long
        how, before = _how(nodes), {""}  # what names of modules are put together from
        for node in nodes:
            if isinstance(node, ast.Call) and "import" in _name(node.func) and node.args:
                first = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
                before.add(str(first.value) if isinstance(first, ast.Constant) else "")
        for node in nodes:
            where = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                start = getattr(node, "module", None)
                base = "." * getattr(node, "level", 0) + (f"{start}." if start else "")
                known = {alias.name: self._module(file, base + alias.name) for alias in node.names}
                for target in sorted({target for target in known.values() if target}):
                    what = ", ".join(name for name in known if known[name] == target)
                    yield Link(module, target, how.get(node, "import"), where, what)
            elif isinstance(node, ast.Constant) and re.fullmatch(r"\.*\w[.\w]*", str(node.value)):
                for name in (start + str(node.value) for start in before):
                    if found := self._module(file, name, whole=True):
                        yield Link(module, found, "string", where, name)
            elif isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr):
                owner = self.lowest.get(node.attr, module)
                if level_of(owner) > level_of(module):
                    yield Link(module, owner, "reach", where, ast.unparse(node))

    def _cython(self, module: str, file: Path) -> Iterator[Link]:
        text = re.sub(r'""".*?"""', lambda said: "\n" * said[0].count("\n"), file.read_text(), flags=re.DOTALL)
        for number, line in enumerate(text.splitlines(), 1):
            where, code = f"{file.relative_to(self.root)}:{number}", line.partition("#")[0]
            for imported in re.findall(r"^\s*(?:from|c?import)\s+([.\w]+)", code):
                if target := self._module(file, imported):
                    yield Link(module, target, "import", where, imported)
            for name, member in re.findall(rf"\b({'|'.join(HANDED)})\.(?!__)(\w+)", code):
                owner = next((c for c in self.classes if c.name == HANDED[name] and c.module != module), None)
                if owner and member not in self._declared(module, owner):
                    yield Link(module, owner.module, "reach", where, f"{name}.{member}")

    @functools.cache  # noqa: B019
    def _declared(self, module: str, handed: Class) -> set[str]:
        """What compiled classes that a class derives from have, and what Python modules beside them declare."""
        kin, room = {handed.name}, module.rpartition(".")[0]
        while more := {base for c in self.classes if c.name in kin for base in c.bases} - kin:
            kin |= more
        near = [c for c in self.classes if c.module == module or room and c.module.startswith(f"{room}.")]
        return {name for c in near if c.name in kin or c.file.suffix == ".py" for name in c.members}


def _name(function: ast.expr) -> str:
    """The last part of a function's name."""
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _how(nodes: Iterable[ast.AST]) -> dict[ast.AST, str]:
    found: dict[ast.AST, str] = {}
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            found |= {inner: found.get(inner, "within a function") for inner in ast.walk(node)}
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            found |= {inner: "typing" for statement in node.body for inner in ast.walk(statement)}
    return found


def _classes(file: Path, tree: ast.Module | None) -> Iterator[Class]:
    """The classes of a file of Python, or of Cython, with what they define, declare and assign to ``self``."""
    for name, base, body in re.findall(r"(?ms)^cdef class (\w+)\(?(\w*)\)?:(.*?)(?=^\S|\Z)", file.read_text()):
        words = re.findall(r"\w+", " ".join(re.findall(r"(?m)^    (?:def|cp?def) ([^(#\n]*)", body)))
        yield Class(name, "", file, frozenset([base]), frozenset(words))
    for node in (n for n in ast.walk(tree or ast.Module([], [])) if isinstance(n, ast.ClassDef)):
        members = {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef)}
        stored = (n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
        members |= {n.attr for n in stored if ast.unparse(n.value) == "self"}
        targets = (t for s in node.body for t in getattr(s, "targets", [getattr(s, "target", None)]))
        members |= {t.id for t in targets if isinstance(t, ast.Name)}
        bases = frozenset(ast.unparse(base).rpartition(".")[2] for base in node.bases)
        yield Class(node.name, "", file, bases, frozenset(members))


def upward(links: Iterable[Link]) -> list[Link]:
    return [link for link in links if level_of(link.source) < level_of(link.target)]


def circles(links: Iterable[Link]) -> list[list[str]]:  # strongly connected components
    after: dict[str, set[str]] = {}
    for link in links:
        after.setdefault(link.source, set()).add(link.target)
    reached: dict[str, set[str]] = {}
    for module, todo in ((module, set(needed)) for module, needed in after.items()):
        reached[module] = set()
        while todo:
            reached[module].add(one := todo.pop())
            todo |= after.get(one, set()) - reached[module]
    rings = {frozenset(o for o in reached[m] if m in reached.get(o, ())) for m in reached if m in reached[m]}
    return sorted(map(sorted, rings))


def in_order(modules: set[str], links: list[Link]) -> Iterator[list[str]]:
    """Modules in rows, from the ground up; those of a circle in one row."""
    rings = [set(ring) for ring in circles(links)]
    needs = [(k.source, k.target) for k in links if not any({k.source, k.target} <= ring for ring in rings)]
    while modules:
        yield (row := sorted(modules - {m for m, n in needs if n in modules}))
        modules = modules - set(row)


def show(reading: Reading) -> int:
    """Print the layers and what breaks them; returns how much does."""
    wrong, rings = upward(reading.links), circles(reading.links)
    for level, name in ((level, name) for level, row in enumerate(LAYERS, 1) for name in row.split()):
        modules = {m for m in reading.files if m.partition(".")[0] == name}
        below = {link.target.partition(".")[0] for link in reading.links if link.source in modules} - {name}
        print(f"{level:2} {name:13} {', '.join(sorted(below, key=lambda n: (level_of(n), n))) or '-'}")
        for row in in_order(modules, reading.links) if len(modules) > 1 else ():
            print(f"{'':17}{' '.join(m.partition('.')[2] or '__init__' for m in row)}")
    for link in wrong:
        print(f"upward: {link.where}: {link.source} -> {link.target} ({link.how}: {link.what})")
    for ring in rings:
        print(f"circle: {' '.join(ring)}")
    for module in (unknown := [module for module in reading.files if level_of(module) < 0]):
        print(f"in no layer: {module}")
    print(f"{len(wrong) or 'no'} upward imports, {len(rings) or 'no'} circles")
    return len(wrong) + len(rings) + len(unknown)


if __name__ == "__main__":
    sys.exit(show(Reading()) > 0)
