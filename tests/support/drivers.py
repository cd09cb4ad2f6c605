"""Drivers in C of the node-local engine (tests/csrc): compiled, and run."""

import subprocess
from pathlib import Path

from fuzz import ENGINE
from jobs import ROOT

DRIVER_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-w", "-ffp-contract=off", f"-I{ROOT / 'csrc'}"]


def compile_driver(target: Path, driver: str, *flags: str, engine: Path = ROOT / "csrc", kernels: list[Path]) -> Path:
    """Link the engine's sources, a driver and the kernels (sources or objects)."""
    sources = [engine / name for name in ENGINE]
    subprocess.run(
        ["cc", *DRIVER_FLAGS, *flags, *sources, ROOT / "tests/csrc" / driver, *kernels, "-o", target, "-pthread"],
        check=True,
    )
    return target


def run(program: Path, *arguments: object, prefix: tuple[str, ...] = (), timeout: float = 300) -> str:
    """What a driver prints; fails when it does."""
    done = subprocess.run([*prefix, program, *map(str, arguments)], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout
