"""Hostile use of the torch backend: ranks that do not come while others wait in torch, strangers that write to stores.

Who waits gets an error that names the rank, and does not crash; what a stranger writes is refused, and runs nothing.
"""

import pytest
from jobs import torch_for

#: Ranks that are forked from a process of the launcher's are none of its ranks.
ALONE = {"TORCHELASTIC_RUN_ID": "attack"}
HOW = ["dead", "stopped", "late", "raising"]


def test_some_ways_without_mpi(attack):
    attack("torch", 1, "torch_failures", ",".join(HOW), "ddp", "send_long_afterwards", env=ALONE)


@pytest.mark.slow
@pytest.mark.parametrize("how", [*HOW, "interrupting"])
def test_all_ways_without_mpi(attack, how):
    attack("torch", 1, "torch_failures", how, env=ALONE, timeout=900)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "ddp_heap_hook", "fsdp2", "pipeline", "receive", "then_calls"])
def test_ways_over_mpi(attack, mpi, way):
    mpi, env = ("torch", None) if mpi == "openmpi" else (mpi, torch_for(mpi))
    attack(mpi, 3, "torch_failures", "late", way, code=None, env=env)


def test_words_of_strangers_in_the_store(attack):
    attack("torch", 1, "torch_store", env=ALONE)
