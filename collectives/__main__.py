"""``python -m collectives``: see :mod:`collectives.cli`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
