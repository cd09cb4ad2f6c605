"""Functions that all ranks of a job run one after the other: ``mpiexec -n 2 python FILE.py BACKEND FILE``.

The ranks meet by the second FILE. A rank on which a function fails ends the job, so that the others do not wait for
it. The last line is "N passed".
"""

from __future__ import annotations

import os
import sys
import traceback
from datetime import timedelta
from types import FunctionType

import torch.distributed as dist


def _told(*names: str) -> int:
    return next(int(os.environ[name]) for name in names if name in os.environ)


RANK = _told("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")  # of torchrun, MPIs, and srun with PMIx
SIZE = _told("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def main(tests: dict[str, object]) -> None:
    """Run a module's tests in one process group of the backend that the command line names."""
    backend, meeting = sys.argv[1], sys.argv[2]
    if backend == "collectives":
        import collectives.torch  # noqa: F401
    dist.init_process_group(
        backend, init_method=f"file://{meeting}", rank=RANK, world_size=SIZE, timeout=timedelta(seconds=60)
    )
    run(tests)


def run(tests: dict[str, object]) -> None:
    """Run a module's tests in the process group that there is, and end it."""
    functions = [test for name, test in tests.items() if name.startswith("test_") and isinstance(test, FunctionType)]
    for test in functions:
        try:
            test()
        except BaseException:
            sys.stderr.write(f"--- rank {RANK} of {SIZE}, {test.__name__}:\n{traceback.format_exc()}\n")
            sys.stderr.flush()
            os._exit(1)
    dist.barrier()
    dist.destroy_process_group()
    if RANK == 0:
        print(f"{len(functions)} passed", flush=True)
