"""docs/clusters.md: its job scripts run under Slurm, its commands on two hosts, and its tables tell what is so."""

import os
import re
import subprocess

import pytest
from faults import Hosts
from jobs import MPIS, ROOT, mpiexec, variables

PAGE = (ROOT / "docs/clusters.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SCRIPTS = {re.search(r"^# (.*)\.sbatch$", b, re.MULTILINE)[1]: b for _, b in BLOCKS if b.startswith("#!")}
COMMANDS = [block for language, block in BLOCKS if language == "sh" and not block.startswith("#!")]
PROGRAMS = {re.match(r"# (.*)\n", block)[1]: block for language, block in BLOCKS if language == "python"}
PRINTED = [block for language, block in BLOCKS if language == "text"]
#: The environment of each script.
ENVIRONMENTS = {
    "mpich": "mpich", "openmpi": "openmpi", "mpich-mpiexec": "mpich", "openmpi-mpiexec": "openmpi",
    "impi-mpiexec": "impi", "cores": "mpich", "torch": "torch",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A folder with the page's programs."""
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(program)
    return tmp_path


def first_on_path(mpi):
    return {"PATH": f"{ROOT}/.venvs/{mpi}/bin:{os.environ['PATH']}"}


def test_every_block_is_executed():
    assert SCRIPTS.keys() == ENVIRONMENTS.keys()
    assert [re.search(r"--host |-hosts ", command) is not None for command in COMMANDS] == [True] * 3
    assert len(SCRIPTS) + len(COMMANDS) + len(PROGRAMS) + len(PRINTED) == len(BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_job_script(name, slurm, folder):
    if "pmix" in SCRIPTS[name] and (why := slurm.why_no_pmix()):
        pytest.skip(why)
    script = folder / f"{name}.sbatch"
    script.write_text(SCRIPTS[name])
    code, printed = slurm.sbatch(script, first_on_path(ENVIRONMENTS[name]), timeout=300)
    expected = PRINTED[1] if name == "torch" else PRINTED[0]
    assert code == 0, printed
    assert (expected if name != "cores" else "2 ranks on 2 machines: 3\n") in printed
    assert "may run on" not in printed


@pytest.mark.slow
def test_a_task_without_its_cores_is_reported(slurm, folder):
    """The script for cores, without the option of srun that the page tells to give."""
    script = folder / "few.sbatch"
    script.write_text(SCRIPTS["cores"].replace(" --cpus-per-task=$SLURM_CPUS_PER_TASK", ""))
    code, printed = slurm.sbatch(script, first_on_path("mpich"), timeout=300)
    assert code == 0, printed
    assert re.search(r"rank 0 may run on core \d only, although SLURM_CPUS_PER_TASK is 2\. Since Slurm 22\.05", printed)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "mpi"), list(zip(COMMANDS, MPIS, strict=True)), ids=MPIS)
def test_command(command, mpi, folder):
    """The hosts' names are replaced by their addresses, and the network by theirs, as this machine sees it."""
    with Hosts(2) as hosts:
        hosts.flags(mpi, folder, 2)  # writes the program that stands for ssh
        agent = str(folder / "rsh")
        env = {**first_on_path(mpi), "PRTE_MCA_plm_ssh_agent": agent, "HYDRA_LAUNCHER": "rsh"}
        env |= {"HYDRA_LAUNCHER_EXEC": agent, "I_MPI_HYDRA_BOOTSTRAP": "rsh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": agent}
        network = hosts.outside.removesuffix("254") + "0/24"
        line = command.replace("10.0.0.0/24", network).replace("-iface eth0", f"-iface {hosts.bridge}")
        line = line.replace("node1", hosts.address(0)).replace("node2", hosts.address(1))
        done = subprocess.run(
            ["timeout", "-k", "5", "200", "sh", "-c", line], cwd=folder, env=variables(env), capture_output=True,
            text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == PRINTED[0]


#: Rows of the table of namespaces, and what `unshare` is told; the MPI is one that survives it.
NAMESPACES = {
    "PID namespaces": ("mpich", ["--pid", "--fork", "--mount-proc"]),
    "user namespaces": ("openmpi", ["--user", "--map-root-user"]),
    "IPC namespaces": ("openmpi", ["--ipc"]),
    "network namespaces": ("mpich", ["--net"]),
    "host names": ("openmpi", ["--uts"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", NAMESPACES)
def test_namespaces(what):
    mpi, options = NAMESPACES[what]
    shares = re.search(rf"^\| {what}[^|]*\| (yes|no)\b", PAGE, re.MULTILINE)[1] == "yes"
    python = str(ROOT / f".venvs/{mpi}/bin/python")
    code = (
        "from mpi4py import MPI; import collectives, subprocess, sys; c = collectives.Communicator(MPI.COMM_WORLD); "
        "print(c.explain('allreduce', 8), flush=True)"
    )
    if subprocess.run(["unshare", *options, "true"], capture_output=True).returncode:
        pytest.skip(f"unshare {' '.join(options)} is not permitted here")
    inner = f"import os; os.execvp('unshare', {['unshare', *options, python, '-c', code]!r})"
    done = mpiexec(mpi, 2, "-c", inner, timeout=100)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert len(words) == 2, words
    assert all(("all ranks share a node" in line) == shares for line in words), words
    assert shares or any("its heap cannot be mapped" in line for line in words), words


def test_messages_of_this_library_are_as_quoted():
    """Quoted texts that are not another program's, up to their first number."""
    files = [*ROOT.glob("collectives/**/*.py"), *ROOT.glob("csrc/*/*.c")]
    sources = "".join(file.read_text() for file in files)
    section = PAGE.split("## Error messages")[1]
    quoted = [text for row in section.splitlines() if row.startswith("| `") for text in re.findall(r"`(.*?)`", row)[:1]]
    quoted = [text for text in quoted if "(srun)" not in text and not text.startswith(("Invalid MPI", "unable to"))]
    assert len(quoted) >= 6
    for text in quoted:
        assert re.split(r" [\d.]+ ", text)[0] in sources, text


def test_links():
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
