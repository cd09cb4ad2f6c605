"""Prepares a release: `python packaging/release.py 0.2.0` in a checkout without changes.

The version stands in collectives/__init__.py, from which pyproject.toml takes it; this sets it there, and in the files
that other tools read: CITATION.cff and the recipe for conda. The changelog's section `Unreleased` gets the version and
the date. All of it is one commit, with the tag `vVERSION`, whose message is that section. Last, the sdist is built in
dist/ (this needs `pip install build`), and its sum is printed for the recipe. Nothing is sent anywhere.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Where the version stands, as a pattern whose first group is kept.
PLACES = {
    "collectives/__init__.py": r'^(__version__ = )"[^"]*"',
    "CITATION.cff": r"^(version: ).*",
    "packaging/conda/recipe.yaml": r'^(  version: )"[^"]*"',
}
HEADING = re.compile(r"^## \[(\S+)\] - Unreleased$", re.MULTILINE)


def git(*words: str) -> str:
    """The output of a git command in the checkout."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def set_version(root: Path, version: str) -> list[str]:
    """Write the version wherever it stands; the files, relative to the checkout."""
    for name, pattern in PLACES.items():
        old = (root / name).read_text()
        quote = '"' if '"' in pattern else ""
        new, found = re.subn(pattern, rf"\g<1>{quote}{version}{quote}", old, flags=re.MULTILINE)
        if found != 1:
            raise SystemExit(f"{name}: the version stands there {found} times, not once")
        (root / name).write_text(new)
    return [*PLACES]


def date_changelog(root: Path, version: str, day: datetime.date) -> str:
    """Give the section `Unreleased` the version and the date; its text."""
    file = root / "CHANGELOG.md"
    text = file.read_text()
    if len(HEADING.findall(text)) != 1:
        raise SystemExit("CHANGELOG.md needs exactly one heading '## [VERSION] - Unreleased'")
    text = HEADING.sub(f"## [{version}] - {day.isoformat()}", text)
    file.write_text(text)
    return text.split(f"\n## [{version}] - {day.isoformat()}\n")[1].split("\n## [")[0].strip()


def main() -> int:
    """Make the commit, the tag and the sdist."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    version = parser.parse_args().version
    if not re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", version):
        raise SystemExit(f"{version}: a version is like 0.2.0 or 0.2.0rc1")
    if changed := git("status", "--porcelain"):
        raise SystemExit(f"the checkout has changes:\n{changed}")
    if git("tag", "--list", f"v{version}"):
        raise SystemExit(f"there is a tag v{version} already")
    files = set_version(ROOT, version)
    notes = date_changelog(ROOT, version, datetime.datetime.now(datetime.timezone.utc).date())
    git("add", "CHANGELOG.md", *files)
    git("commit", "--message", f"release: {version}")
    git("tag", "--annotate", "--cleanup=verbatim", f"v{version}", "--message", f"collectives {version}\n\n{notes}")
    subprocess.run([sys.executable, "-m", "build", "--sdist", "--outdir", "dist"], cwd=ROOT, check=True)
    (made,) = (ROOT / "dist").glob(f"*-{version}.tar.gz")
    print(f"tagged v{version}; {made.name}: sha256 {hashlib.sha256(made.read_bytes()).hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
