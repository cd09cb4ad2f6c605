"""What this machine says of processes."""

import math
import os
import subprocess
import sys

import pytest
from jobs import ROOT

from collectives.system import machine

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


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/\n", {}, math.inf),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000"}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "max 100000"}, 4),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, 2),
        ("0::/../other\n", {"cpu.max": "300000 100000"}, 3),
        ("1:cpu:/a\n0::/\n", {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, 2),
        ("3:cpu,cpuacct:/a\n", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ("1:cpuset:/a\n2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        (None, {"cpu.max": "100000 100000"}, 1),
    ],
)
def test_the_least_quota_of_the_control_groups_counts(groups, files, cores, tmp_path, monkeypatch):
    """That of a slice or job, as of systemd's CPUQuota=, is not at the root; version 1 has other files."""
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN_CGROUPS", tmp_path / "self")
    if groups is not None:
        (tmp_path / "self").write_text(groups)
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text + "\n")
    assert machine.cgroup_quota() == cores
    assert machine.usable_cores(8) == min(8, cores)
