"""collectives.jax on real ranks, and its failures: the programs in programs/, and short ones written here."""

import re
import subprocess
import sys

import pytest
from jobs import ROOT, mpiexec, variables
from scripts import run

pytestmark = pytest.mark.skipif(
    not (ROOT / ".venvs/jax/ready").exists(), reason="there is no .venvs/jax, which make build-all makes"
)
PREAMBLE = """
import sys, time
import jax, jax.numpy as jnp, numpy as np
from mpi4py import MPI
import collectives
import collectives.jax as cj
comm = collectives.Communicator(MPI.COMM_WORLD)
rank, size = comm.rank, comm.size
"""


def job(program, ranks=2, env=None):
    return run("jax", program, ranks, env=env, preamble=PREAMBLE)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)])
def test_on_ranks(ranks):
    """In one job, for much of the time that one needs goes by until JAX is there."""
    paths = [f"tests/jax/programs/{program}.py" for program in ("jax_calls", "jax_gradients")]
    done = mpiexec("jax", ranks, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [int(n) for n in re.findall(r"(\d+) passed", done.stdout)]
    assert len(passed) == ranks, done.stdout
    assert min(passed) >= 69, done.stdout
    assert not re.search(r"skipped|xfailed|deselected", done.stdout)


def test_calls_that_differ():
    """The exception has the text of ours and names the function; ours itself is at hand."""
    code, printed = job("""
        x = jnp.ones(3 + rank)
        try:
            jax.block_until_ready(jax.jit(lambda x: cj.allreduce(x, comm=comm))(x))
        except jax.errors.JaxRuntimeError as e:
            assert "collectives.jax.allreduce: CollectiveMismatch: " in str(e), str(e)
            assert "3 float32" in str(e) and "4 float32" in str(e), str(e)
            assert isinstance(cj.failure(), collectives.CollectiveMismatch)
            print("told", flush=True)
        MPI.COMM_WORLD.Barrier()  # the call of a rank that has ended is not in the report of the other
    """)
    assert printed.count("told\n") == 2, printed


def test_a_rank_that_does_not_come():
    """The error names the line of the program, although XLA has made the call."""
    code, printed = job("""
        jax.block_until_ready(cj.allreduce(jnp.ones(3), comm=comm))  # compiles, before there is little time
        comm.timeout = 0.5
        if rank == 0:
            try:
                jax.block_until_ready(cj.allreduce(jnp.ones(3), comm=comm))
            except jax.errors.JaxRuntimeError as e:
                assert "collectives.jax.allreduce: CollectiveTimeout: " in str(e), str(e)
                assert "rank 1" in str(e), str(e)
                print("told", flush=True)
        else:
            time.sleep(2)
    """)
    assert "told\n" in printed, printed


def test_a_rank_that_dies():
    code, printed = job("""
        program = jax.jit(lambda x: cj.allreduce(x, comm=comm))
        jax.block_until_ready(program(jnp.ones(3)))
        if rank == 1:
            raise ArithmeticError("its own")
        jax.block_until_ready(program(jnp.ones(3)))
    """)
    assert code != 0
    assert re.search(r"collectives\.jax\.allreduce: PeerFailure: .*rank 1 raised ArithmeticError", printed), printed


def test_a_program_that_is_compiled_for_a_freed_communicator():
    code, printed = job("""
        part = comm.Dup()
        program = jax.jit(lambda x: cj.allreduce(x, comm=part))
        jax.block_until_ready(program(jnp.ones(3)))
        part.Free()
        try:
            jax.block_until_ready(program(jnp.ones(3)))
        except jax.errors.JaxRuntimeError as e:
            assert "collectives.jax.allreduce: CollectiveError: the communicator has been freed" in str(e), str(e)
            print("told", flush=True)
    """)
    assert code == 0, printed
    assert printed.count("told\n") == 2, printed


def test_calls_after_a_failure_in_the_background():
    """JAX lets all later calls fail, until the program has asked for the exception."""
    code, printed = job("""
        part, square = comm.Dup(), jnp.eye(600)
        programs = [
            jax.jit(lambda x, c=c: cj.allreduce(jnp.linalg.matrix_power(x, 40)[:3, :3], comm=c)) for c in (part, comm)
        ]
        for program in programs:
            jax.block_until_ready(program(square))
        part.Free()
        result = programs[0](square)
        for wait in (lambda: result, lambda: programs[1](square), lambda: cj.allreduce(jnp.ones(2), comm=comm)):
            try:
                jax.block_until_ready(wait())
            except jax.errors.JaxRuntimeError as e:
                assert "the communicator has been freed" in str(e), str(e)
                print("told", flush=True)
        assert isinstance(cj.failure(), collectives.CollectiveError)
        assert (programs[1](square) == size * jnp.eye(3)).all()
        jax.effects_barrier()
        print("fine", flush=True)
    """)
    assert code == 0, printed
    assert printed.count("told\n") == 6, printed
    assert printed.count("fine\n") == 2, printed
    assert "ignored in atexit" not in printed, printed


def test_a_failure_that_nobody_waited_for_is_told_once():
    code, printed = job("""
        part, square = comm.Dup(), jnp.eye(600)
        program = jax.jit(lambda x: cj.allreduce(jnp.linalg.matrix_power(x, 40)[:3, :3], comm=part))
        jax.block_until_ready(program(square))
        part.Free()
        program(square)
    """)
    # JAX 0.7 names the exception as XLA does, and up to 0.9 the text has words of XLA's before ours.
    told = re.findall("RuntimeError: INTERNAL: .*collectives.jax.allreduce: CollectiveError: the comm", printed)
    assert len(told) == 2, printed


def test_calls_by_schedules():
    """Calls that the node-local engine does not serve; later ones take the plan of the first."""
    code, printed = job(
        """
        program = jax.jit(lambda x: cj.allreduce(x, comm=comm) + cj.allgather(x, comm=comm).sum(0))
        for i in range(4):
            found = program(jnp.full(5, i + rank, jnp.float32))
            assert (found == 2 * (size * i + sum(range(size)))).all(), found
            assert comm.last.algorithm == "ring", comm.last
        cj.barrier(comm=comm)
        print("done", flush=True)
        """,
        3, {"COLLECTIVES_ALGORITHM": "allreduce=ring,allgather=ring"},
    )  # fmt: skip
    assert code == 0, printed
    assert printed.count("done\n") == 3, printed


def test_ctrl_c():
    """A signal ends a wait: the exception that its handler raises comes after JAX's error."""
    code, printed = job("""
        import signal
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        if rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)  # again, if one comes in a callback of JAX, which ignores it
            try:
                try:
                    jax.block_until_ready(cj.allreduce(jnp.ones(3), comm=comm))
                except jax.errors.JaxRuntimeError as e:
                    assert "collectives.jax.allreduce: KeyboardInterrupt" in str(e), str(e)
                    time.sleep(5)
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                print("told", flush=True)
        else:
            time.sleep(4)
    """)
    assert "told\n" in printed, printed


def test_a_message_of_another_length():
    code, printed = job("""
        if rank == 0:
            cj.send(jnp.ones(2), 1, comm=comm)
        else:
            try:
                jax.block_until_ready(cj.recv(jnp.ones(3), 0, comm=comm))
            except jax.errors.JaxRuntimeError as e:
                assert "collectives.jax.recv: ValueError: rank 0 has sent 8 bytes, where 12 were expected" in str(e)
                print("told", flush=True)
    """)
    assert "told\n" in printed, printed


def test_within_a_group_of_fused_calls():
    code, printed = job("""
        try:
            with comm.group():
                jax.block_until_ready(cj.allreduce(jnp.ones(3), comm=comm))
        except (ValueError, jax.errors.JaxRuntimeError) as e:
            assert "within a group" in str(e), str(e)
            print("told", flush=True)
    """)
    assert printed.count("told\n") == 2, printed


def test_what_is_under_way_at_the_end():
    """A program that nobody waits for ends before MPI does."""
    code, printed = job("""
        if rank == 0:
            time.sleep(0.5)
        program = jax.jit(lambda x: cj.allreduce(jnp.linalg.matrix_power(x, 50), comm=comm))
        for _ in range(3):
            program(jnp.eye(200))
    """)
    assert code == 0, printed
    assert "Error" not in printed, printed


def test_what_another_thread_has_under_way_at_the_end():
    """The process waits for it, too; else XLA's thread would ask for an interpreter that is no more, for ever."""
    code, printed = job("""
        import threading
        program = jax.jit(lambda x: cj.allreduce(jnp.linalg.matrix_power(x, 100), comm=comm))
        if rank == 0:
            time.sleep(0.5)
        thread = threading.Thread(target=lambda: [program(jnp.eye(600)) for _ in range(3)])
        thread.start()
        thread.join()
        print("ends", flush=True)
    """)
    assert code == 0, printed
    assert printed.count("ends\n") == 2, printed
    assert "Error" not in printed, printed


def alone(program, **env):
    line = [ROOT / ".venvs/jax/bin/python", "-c", program]
    return subprocess.run(line, env=variables(env), cwd=ROOT, capture_output=True, text=True, timeout=60)


WITHOUT_MPI = """
import sys
sys.modules["mpi4py"] = None  # as if it were not installed
import jax, jax.numpy as jnp
import collectives.jax as cj
x = jnp.arange(6.0).reshape(1, 6)
for found in (
    cj.allreduce(x), cj.allreduce(x, "max"), cj.bcast(x), cj.allgather(x[0]), cj.alltoall(x),
    cj.reduce_scatter(x)[None], cj.gather(x[0]), cj.scatter(x)[None], cj.sendrecv(x, dest=0, source=0),
    jax.jit(jax.grad(lambda x: (cj.allreduce(cj.replicated(x)) ** 2).sum() / 2))(x),
):
    assert (found == x).all(), found
cj.barrier()
try:
    cj.allreduce(x, "band")
except TypeError as e:
    print(e)
"""


def test_a_process_without_mpi():
    done = alone(WITHOUT_MPI)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "collectives.jax.allreduce: op: band does not apply to float32\n"


@pytest.mark.parametrize(
    "launcher", [{"OMPI_COMM_WORLD_SIZE": "2"}, {"PMI_SIZE": "1", "SLURM_STEP_NUM_TASKS": "2"}], ids=len
)
def test_ranks_without_mpi4py_are_refused(launcher):
    done = alone(WITHOUT_MPI, **launcher)
    assert "ImportError: comm: this is one of 2 processes, but there is no mpi4py" in done.stderr


def test_the_package_does_not_import_jax():
    program = "import sys, collectives; collectives.Communicator; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], env=variables(), cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.long
def test_the_example():
    done = mpiexec("jax", 2, "examples/jax_regression.py", timeout=120)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert losses[-1] < 0.05 * losses[0], done.stdout
    one = mpiexec("jax", 1, "examples/jax_regression.py", timeout=120)
    assert [float(line.split()[-1]) for line in one.stdout.splitlines() if line.startswith("step")] == pytest.approx(
        losses, rel=1e-9
    )
