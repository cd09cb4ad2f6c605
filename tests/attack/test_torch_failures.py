"""Hostile use of the torch backend: ranks that do not come while others wait in torch, strangers that write to stores.

Who waits gets an error that names the rank, and does not crash; what a stranger writes is refused, and runs nothing.
"""

import pytest
from jobs import LIVE_ON, MPIS, torch_for

#: Ranks that are forked from a process of the launcher's are none of its ranks.
ALONE = {"TORCHELASTIC_RUN_ID": "attack"}
#: MPICH's launcher ends the survivors of a death before all have told what they got.
OVER_MPI = [(mpi, how, 3) for mpi in MPIS for how in ("late", "dead", "raising") if (mpi, how) != ("mpich", "dead")]
OVER_MPI += [("openmpi", "dead", 2), ("impi", "late", 2), ("mpich", "raising", 2)]
HOW = ["dead", "stopped", "late", "raising"]


@pytest.mark.long
@pytest.mark.quick("3-ways0")
@pytest.mark.parametrize(
    ("ranks", "ways"), [(3, ("ddp", "send_long_afterwards")), (2, ("ddp_bucket_view", "ddp_allreduce_hook", "future"))]
)
def test_some_ways_without_mpi(attack, ranks, ways):
    attack("torch", 1, "torch_failures", ",".join(HOW), *ways, env={**ALONE, "RANKS": str(ranks)})


@pytest.mark.long
def test_a_process_that_takes_long_to_end(attack):
    attack("torch", 1, "torch_failures", "lingering", "send_long", "exchange_batch", env=ALONE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("how", "ranks"), [*((how, 3) for how in (*HOW, "interrupting")), ("stopped", 2), ("dead", 2)])
def test_all_ways_without_mpi(attack, how, ranks):
    attack("torch", 1, "torch_failures", how, env={**ALONE, "RANKS": str(ranks)}, timeout=900)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("mpi", "how", "ranks"), OVER_MPI)
@pytest.mark.parametrize("way", ["ddp", "ddp_heap_hook", "fsdp2", "pipeline", "receive", "then_calls"])
def test_ways_over_mpi(attack, mpi, way, how, ranks):
    env, flags = None if mpi == "openmpi" else torch_for(mpi), LIVE_ON[mpi] if how == "dead" else ()
    attack("torch" if mpi == "openmpi" else mpi, ranks, "torch_failures", how, way, code=None, env=env, flags=flags)


def test_words_of_strangers_in_the_store(attack):
    attack("torch", 1, "torch_store", env=ALONE)
