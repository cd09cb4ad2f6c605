"""MPI Non-blocking Neighbor_alltoallw Latency Test, OSU format: see docs/benchmarks.md."""

import sys

from collectives.bench import main

sys.exit(main("ineighbor_alltoallw"))
