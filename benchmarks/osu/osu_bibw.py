"""MPI Bi-Directional Bandwidth Test, OSU format: see docs/benchmarks.md."""

import sys

from collectives.bench import main

sys.exit(main("bibw"))
