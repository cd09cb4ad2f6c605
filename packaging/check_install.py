"""Checks that the project installs, with the real tools and packages from PyPI, in empty environments.

    python packaging/check_install.py                     all of it, which takes some minutes
    python packaging/check_install.py --mpi mpich         with one MPI: openmpi, mpich or impi-rt
    python packaging/check_install.py --wheel FILE        a wheel that is there already, on all three MPIs
    python packaging/check_install.py --torch             also torch on one node, without mpi4py

An sdist is made of the files that git tracks, and from it a wheel with the transports of Open MPI and MPICH. The wheel
runs the README's example on 2 ranks of each MPI. From the sdist alone pip builds in isolation: with an MPI, which runs
the example, and without one, which pip's output says. Every block of commands in the README's section Install, for pip
and for uv, is run in a fresh copy of the checkout. Uninstalling leaves no file. The last line counts what passed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
NAME = re.search(r'^name = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]  # type: ignore[index]
MPIS = ("openmpi", "mpich", "impi-rt")
#: Files of an environment that belong to none of its packages; one of compiled Python belongs to that of its source.
STRAY = """
import importlib.metadata, importlib.util, pathlib, sys
owned = {str(pathlib.Path(d.locate_file(f)).resolve()) for d in importlib.metadata.distributions() for f in d.files}
for path in pathlib.Path(sys.prefix).rglob("*"):
    name = str(path.resolve())
    if path.suffix == ".pyc" and path.parent.name == "__pycache__":
        name = importlib.util.source_from_cache(name)
    if name not in owned and (path.name.startswith("collectives") or not path.is_dir()):
        print(path)
"""


class Wrong(Exception):
    """A check failed; the message says what was seen."""


def readme_blocks(language: str, section: str | None = None) -> list[str]:
    """The README's blocks of a language, of one section or of all."""
    text = README.read_text()
    if section:
        text = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def program(name: str) -> str:
    """The README's program of this name."""
    return next(block for block in readme_blocks("python") if block.startswith(f"# {name}\n"))


def install_blocks() -> list[str]:
    """The README's blocks of commands that install, each of which makes an environment first."""
    return [block for block in readme_blocks("sh", "Install") if re.match(r"(python -m|uv) venv ", block)]


EXAMPLE = program("example.py")
#: What the example prints, up to the line of what served the call.
PRINTED = "[[0.0, 1.0], [1.0, 1.0]] shm: all ranks share a node\n"


class Place:
    """A temporary folder with everything that the checks make, and an environment of variables without ours."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("COLLECTIVES_", "VIRTUAL_ENV", "PYTHON"))}
        kept.pop("MPICC", None)
        self.variables = {
            "PIP_CACHE_DIR": str(Path.home() / ".cache/pip"), **kept, "HOME": str(self.home),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",  # whose notice is no package that pip lists
            "UV_CACHE_DIR": str(folder / "uv"), "UV_LINK_MODE": "copy",
            "UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1",  # like pip: the certificates of the system
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def run(self, *command: str | Path, cwd: Path | None = None, **variables: str) -> str:
        """The output of a command, errors included; Wrong if it fails."""
        done = subprocess.run(
            [str(word) for word in command], cwd=cwd or self.folder, env={**self.variables, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=1200,
        )  # fmt: skip
        if done.returncode:
            raise Wrong(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout[-4000:]}")
        return done.stdout

    def environment(self, name: str, *packages: str) -> Path:
        """The ``bin`` of a new environment with these packages."""
        home = self.folder / "environments" / name
        self.run(sys.executable, "-m", "venv", home)
        if packages:
            self.run(home / "bin/python", "-m", "pip", "install", "--quiet", *packages)
        return home / "bin"

    def checkout(self, name: str) -> Path:
        """A new folder with the files that git tracks, as they are now."""
        target = self.folder / name
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for file in filter(None, listed.split("\0")):
            if (ROOT / file).exists():
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, target / file)
        return target

    def example(self, binaries: Path) -> None:
        """Run the README's example on 2 ranks, by the mpiexec and the Python of an environment."""
        (self.folder / "example.py").write_text(EXAMPLE)
        path = f"{binaries}:{self.variables['PATH']}"
        printed = self.run("mpiexec", "-n", "2", "python", "example.py", PATH=path)
        if PRINTED not in printed:
            raise Wrong(f"the example printed {printed!r}")

    def uninstall(self, python: Path, before: set[str]) -> None:
        """Uninstall, and find nothing that is left: in the environment, and of our name at home."""
        self.run(python, "-m", "pip", "uninstall", "--yes", NAME)
        left = set(self.run(python, "-c", STRAY).splitlines()) - before
        left |= {str(file) for file in self.home.rglob("*collectives*")}
        if left:
            raise Wrong(f"uninstalling left {sorted(left)}")


# --- checks -------------------------------------------------------------------------------------------------------


def sdist(place: Place) -> Path:
    """The sdist, which holds every source that git tracks."""
    tools = place.environment("tools", "build", "uv")
    checkout = place.checkout("checkout")
    place.run(tools / "python", "-m", "build", "--sdist", "--outdir", place.folder / "dist", checkout)
    (made,) = (place.folder / "dist").glob("*.tar.gz")
    if missing := missing_sources(checkout, names_in(made)):
        raise Wrong(f"the sdist lacks {sorted(missing)}")
    return made


def names_in(archive: Path) -> set[str]:
    """The names in an sdist, without those of its folder."""
    return {name.split("/", 1)[1] for name in tarfile.open(archive).getnames() if "/" in name}


def missing_sources(checkout: Path, held: set[str]) -> set[str]:
    """What an sdist with these names lacks of a checkout without products."""
    files = [*checkout.glob("csrc/**/*.[ch]"), *(f for f in checkout.glob("collectives/**/*") if f.is_file())]
    needed = {str(file.relative_to(checkout)) for file in files}
    return {*needed, "setup.py", "pyproject.toml", "README.md", "LICENSE"} - held


def wheel(place: Place, source: Path) -> Path:
    """One wheel for both ABIs, built in isolation from the sdist alone."""
    wrappers = [place.environment(f"build-{mpi}", mpi) / "mpicc" for mpi in ("openmpi", "mpich")]
    unpacked = place.folder / "unpacked"
    with tarfile.open(source) as archive:
        archive.extractall(unpacked)
    place.run(
        place.folder / "environments/tools/bin/python", "-m", "build", "--wheel", "--outdir", place.folder / "dist",
        next(unpacked.iterdir()), COLLECTIVES_MPICC=":".join(map(str, wrappers)),
    )  # fmt: skip
    (made,) = (place.folder / "dist").glob("*.whl")
    transports = sorted(name for name in zipfile.ZipFile(made).namelist() if "/transport_" in name)
    if [Path(name).stem for name in transports] != ["transport_mpich", "transport_openmpi"]:
        raise Wrong(f"the wheel has the transports {transports}")
    return made


def wheel_runs(place: Place, made: Path, mpi: str) -> None:
    """The wheel in an empty environment with an MPI: the example, and nothing left behind."""
    binaries = place.environment(f"wheel-{mpi}")
    before = set(place.run(binaries / "python", "-c", STRAY).splitlines())
    place.run(binaries / "python", "-m", "pip", "install", "--quiet", f"{made}[mpi]", mpi)
    place.example(binaries)
    place.uninstall(binaries / "python", before)


def sdist_runs(place: Place, source: Path, mpi: str) -> None:
    """Two commands, in an empty environment that is not active: the MPI, then the sdist, which pip builds."""
    binaries = place.environment(f"sdist-{mpi}")
    before = set(place.run(binaries / "python", "-c", STRAY).splitlines())
    place.run(binaries / "python", "-m", "pip", "install", mpi)
    said = place.run(binaries / "python", "-m", "pip", "install", "--no-cache-dir", f"{source}[mpi]")
    if "without_mpi" in said:
        raise Wrong(f"the build in isolation did not find {mpi}: {said}")
    place.example(binaries)
    place.uninstall(binaries / "python", before)


def no_mpi(place: Place, source: Path, torch: bool) -> None:
    """Without an MPI pip says so; NumPy is the only other package; schedules work, the rest says what is missing."""
    binaries = place.environment("no-mpi")
    hidden = {"COLLECTIVES_MPICC": "none"} if shutil.which("mpicc") else {}
    python, before = binaries / "python", set(place.run(binaries / "python", "-c", STRAY).splitlines())
    said = place.run(python, "-m", "pip", "install", "--no-cache-dir", source, **hidden)
    if "without_mpi" not in said:
        raise Wrong(f"pip does not say that there is no MPI: {said}")
    listed = place.run(python, "-m", "pip", "list", "--format=freeze").splitlines()
    if others := {line.split("==")[0] for line in listed} - {NAME, "numpy", "pip", "setuptools"}:
        raise Wrong(f"more than NumPy was installed: {sorted(others)}")
    if "ring" not in place.run(python, "-m", "collectives", "verify", "ring", "-p", "1:4"):
        raise Wrong("verify does not name the ring")
    asked = "import collectives\ntry: collectives.Communicator\nexcept ImportError as e: print(e)"
    if "pip install mpi4py" not in (said := place.run(python, "-c", asked)):
        raise Wrong(f"without mpi4py it says {said}")
    if torch:
        place.run(python, "-m", "pip", "install", "--quiet", "torch", "numpy")
        (place.folder / "ddp.py").write_text(program("ddp.py"))
        said = place.run(binaries / "torchrun", "--nproc-per-node", "2", "ddp.py")
        if "3.0 8.0\n" not in said:
            raise Wrong(f"ddp.py printed {said}")
    place.uninstall(python, before)


def readme_installs(place: Place, block: str, number: int) -> None:
    """A block of the README's section Install, in a fresh checkout, with what it says for root; then the example, in
    another folder."""
    checkout = place.checkout(f"readme-{number}")
    tools, elsewhere = place.folder / "tools", place.folder / "elsewhere"
    tools.mkdir(exist_ok=True)
    elsewhere.mkdir(exist_ok=True)
    for name, target in (("python", sys.executable), ("uv", place.folder / "environments/tools/bin/uv")):
        if not (tools / name).exists():
            (tools / name).symlink_to(target)
    (elsewhere / "example.py").write_text(EXAMPLE)
    for_root = next(b for b in readme_blocks("sh", "Install") if "ALLOW_RUN_AS_ROOT" in b)
    lines = f"set -e\nunset ${{!OMPI_ALLOW*}}\n{for_root}{block}cd {elsewhere}\nmpiexec -n 2 python example.py"
    said = place.run("bash", "-c", lines, cwd=checkout, PATH=f"{tools}:{place.variables['PATH']}")
    if PRINTED not in said:
        raise Wrong(f"the example printed {said[-2000:]!r}")


# --- the report ---------------------------------------------------------------------------------------------------


class Report:
    """Runs checks, and counts those that passed and those that failed."""

    def __init__(self) -> None:
        self.passed = self.failed = 0

    def check(self, title: str, function: Callable[..., Path | None], *arguments: object) -> Path | None:
        """What a check returns; None, with the reason printed, if it failed."""
        begun = time.monotonic()
        try:
            result = function(*arguments)
        except Exception as e:
            self.failed += 1
            print(f"FAILED  {title}: {e if isinstance(e, Wrong) else traceback.format_exc()}", flush=True)
            return None
        self.passed += 1
        print(f"passed  {title} ({time.monotonic() - begun:.0f} s)", flush=True)
        return result


def check_all(args: argparse.Namespace, place: Place) -> Report:
    """All checks that the arguments ask for."""
    report, mpis = Report(), (args.mpi,) if args.mpi else MPIS
    if args.wheel:
        for mpi in mpis:
            report.check(f"{args.wheel.name} on {mpi}", wheel_runs, place, args.wheel.resolve(), mpi)
        return report
    source = report.check("the sdist holds every source", sdist, place)
    if source is None:
        return report
    made = report.check("one wheel with both transports", wheel, place, source)
    for mpi in mpis if made else ():
        report.check(f"the wheel on {mpi}", wheel_runs, place, made, mpi)
    for mpi in mpis if args.mpi else ("openmpi",):
        if mpi != "impi-rt":  # it has no mpicc
            report.check(f"pip builds the sdist beside {mpi}", sdist_runs, place, source, mpi)
    report.check("without an MPI", no_mpi, place, source, args.torch)
    for number, block in enumerate(install_blocks()):
        report.check(f"README: {block.splitlines()[0]} ...", readme_installs, place, block, number)
    return report


def main() -> int:
    """Run the checks; 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", choices=MPIS, help="only this MPI")
    parser.add_argument("--wheel", type=Path, help="check this wheel, and nothing else")
    parser.add_argument("--torch", action="store_true", help="also torch on one node, which pip downloads")
    parser.add_argument("--keep", type=Path, help="an empty folder to work in, which is kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="check-install-") as temporary:
        report = check_all(args, Place(args.keep.resolve() if args.keep else Path(temporary)))
    print(f"check-install: {report.passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
