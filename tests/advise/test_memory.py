"""The terms of memory by hand: four blocks of 1,100 parameters, which keep 1,000 bytes of a sample."""

import dataclasses

import pytest

from collectives.advise.memory import memory
from collectives.advise.model import Block, Model
from collectives.advise.plan import Mesh, Plan

BLOCK = Block("b", cut=1000, whole=100, flops=1e6, kept_cut=800, kept_whole=200, border=40, reduced=40)
MODEL = Model("four", (dataclasses.replace(BLOCK, border=0), BLOCK, BLOCK, BLOCK))


def of(mesh, micro_batch=1, micro_batches=4, model=MODEL, **settings):
    return tuple(memory(model, Plan(Mesh(*mesh), micro_batch, micro_batches, **settings)))


def test_one_rank():
    assert of((1, 1, 1), 2, 3) == (2 * 4400, 2 * 4400, 12 * 4400, 2 * 4000, 0)


def test_data_ranks_share_nothing_without_zero():
    assert of((4, 1, 1)) == of((1, 1, 1))


@pytest.mark.parametrize(
    ("stage", "terms"),
    [
        (1, (8800, 8800, 52800 / 4, 4000, 8800 / 4)),
        (2, (8800, 8800 / 4, 52800 / 4, 4000, 2 * 2 * 1100)),
        (3, (8800 / 4, 8800 / 4, 52800 / 4, 4000, 2 * 4 * 1100)),
    ],
)
def test_zero(stage, terms):
    """Rajbhandari et al. 2020, sec. 5: stage 1 shards 12 of 16 bytes, stage 2 gradients, stage 3 weights."""
    assert of((4, 1, 1), zero=stage) == terms


def test_tensor_ranks():
    """They have a half of what is cut, and all of the rest; with cut positions a half of all activations."""
    assert of((1, 1, 2)) == (2 * 2400, 2 * 2400, 12 * 2400, 4 * (400 + 200), 0)
    assert of((1, 1, 2), sequence=True)[3] == 4 * (400 + 100)


@pytest.mark.parametrize(
    ("schedule", "chunks", "kept"),
    [("1f1b", 1, 2 * 2000), ("gpipe", 1, 8 * 2000), ("zero_bubble", 1, 2 * 2000), ("interleaved_1f1b", 2, 5 * 1000)],
)
def test_activations_of_schedules(schedule, chunks, kept):
    """On stage 0 of 2 with 8 micro-batches: K, M, K, and (v-1) K + 2 (K-1) + 1 of a chunk. Messages: two of 40 bytes,
    on as many borders as the chunks have of each direction."""
    found = of((1, 2, 1), micro_batches=8, schedule=schedule, chunks=chunks)
    assert found[:4] == (4400, 4400, 26400, kept)
    assert found[4] == 2 * 40 * (1 if chunks == 1 else 2)


def test_few_micro_batches_keep_less():
    assert of((1, 4, 1), micro_batches=2)[3] == 2 * 1000


def test_versions_of_the_weights():
    assert of((1, 2, 1), schedule="pipedream_2bw")[0] == 2 * 4400


@pytest.mark.parametrize(
    ("recompute", "kept"),
    [
        ("none", 2 * 2000),
        ("block", 2 * 40 + 1000),  # the input of the second block, twice; and the whole first one, which has no input
        ("stage", 2000),
    ],
)
def test_recomputation(recompute, kept):
    assert of((1, 2, 1), recompute=recompute)[3] == kept


def test_attention_is_computed_again():
    """Of 400 bytes in each block those of one block are there in a backward pass."""
    model = Model("attending", (dataclasses.replace(BLOCK, attention=400),) * 4)
    assert of((1, 1, 1), model=model)[3] == 4 * 1400
    assert of((1, 1, 1), model=model, recompute="attention")[3] == 4 * 1000 + 400
    assert of((1, 1, 2), model=model, recompute="attention")[3] == 4 * 600 + 200


def test_the_stage_that_needs_the_most_counts():
    """The last one has few activations, but here most of the parameters."""
    model = Model("late", (BLOCK, dataclasses.replace(BLOCK, cut=100_000)))
    assert of((1, 2, 1), model=model)[:4] == (2 * 100_100, 2 * 100_100, 12 * 100_100, 1000)
