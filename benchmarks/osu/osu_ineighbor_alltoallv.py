"""MPI Non-blocking Neighbor_alltoallv Latency Test, OSU format: see docs/benchmarks.md."""

import sys

from collectives.bench import main

sys.exit(main("ineighbor_alltoallv"))
