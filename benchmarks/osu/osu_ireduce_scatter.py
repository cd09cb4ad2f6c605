"""MPI Non-blocking Reduce_scatter Latency Test, OSU format: see docs/benchmarks.md."""

import sys

from collectives.bench import main

sys.exit(main("ireduce_scatter"))
