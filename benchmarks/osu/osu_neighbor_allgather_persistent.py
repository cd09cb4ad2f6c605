"""MPI Persistent Neighbor_allgather Latency Test, OSU format: see docs/benchmarks.md."""

import sys

from collectives.bench import main

sys.exit(main("neighbor_allgather_persistent"))
