"""MPI Multiple Bandwidth / Message Rate Test, OSU format: see docs/benchmarks.md."""

import sys

from collectives.bench import main

sys.exit(main("mbw_mr"))
