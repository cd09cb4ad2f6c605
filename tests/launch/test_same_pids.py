"""Two jobs in PID namespaces of their own, as in containers that share /dev/shm: their processes have the same PIDs."""

import subprocess
import tempfile

import pytest
from jobs import launch

OWN = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]


def test_two_jobs_at_once():
    """Each has a folder of its own for Open MPI's segments, as docs/operating.md says; else the two crash or hang."""
    if subprocess.run([*OWN, "true"], capture_output=True).returncode:
        pytest.skip(f"{' '.join(OWN)} is not permitted here")
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        jobs = [started(number, folder) for number, folder in ((1, first), (2, second))]
        ends = [job.communicate(timeout=100) for job in jobs]
    for job, (output, errors) in zip(jobs, ends, strict=True):
        assert job.returncode == 0, output + errors
        assert output.count("right on rank") == 2, output


def started(number, folder):
    """A job that has ``folder`` for its launcher's files, too: they are named by PIDs as well."""
    env = {"OMPI_MCA_btl_sm_backing_directory": folder, "TMPDIR": folder}
    line, how = launch("openmpi", 2, ["tests/launch/programs/twin.py", str(number)], env, ())
    return subprocess.Popen(
        [*OWN, "timeout", "-k", "5", "60", *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how
    )
