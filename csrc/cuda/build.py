"""Compile the CUDA kernels: ``python csrc/cuda/build.py`` writes kernels.fatbin and kernels.json to collectives/cuda.

The fatbin has machine code for each architecture that nvcc knows, and PTX of the oldest, from which the driver makes
code for any newer device. kernels.json is its index: the compiler, the architectures, the names of the kernels, and the
bytes of the arguments that they take. Without nvcc nothing is written, and a sentence says so.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Of float32 and float64, these flags keep IEEE's results: no fused multiply-add, exact division, subnormal numbers.
FLAGS = ["-std=c++17", "-O3", "--fmad=false", "--prec-div=true", "--ftz=false", "-Werror", "all-warnings"]


def known_architectures(nvcc: str) -> list[str]:
    """The devices that nvcc compiles for, oldest first: sm_75, sm_80, ..."""
    listed = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r"^sm_\d+$", listed, re.MULTILINE)), key=lambda name: int(name[3:]))


def build(nvcc: str, target: Path, architectures: list[str], compress: str) -> dict[str, Any]:
    """Write the fatbin and its index to a folder; returns the index. PTX is translated once, then compiled for each
    architecture."""
    ptx = architectures[0].replace("sm", "compute")
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        subprocess.run(
            [nvcc, *FLAGS, f"-I{ROOT / 'csrc'}", "-fatbin", f"--compress-mode={compress}", "--threads=0",
             "--keep", f"--keep-dir={made}", f"-gencode=arch={ptx},code=[{','.join([ptx, *architectures])}]",
             str(ROOT / "csrc/cuda/kernels.cu"), "-o", f"{made}/kernels.fatbin"],
            check=True,
        )  # fmt: skip
        (text,) = (file.read_text() for file in Path(made).glob("*.ptx"))
        entries = re.findall(r"\.entry (\w+)\(\s*\.param [^\[]*\[(\d+)\]", text)
        (arguments,) = {int(size) for _, size in entries}
        index = {
            "nvcc": re.search(r"release [\d.]+, V([\d.]+)", version)[1],
            "architectures": architectures,
            "ptx": ptx,
            "arguments": arguments,
            "kernels": [name for name, _ in entries],
        }
        (target / "kernels.json").write_text(json.dumps(index, indent=1) + "\n")
        shutil.move(f"{made}/kernels.fatbin", target / "kernels.fatbin")
    return index


def main(argv: list[str] | None = None) -> int:
    """Build, or say why not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "collectives/cuda", help="the folder (%(default)s)")
    parser.add_argument(
        "--arch", action="append", help="an architecture, such as sm_90; by default all that nvcc knows"
    )
    parser.add_argument("--compress", choices=("none", "speed", "balance", "size"), default="size")
    options = parser.parse_args(argv)
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        print("nvcc is not on the PATH: the CUDA kernels are not built.")
        return 0
    index = build(nvcc, options.into, options.arch or known_architectures(nvcc), options.compress)
    print(f"{len(index['kernels'])} kernels for {', '.join(index['architectures'])} in {options.into}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
