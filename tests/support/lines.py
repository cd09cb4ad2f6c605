"""The lines of the sources: how many there are, and which files and functions are too long.

``python tests/support/lines.py [--json]`` prints the lines of each package (code; comments, with docstrings; blank),
the total of the core (all packages but those in BESIDE), and the longest files and functions. It exits with 1 if a file
has more than 400 lines, or a function (in C also a macro) more than 60; type stubs may be longer. Read from the text
alone: files are counted from the first line to the last, functions from the line of their name to the end of their
body.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FILE, FUNCTION = 400, 60  # most lines
SHOWN = 5
PYTHON, C = (".py", ".pyi", ".pyx", ".pxi", ".pxd"), (".c", ".h", ".cu", ".cpp")
#: Folders of sources; in the first two every folder is a package.
FOLDERS = ("collectives", "csrc", "tests", "benchmarks", "examples")
#: Packages that are not part of the core: what is built on it, and its data and models.
BESIDE = {
    "collectives/train", "collectives/torch", "collectives/bench", "collectives/tune", "collectives/algorithms",
    "collectives/simulation", "collectives/advise", "collectives/rl", "collectives/jax", "csrc/simulate", "csrc/xla",
    "tests", "benchmarks", "examples",
}  # fmt: skip
#: In Python and Cython: the beginning of a function, up to its name.
_DEF = re.compile(r"(\s*)(?:async def|def|cp?def (?!class|struct|enum|extern|packed)[^=(]*?)\s*\b(\w+)\(")


class Count(NamedTuple):
    """Numbers of lines."""

    code: int = 0
    comments: int = 0
    blank: int = 0

    @property
    def all(self) -> int:
        return sum(self)


class Length(NamedTuple):
    """The length of a file or function, and where it is."""

    lines: int
    where: str


def sources(root: Path = ROOT) -> Iterator[Path]:
    """The sources that git knows, and those that it does not ignore."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS]
    names = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout.split()
    return (root / name for name in sorted(set(names)) if name.endswith(PYTHON + C) and (root / name).exists())


def package(file: Path, root: Path = ROOT) -> str:
    folder, *inner = file.relative_to(root).parts
    return f"{folder}/{inner[0]}" if folder in FOLDERS[:2] and len(inner) > 1 else folder


def count(file: Path) -> Count:
    """The lines of a file; blank lines within a docstring or comment count as parts of it."""
    kinds = (_kinds_of_c if file.suffix in C else _kinds_of_python)(file.read_text().splitlines())
    found = list(kinds)
    return Count(*(found.count(kind) for kind in Count._fields))


def _in_strings(lines: list[str]) -> list[bool]:
    """For each line of Python or Cython whether it begins within a string of several lines."""
    found, within = [], False
    for line in lines:
        found.append(within)
        within ^= line.count('"""') % 2 == 1 and (within or not line.lstrip().startswith("#"))
    return found


def _kinds_of_python(lines: list[str]) -> Iterator[str]:
    kind = ""
    for line, within in zip(map(str.strip, lines), _in_strings(lines), strict=True):
        if not within:
            kind = "comments" if line.startswith(("#", '"""')) else "code" if line else "blank"
        yield kind


def _kinds_of_c(lines: list[str]) -> Iterator[str]:
    within = False
    for line in map(str.strip, lines):
        comment = within or line.startswith(("/*", "//"))
        yield "comments" if comment else "code" if line else "blank"
        opened, closed = line.rfind("/*"), line.rfind("*/")
        within = opened > closed or within and closed < 0


def functions(file: Path) -> Iterator[Length]:
    """The functions of a file."""
    lines = file.read_text().splitlines()
    for name, begin, end in (_of_c if file.suffix in C else _of_python)(lines):
        yield Length(end - begin, f"{file.relative_to(ROOT)}:{begin + 1} {name}")


def _of_python(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """Name, first line and end of each function: its body is indented more, and so are its parameters."""
    strings = _in_strings(lines)
    for begin, line in enumerate(lines):
        if strings[begin] or not (found := _DEF.match(line)):
            continue
        margin, end = found[1], begin + 1
        for at in range(begin + 1, len(lines)):
            inside = strings[at] or lines[at].startswith((f"{margin} ", f"{margin})"))
            if lines[at].strip() and not inside:
                break
            end = at + 1 if lines[at].strip() else end
        yield found[2], begin, end


def _of_c(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """Name, first line and end of each function, whose last line is a brace at the margin, and of each macro."""
    begun = None
    for at, line in enumerate(lines):
        if macro := re.match(r"#define (\w+).*\\$", line):
            end = next(i for i, after in enumerate(lines[at:], at) if not after.endswith("\\"))
            yield macro[1], at, end + 1
        elif named := re.match(r"[A-Za-z_][^;=]*?\b(\w+)\(", line):
            begun = None if line.endswith(";") else (named[1], at)
        elif line.startswith("}"):
            if begun is not None:
                yield *begun, at + 1
            begun = None


def report(root: Path = ROOT) -> dict[str, object]:
    """What the command prints, for JSON."""
    packages: dict[str, Count] = {}
    files, every = [], []
    for file in sources(root):
        lines, name = count(file), package(file, root)
        packages[name] = Count(*(a + b for a, b in zip(packages.get(name, Count()), lines, strict=True)))
        if file.suffix != ".pyi":
            files.append(Length(lines.all, str(file.relative_to(root))))
        every += functions(file)
    core = Count(*map(sum, zip(*(lines for name, lines in packages.items() if name not in BESIDE), strict=True)))
    return {
        "packages": packages,
        "core": core,
        "files": sorted(files, reverse=True),
        "functions": sorted(every, reverse=True),
    }


def main(argv: list[str] | None = None) -> int:
    """Print the report; returns how many files and functions are too long."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    found = report()
    longest = {"files": FILE, "functions": FUNCTION}
    beyond = {kind: [each for each in found[kind] if each.lines > most] for kind, most in longest.items()}
    if parser.parse_args(argv).json:
        counts = {name: lines._asdict() for name, lines in found["packages"].items()}
        shown = {kind: [each._asdict() for each in found[kind][:SHOWN]] for kind in longest}
        told = {kind: [each._asdict() for each in these] for kind, these in beyond.items()}
        print(json.dumps({"packages": counts, "core": found["core"]._asdict(), "longest": shown, "beyond": told}))
    else:
        print(f"{'':26}{'code':>8}{'comments':>10}{'blank':>8}{'all':>8}")
        for name, lines in [*found["packages"].items(), ("the core", found["core"])]:
            print(f"{name:26}{lines.code:8}{lines.comments:10}{lines.blank:8}{lines.all:8}")
        for kind, most in longest.items():
            print(f"\nlongest {kind} (at most {most} lines)")
            for each in [*beyond[kind], *found[kind][len(beyond[kind]) : SHOWN]]:
                print(f"{each.lines:8}  {each.where}{'  too long' if each in beyond[kind] else ''}")
    return sum(map(len, beyond.values()))


if __name__ == "__main__":
    sys.exit(main() > 0)
