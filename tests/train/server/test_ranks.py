"""Parameter servers on the ranks of three MPIs: results, memory, and deaths."""

import re
import time

import pytest
from jobs import LIVE_ON, OPEN_MPI_CRASHED, mpiexec

PROGRAM = "tests/train/server/programs/central.py"


def central(mpi, ranks, *args, **how):
    begin = time.monotonic()
    done = mpiexec(mpi, ranks, PROGRAM, *map(str, args), timeout=120, **how)
    assert time.monotonic() - begin < 100, f"does not end\n{done.stdout}{done.stderr}"
    return done


@pytest.mark.in_turn
def test_strategies_on_ranks(mpi):
    done = central(mpi, 4, "equal")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines().count("equal") == 4, done.stdout


@pytest.mark.long
def test_torch_networks_and_optimizers():
    program = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/train/server/programs/central_torch.py")
    done = mpiexec("torch", 3, *program, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\d+ passed", done.stdout)) == 3


@pytest.mark.long
def test_a_table_that_is_larger_than_the_memory_of_a_worker():
    done = central("openmpi", 4, "capped")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["capped"] * 4


@pytest.mark.quick("openmpi-sync", "mpich-push_sum")
@pytest.mark.parametrize("name", ["sync", "async", "peers", "neighbor_averaging", "push_sum"])
@pytest.mark.in_turn
def test_a_worker_that_raises_ends_all_ranks(mpi, name):
    done = central(mpi, 4, "raises", name)
    assert done.returncode
    assert "IndexError: mine" in done.stderr
    told = r"PeerFailure: .*rank 1 (raised IndexError|died)"
    if mpi != "openmpi":  # their MPI_Abort, of the rank that raises, may be faster
        told += "|MPI_Abort instead of MPI_Finalize"
    assert re.search(told, done.stdout + done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["async", "sync", "peers"])
def test_the_others_go_on_without_a_worker_that_dies_and_no_acknowledged_update_is_lost(name, tmp_path):
    done = central("openmpi", 5, "dies", name, 1, tmp_path, flags=LIVE_ON["openmpi"])
    check_counts(done, name, tmp_path, dead={1})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["backup", "syncbackup"])
@pytest.mark.parametrize("victim", [3, 4])
def test_the_others_go_on_if_one_of_two_servers_dies_and_no_acknowledged_update_is_lost(name, victim, tmp_path):
    done = central("openmpi", 5, "dies", name, victim, tmp_path, flags=LIVE_ON["openmpi"])
    check_counts(done, name, tmp_path, dead={victim})


def acknowledged_by(folder, rank):
    """The number of steps that a rank knew to be acknowledged: the bytes in its file."""
    return (folder / f"acknowledged-{rank}").stat().st_size


def check_counts(done, name, folder, dead, ranks=5, steps=60):
    """Survivors' gradients were each used once; those of the dead as often as was acknowledged, or once more."""
    trains = set(range(ranks if name in ("peers", "beside") else ranks - 2))
    lines = re.findall(r"^rank (\d) steps (\d+) counts (.*)$", done.stdout, re.MULTILINE)
    told = {int(rank): [float(n) for n in counts.split()] for rank, _, counts in lines if int(rank) in trains}
    assert told.keys() >= trains - dead, done.stdout + done.stderr
    for counts in told.values():
        if name.startswith("sync"):  # in clocks with all n workers each counts 1 / n
            assert len({counts[rank] for rank in trains - dead}) == 1
            assert sum(counts) == pytest.approx(steps, rel=1e-12)
            continue
        share = 1 / ranks if name == "peers" else 1.0
        for rank in trains - dead:
            assert counts[rank] == pytest.approx(share * steps, rel=1e-12)
        for rank in trains & dead:
            acknowledged = acknowledged_by(folder, rank)
            least = 0 if name == "peers" else acknowledged  # nobody acknowledges what is for peers
            assert share * least - 1e-9 <= counts[rank] <= share * (acknowledged + 1) + 1e-9


#: Strategies and who dies: 8 times each a worker, one of two servers with copies of each other's part, and a peer.
KILLS = [("async", "1", 8), ("backup", "3", 8), ("peers", "2", 8)]
KILLS += [
    (name, victims, 4)
    for name, victims in (
        ("async", "0,2"), ("sync", "0"), ("sync", "1,2"), ("backup", "1,4"), ("syncbackup", "4"), ("syncbackup", "0,3"),
        ("peers", "1,4"), ("beside", "0"), ("beside", "1,3"),
    )
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "victims", "seed"), [(name, victims, seed) for name, victims, times in KILLS for seed in range(times)]
)
def test_deaths_at_random_moments_lose_no_acknowledged_update(name, victims, seed, tmp_path):
    """Of one or two ranks, also while the ranks part: the others end, and in time."""
    for attempt in range(2):
        (folder := tmp_path / str(attempt)).mkdir()
        done = central("openmpi", 5, "killed", name, victims, seed, folder, flags=LIVE_ON["openmpi"])
        if not OPEN_MPI_CRASHED.search(done.stderr):
            break
    check_counts(done, name, folder, dead=set(map(int, victims.split(","))))


@pytest.mark.parametrize("victim", [1, 4])  # a worker, and a server
def test_a_death_after_the_last_agreement(victim):
    """All have agreed that none has died, and free the communicators that they parted with."""
    done = central("openmpi", 5, "parts", "async", victim, flags=LIVE_ON["openmpi"])
    assert sorted(done.stdout.splitlines())[0].startswith("rank 0"), done.stdout + done.stderr
    assert done.stdout.count("counts") == 4, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr


GOSSIP = ("ad_psgd", "neighbor_averaging", "push_sum")


@pytest.mark.slow
@pytest.mark.parametrize("name", GOSSIP)
def test_ranks_that_gossip_raise_an_error_that_names_the_dead(name):
    done = central("openmpi", 4, "gossips", name, flags=LIVE_ON["openmpi"])
    assert re.search(r"PeerFailure: .*rank 1\b.* died", done.stderr), done.stderr
    assert "finished" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name in GOSSIP for seed in range(6)])
def test_ranks_that_gossip_go_on_in_an_elastic_run(name, seed):
    """One of them dies at a random moment."""
    done = central("openmpi", 4, "elastic", name, seed, flags=LIVE_ON["openmpi"])
    assert done.stdout.count("ended on 3 with 5400") == 3, done.stdout + done.stderr


@pytest.mark.quick("1")
@pytest.mark.parametrize("victim", [1, 4])
def test_without_a_way_to_go_on_the_error_names_the_rank_that_died(victim, tmp_path):
    done = central("impi", 5, "dies", "async", victim, tmp_path, flags=LIVE_ON["impi"])
    assert re.search(rf"PeerFailure: .*rank {victim} died", done.stdout + done.stderr), done.stdout + done.stderr
