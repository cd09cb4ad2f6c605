"""MPI Persistent Reduce_scatter_block Latency Test, OSU format: see docs/benchmarks.md."""

import sys

from collectives.bench import main

sys.exit(main("reduce_scatter_block_persistent"))
