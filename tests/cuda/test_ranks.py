"""Arrays on a GPU on ranks of Open MPI, where a stand-in plays NVIDIA's driver."""

import re

import pytest
import stand_in
from jobs import LIVE_ON, ROOT, mpiexec

PROGRAMS = ROOT / "tests/cuda/programs"
CLEAN = "left at exit: [0, 0, 0, 0, 0, 0]"


@pytest.fixture
def environment(stand_in_driver):
    return stand_in_driver


def run(environment, ranks, program, *arguments, flags=()):
    done = mpiexec("openmpi", ranks, str(PROGRAMS / f"{program}.py"), *arguments, env=environment, flags=flags)
    return done.returncode, done.stdout, done.stdout + done.stderr[-4000:]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_results_of_all_collectives_in_any_mixture_of_host_and_device(environment, ranks):
    code, output, told = run(environment, ranks, "results")
    assert code == 0, told
    assert output.count("calls, 0 wrong") == ranks, told
    assert output.count(CLEAN) == ranks, told


@pytest.mark.slow
def test_a_wait_that_is_left_out_makes_results_wrong(environment):
    code, output, told = run(environment, 2, "order")
    assert code == 0, told
    assert output.count("left out: noticed") == 2 * 8, told
    assert "NOT NOTICED" not in output, told
    assert output.count(": 0 wrong of 3") == 2 * 7, told
    assert output.count("waits without a scenario: []") == 2, told
    assert output.count(CLEAN) == 2, told


def test_a_function_of_the_driver_that_fails_is_an_error_after_which_calls_work(environment):
    code, output, told = run(environment, 2, "failures")
    assert code == 0, told
    assert output.count("13 failures, 0 wrong") == 2, told
    assert output.count(CLEAN) == 2, told


def test_a_device_that_fails_in_the_middle_is_an_error_on_all_ranks(environment):
    _, output, told = run(environment, 2, "failures", "fault")
    assert "rank 1: CudaError: cuMemcpyHtoDAsync" in output, told
    assert re.search("rank 0: (CollectiveError|PeerFailure): allreduce", output), told
    assert "rank 1 gave up" in output, told


def test_a_rank_that_is_killed_in_the_middle_is_a_peer_failure(environment):
    _, output, told = run(environment, 2, "failures", "killed", flags=LIVE_ON["openmpi"])
    assert "rank 0: PeerFailure: allreduce" in output, told
    assert "rank 1 died" in output, told


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_that_read_each_others_memory_get_the_bits_of_the_hosts_engine(environment, ranks):
    code, output, told = run(environment, ranks, "peers")
    assert code == 0, told
    assert output.count("88 calls, 0 wrong") == ranks, told
    for part in ("uneven", "fallbacks", "caches"):
        assert output.count(f"{part}: 0 wrong") == ranks, told
    assert output.count(CLEAN) == ranks, told


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_wait_for_peers_that_is_left_out_makes_results_wrong(environment, ranks):
    code, output, told = run(environment, ranks, "peer_order")
    assert code == 0, told
    assert output.count("left out: noticed") == ranks * 5, told
    assert output.count(": 0 wrong of 4") == ranks * 2, told
    assert output.count("waits without a scenario: []") == ranks, told
    assert output.count(CLEAN) == ranks, told


def test_peers_that_cannot_open_each_others_memory_go_through_the_host(environment):
    code, output, told = run(environment, 2, "peer_failures")
    assert code == 0, told
    assert output.count("9 failures, 0 wrong") == 2, told
    assert output.count(CLEAN) == 2, told


def test_a_kernel_that_cannot_be_launched_is_an_error_on_all_ranks(environment):
    _, output, told = run(environment, 2, "peer_failures", "fault")
    assert "rank 1: CudaError: cuLaunchKernel" in output, told
    assert "rank 1 gave up" in output, told
    assert "(in allreduce, 160000 bytes, on arrays of GPUs)" in output, told
    assert len(re.findall(r"rank \d then: .*, broken: ", output)) == 2, told


@pytest.mark.parametrize("when", [(), ("late",)])
def test_a_peer_that_is_killed_in_the_middle_is_a_peer_failure(environment, when):
    _, output, told = run(environment, 2, "peer_failures", "killed", *when, flags=LIVE_ON["openmpi"])
    assert "rank 0: PeerFailure: allgather" in output, told
    assert "rank 1 died" in output, told
    assert "(in allreduce, 160000 bytes, on arrays of GPUs)" in output, told


def test_a_peer_that_is_killed_while_only_its_gpu_works_is_a_peer_failure_after_which_others_go_on(environment):
    _, output, told = run(environment, 2, "peer_failures", "killed", "last", flags=LIVE_ON["openmpi"])
    assert "rank 0: PeerFailure: rank 1 died" in output, told
    assert "(in allreduce, 160000 bytes, on arrays of GPUs)" in output, told
    assert "goes on: True" in output, told


def test_a_timeout_covers_what_the_first_call_finds_out(environment):
    _, output, told = run(environment, 2, "peer_failures", "absent")
    assert "rank 0: CollectiveTimeout" in output, told
    assert "not complete after" in output, told


def test_a_long_array_on_the_host_of_one_rank_is_a_mismatch_that_says_why(environment):
    _, output, told = run(environment, 2, "peer_failures", "mixed")
    assert output.count("CollectiveMismatch") >= 2, told
    assert "which all ranks must pass, or none: docs/gpu.md" in output, told


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_schedules_on_the_device_once_mpi_has_proved_itself(environment, ranks):
    code, output, told = run(environment, ranks, "direct")
    assert code == 0, told
    assert output.count("refuted: 0 wrong") == ranks, told
    assert output.count("direct: 0 wrong") == ranks, told
    assert output.count(CLEAN) == ranks, told


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_nonblocking_and_persistent_calls(environment, ranks):
    code, output, told = run(environment, ranks, "requests")
    assert code == 0, told
    for part in ("started", "persistent", "failing"):
        assert output.count(f"{part}: 0 wrong") == ranks, told
    assert output.count(CLEAN) == ranks, told


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_arrays_and_streams_at_the_edge_of_what_is_served(environment, ranks):
    code, output, told = run(environment, ranks, "edges")
    assert code == 0, told
    for part, times in (("empty", 1), ("threads", 2), ("changing", 2), ("managed", 2), ("captured", 2), ("dropped", 1),
                        ("forked", 1)):  # fmt: skip
        assert output.count(f"{part}: 0 wrong") == times * ranks, told
    assert output.count(CLEAN) == ranks, told


def test_what_cannot_be_served_is_refused(environment):
    _, output, told = run(environment, 2, "refusals")
    assert output.count("16 refusals") == 2, told


def test_without_a_driver_arrays_are_refused_with_the_reason(environment):
    _, output, told = run({**environment, stand_in.VARIABLE: "/nowhere.so"}, 1, "refusals", "off")
    assert "1 refusals" in output, told
