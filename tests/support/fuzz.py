"""Fuzz the C entry points, and how Python reads buffers.

    python tests/support/fuzz.py [--seconds N] [--seed N] [--out DIR]

Drivers in tests/csrc have the entry that libFuzzer calls; they are built here with AddressSanitizer and
UndefinedBehaviorSanitizer by any GCC or Clang, with `fuzz_main.c` to guide them. An input that fails is left in DIR.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAP = [f"heap/{name}.c" for name in "heap pages blocks forks room".split()]
NODE = "node check fold give_up hand inline look phases publish pull"
ENGINE = [f"node/{name}.c" for name in NODE.split()] + HEAP
SOURCES = {
    "fuzz_schedule": [
        "base/moves.c",
        "schedule/program.c",
        "schedule/executor.c",
        "schedule/executor_new.c",
        "transport/inproc.c",
    ],
    "fuzz_node": ENGINE,
    "fuzz_heap": HEAP,
}
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", f"-I{ROOT / 'tests/csrc'}"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
OPTIONS = {
    "ASAN_OPTIONS": "allocator_may_return_null=1:max_allocation_size_mb=8",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",  # whose handler keeps the input
}


def build(name: str, folder: Path, engine: Path = ROOT / "csrc") -> Path:
    """Compile a fuzzer into a folder; ``engine`` has the C sources."""
    coverage = "trace-pc" if "clang" not in os.environ.get("CC", "cc") else "trace-pc,edge"
    cc = [os.environ.get("CC", "cc"), *FLAGS, f"-I{engine}", f"-I{ROOT / 'csrc'}"]
    cc += ["-w"] if engine != ROOT / "csrc" else ["-Werror"]  # what a test has changed has variables without use
    sources = [*(engine / source for source in SOURCES[name]), ROOT / f"tests/csrc/{name}.c"]
    main, target = folder / f"{name}_main.o", folder / name
    subprocess.run([*cc, "-O2", "-c", ROOT / "tests/csrc/fuzz_main.c", "-o", main], check=True)
    subprocess.run(
        [*cc, *SANITIZERS, f"-fsanitize-coverage={coverage}", *sources, main, "-o", target, "-pthread"], check=True
    )
    return target


def run(program: Path, seconds: float, seed: int, *samples: Path, timeout: float = 60) -> tuple[bool, str]:
    """Whether a fuzzer found nothing in that time, a call without end included, and what it prints; samples first."""
    command = [program, str(seconds), str(seed), program.with_suffix(".crash"), *samples]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    with subprocess.Popen(command, env={**os.environ, **OPTIONS}, **how) as process:
        try:
            said, errors = process.communicate(timeout=seconds + timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            said, errors = process.communicate()
            errors = f"no end after {seconds + timeout} s\n{errors}"
        finally:
            process.kill()
            for name in Path("/dev/shm").glob(f"collectives-{process.pid}-*"):  # what a crash could not take back
                name.unlink()
    lines = [line for line in errors.splitlines() if "failed to allocate" not in line]
    return process.returncode == 0, said + "\n".join(lines)[:6000]


def fuzz_python(seconds: float, seed: int) -> tuple[bool, str]:
    """Random buffer descriptions for that time."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "tests/arguments/test_buffer_descriptions.py"]
    variables = {**os.environ, "FUZZ_SECONDS": str(seconds), "FUZZ_SEED": str(seed), "PYTHONFAULTHANDLER": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables)
    return done.returncode == 0, ends(done.stdout, 6000) + ends(done.stderr, 6000)


def ends(text: str, most: int) -> str:
    """The begin and the end of a text: a crash says first what it was and where, an assertion last."""
    return text if len(text) <= most else f"{text[: most // 2]}\n[...]\n{text[-most // 2 :]}"


def main() -> int:
    """Run all fuzzers one after the other, each for its share of the time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=ROOT / "out/fuzz")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    share, sound = arguments.seconds / (len(SOURCES) + 1), True
    for name in [*SOURCES, "buffer descriptions"]:
        if name in SOURCES:
            right, text = run(build(name, arguments.out), share, arguments.seed)
        else:
            right, text = fuzz_python(share, arguments.seed)
        sound &= right
        print(f"{name}, seed {arguments.seed}: {text.strip()}", flush=True)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
