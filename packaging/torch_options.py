"""Prints the options by which pip installs torch for the CPU, as the requirements in a file name it.

    python packaging/torch_options.py FILE

The line is empty where pip as it is set up finds such a build. Otherwise it names torch's own index, if that has one
and can be reached. If pip finds only builds for CUDA, the line is `cuda`. Nothing is downloaded but descriptions.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

INDEX = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
REPORT = ["--dry-run", "--ignore-installed", "--report", "-"]


def is_for_cpu(requirement: str, options: list[str]) -> bool:
    """Whether the build that pip would install needs no package of CUDA."""
    done = subprocess.run([*PIP, *REPORT, *options, requirement], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return False
    (found,) = json.loads(done.stdout)["install"]
    needed = " ".join(found["metadata"].get("requires_dist", []))
    return "nvidia" not in needed and "cuda" not in needed


def main() -> int:
    """Print the line."""
    lines = Path(sys.argv[1]).read_text().splitlines()
    requirement = next(line for line in lines if line.startswith("torch"))
    print(next((" ".join(options) for options in ([], INDEX) if is_for_cpu(requirement, options)), "cuda"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
