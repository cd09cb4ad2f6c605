"""collectives.horovod on 2 and 3 ranks, on Gloo and on ours: programs/horovod.py; and the programs of its page."""

import re

import pytest
from jobs import ROOT, mpiexec
from pages import IN_TURN

BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/horovod.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("backend", "ranks"), [
    pytest.param("gloo", 2, marks=pytest.mark.slow), ("collectives", 2),
    pytest.param("collectives", 3, marks=pytest.mark.slow),
])  # fmt: skip
def test_on_ranks(backend, ranks, tmp_path):
    done = mpiexec("torch", ranks, "tests/torch/programs/horovod.py", backend, str(tmp_path / "meeting"), timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    assert done.stdout.split() == ["16", "passed"]


@pytest.mark.long
def test_page(tmp_path):
    """Its programs, one after the other in a job: each begins with init() and ends with shutdown()."""
    programs = [tmp_path / f"prog{number}.py" for number in range(len(BLOCKS))]
    for program, block in zip(programs, BLOCKS, strict=True):
        program.write_text(block)
    done = mpiexec("torch", 2, "-c", IN_TURN, *map(str, programs), timeout=90)
    assert done.returncode == 0, done.stderr[-20_000:]
    shown = [re.findall(r"# prints: (.*)", block) for block in BLOCKS]
    assert all(shown)
    assert done.stdout.splitlines() == sum(shown, [])


SHUTDOWN = """
import torch.distributed as dist
import collectives.torch
import collectives.horovod as hvd

try:
    hvd.local_rank()
except RuntimeError as e:
    print("before:", e)
hvd.init()
hvd.init()
hvd.shutdown()
print("made:", dist.is_initialized())
dist.init_process_group("collectives")
hvd.init()
hvd.shutdown()
print("found:", dist.is_initialized())
dist.destroy_process_group()
hvd.shutdown()
"""


def test_shutdown_leaves_a_group_that_init_found(tmp_path):
    (tmp_path / "prog.py").write_text(SHUTDOWN)
    done = mpiexec("torch", 2, str(tmp_path / "prog.py"), timeout=90)
    assert done.returncode == 0, done.stderr[-20_000:]
    assert sorted(done.stdout.splitlines()) == [
        *["before: local_rank: call init() first"] * 2, *["found: True"] * 2, *["made: False"] * 2
    ]  # fmt: skip


def test_short():
    """What the changelog promises."""
    assert len((ROOT / "collectives/horovod.py").read_text().splitlines()) <= 240
