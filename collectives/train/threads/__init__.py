"""Ranks as threads of one process, for notebooks and debuggers: no launcher, and no messages.

``threads.run(4, train_it)`` calls ``train_it(comm)`` on four ranks. ``python -m collectives.train.threads -n 4
prog.py`` runs a script on four ranks.
"""

from .comm import ThreadComm
from .job import current
from .running import run, run_script

__all__ = ["ThreadComm", "current", "run", "run_script"]
