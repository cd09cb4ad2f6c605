"""The terms of time by hand: blocks of a second for each sample, links of 100 bytes a second."""

import dataclasses
import math

import pytest

from collectives.advise.links import Group, Links
from collectives.advise.machine import Machine
from collectives.advise.model import Block, Model
from collectives.advise.plan import Mesh, Plan
from collectives.advise.replays import Passes, least, run
from collectives.advise.step import Estimate, _exposed
from collectives.train.pipeline.instructions import LAST
from collectives.train.pipeline.lowering import lowered
from collectives.train.pipeline.registry import find
from collectives.train.pipeline.replay import Durations, replay

BLOCK = Block(
    "b", cut=1000, whole=100, flops=1e6, kept_cut=800, kept_whole=200, border=40, reduced=40, forward_calls=1,
    backward_calls=1,
)  # fmt: skip
MODEL = Model("four", (BLOCK,) * 4)
MACHINE = Machine(
    4, 1e9, 1e6, per_host=1, alpha=0.25, beta=100, local_alpha=0.01, local_beta=1000, fold=math.inf
)  # fmt: skip


def of(mesh, micro_batch=1, micro_batches=4, model=MODEL, machine=MACHINE, **settings):
    return Estimate(model, machine, Plan(Mesh(*mesh), micro_batch, micro_batches, **settings)).step()


def test_one_rank_only_computes():
    """4 micro-batches of 2 samples, 4 blocks, a second forward and two backward."""
    assert tuple(of((1, 1, 1), 2)) == (96, 0, 0, 0, 0, 0)


def test_the_optimizer():
    """It reads and writes weights and states and reads gradients: 30 bytes for each of 4,400 parameters."""
    machine = dataclasses.replace(MACHINE, update_rate=1000)
    assert of((1, 1, 1), machine=machine).update == pytest.approx(132)
    assert of((4, 1, 1), 1, 1, machine=machine, zero=1).update == pytest.approx(33)


@pytest.mark.parametrize(("schedule", "passes"), [("1f1b", 2), ("zero_bubble", 3)])
def test_the_overhead_of_each_pass(schedule, passes):
    """4 micro-batches, with a backward pass that is split or not."""
    machine = dataclasses.replace(MACHINE, overhead=0.5)
    without, found = of((1, 1, 1), schedule=schedule), of((1, 1, 1), schedule=schedule, machine=machine)
    assert found.compute - without.compute == pytest.approx(4 * passes * 0.5)


def test_tensor_ranks():
    """A quarter of the computation; 4 + 4 all-reduces of 40 bytes by recursive doubling: 2 alpha + 2 n beta."""
    found = of((1, 1, 4), micro_batches=1)
    assert found.compute == pytest.approx(3)
    assert found.tensor == pytest.approx(8 * (2 * 0.25 + 2 * 40 / 100))
    assert found.seconds == found.compute + found.tensor


@pytest.mark.parametrize(
    ("schedule", "idle"), [("1f1b", 9), ("gpipe", 9), ("zero_bubble", 3)]
)  # (K-1) (F+B) and (K-1) (F+I-W)
def test_bubble(schedule, idle):
    machine = dataclasses.replace(MACHINE, alpha=0, beta=math.inf)
    assert tuple(of((1, 4, 1), schedule=schedule, machine=machine)) == (12, 0, idle, 0, 0, 0)


def test_interleaving_shortens_the_bubble():
    machine = dataclasses.replace(MACHINE, alpha=0, beta=math.inf)
    assert of((1, 2, 1), schedule="1f1b", machine=machine).bubble == 6
    assert of((1, 2, 1), schedule="interleaved_1f1b", chunks=2, machine=machine).bubble == 3


def test_without_a_flush_there_is_no_bubble():
    machine = dataclasses.replace(MACHINE, alpha=0, beta=math.inf)
    assert tuple(of((1, 4, 1), schedule="pipedream_2bw", machine=machine)) == (12, 0, 0, 0, 0, 0)


def test_transfers():
    """What messages of alpha + 40 beta = 0.65 s add, as the replay of the schedule says: 3 there and 3 back, if a stage
    need not wait for them in between."""
    found = of((1, 4, 1), micro_batches=1)
    assert found.transfers == pytest.approx(6 * 0.65)
    assert found.bubble == 9


def test_averaging():
    """An all-reduce of 8,800 bytes in one bucket, by circulant: 4 alpha + 2 n 3/4 beta, after the backward pass."""
    assert of((4, 1, 1), micro_batches=1).data == pytest.approx(1 + 132)


def test_sharding():
    """A reduce-scatter and an all-gather: together an all-reduce. With stage 2 gradients go beside each backward pass,
    with stage 3 weights go beside each pass, too."""
    half = 2 * 0.25 + 66
    assert of((4, 1, 1), micro_batches=1, zero=1).data == pytest.approx(2 * half)
    assert of((4, 1, 1), micro_batches=2, zero=2).data == pytest.approx(2 * (half - 8) + half)
    assert of((4, 1, 1), micro_batches=2, zero=3).data == pytest.approx(2 * (half - 4 + 2 * half - 8))


def test_buckets_hide_what_the_backward_pass_is_long_enough_for():
    four = 4 * (1 << 20)
    assert _exposed(10, four, 4) == 7  # the first of four leaves after 1 s, and the others keep the link busy
    assert _exposed(10, four, 100) == 2.5  # the last one leaves at the end
    assert _exposed(10, 1, 100) == 10


def test_recomputation_repeats_passes_and_their_all_reduces():
    again = of((1, 1, 4), micro_batches=1, recompute="block")
    assert again.compute == pytest.approx(4)
    assert again.tensor == pytest.approx(12 * 1.3)
    attending = Model("a", (dataclasses.replace(BLOCK, attention=8, attention_flops=2e5),) * 4)
    assert of((1, 1, 1), micro_batches=1, model=attending, recompute="attention").compute == pytest.approx(12.8)


def test_an_all_reduce_on_hosts_of_two_ranks():
    """On the hosts 10 ms and half of the bytes, twice. Between them, each of two lanes has half of the port: recursive
    doubling of 500 bytes."""
    links = Links(dataclasses.replace(MACHINE, per_host=2), pipeline=1, data=4, tensor=1)
    assert links.data == Group(4, 2, 2, 2)
    assert links.allreduce(links.data, 1000) == pytest.approx(2 * (0.01 + 0.5) + 0.25 + 500 * 2 / 100)


def test_groups_lie_as_the_axes_of_a_mesh_do():
    machine = Machine(64, 1, 1, per_host=8)
    links = Links(machine, pipeline=2, data=8, tensor=4)
    assert (links.tensor, links.data) == (Group(4, 1, 4, 4), Group(8, 4, 2, 2))
    assert Links(machine, 1, 4, 16).tensor == Group(16, 2, 8, 8)


def test_a_host_with_fewer_ranks_has_fewer_lanes():
    """9 ranks, 8 a host: the first host works as 8, and one lane carries the whole vector."""
    machine = dataclasses.replace(MACHINE, ranks=9, per_host=8)
    links = Links(machine, 1, 9, 1)
    assert links.data == Group(9, 2, 8, 1)
    even = Links(dataclasses.replace(machine, ranks=16), 1, 16, 1)
    assert links.allreduce(links.data, 1e6) > even.allreduce(even.data, 1e6)


def test_transfers_within_hosts_are_cheaper():
    """Of 3 borders of 4 stages, 2 ranks a host, one is between hosts; one rank sends through the port."""
    links = Links(dataclasses.replace(MACHINE, per_host=2), pipeline=4, data=1, tensor=1)
    assert links.transfer(100) == pytest.approx((2 * (0.01 + 0.1) + 0.25 + 1) / 3)


PASSES = {
    "equal": lambda i: Passes(1.0, 1.0, 1.0),
    "slow": lambda i: Passes(1.0 + (i == 2), 1.0 + (i == 2), 1.0),
    "last": lambda i: Passes(1.0, 1.0, 1.0) if i < 3 else Passes(1.4, 1.3, 1.3),
}


@pytest.mark.parametrize("transfer", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero_bubble", "interleaved_1f1b"])
@pytest.mark.parametrize("kind", PASSES)
def test_long_pipelines_go_on_regularly(kind, name, transfer):
    """Replayed as a whole they last as long as is said, within a micro-batch of a stage, and at least as long as
    `least`."""
    stages, count = 4, 40
    schedule = find(name)()
    passes = tuple(map(PASSES[kind], range(stages * schedule.chunks)))
    found = run(name, stages, count, passes, transfer)
    durations = Durations(
        [p.forward for p in passes], [p.backward for p in passes], [p.backward_input for p in passes],
        [p.backward_weight for p in passes], transfer,
    )  # fmt: skip
    timeline = replay(lowered(schedule, stages, count), durations)
    assert found.length == pytest.approx(timeline.length, rel=1e-9)
    ends = [max(s.end for s in spans if s.instruction.kind in LAST) for spans in timeline.stages]
    assert found.ends == pytest.approx(ends)
    known = least(name, stages, count, passes, transfer)
    assert known <= found.length * (1 + 1e-12)
    if not transfer and kind == "equal":
        assert known == pytest.approx(found.length)
