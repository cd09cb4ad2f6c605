"""MPI Persistent Alltoall Latency Test, OSU format: see docs/benchmarks.md."""

import sys

from collectives.bench import main

sys.exit(main("alltoall_persistent"))
