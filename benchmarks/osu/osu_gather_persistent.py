"""MPI Persistent Gather Latency Test, OSU format: see docs/benchmarks.md."""

import sys

from collectives.bench import main

sys.exit(main("gather_persistent"))
