"""What this machine says of processes."""

import os
import subprocess
import sys

from jobs import ROOT

PROGRAM = r"""
import os
open("/proc/self/comm", "wb").write(b") run_\xe5\xb9\xb6\xe8\xa1\x8c\xe8")  # the last character is cut
from collectives.system import conditions, machine
me = os.getpid()
print(machine.process(me)[0], *machine.ancestors(me)[:2], conditions._runs(me))
"""


def test_names_of_processes_may_end_within_a_character():
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, timeout=60)
    state, me, parent, runs = done.stdout.split() or [done.stderr] * 4
    assert (state, int(parent), runs) == ("R", os.getpid(), "True"), (me, done.stderr)
