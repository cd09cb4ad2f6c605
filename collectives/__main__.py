"""``python -m collectives``: see :mod:`collectives.cli.commands`."""

import sys

from .cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
