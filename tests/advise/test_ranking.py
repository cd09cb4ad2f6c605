"""The ranking: it is that of all plans one by one, and says why, and what does not fit."""

import re

import pytest

from collectives.advise.asynchronous import compared, conditions
from collectives.advise.machine import MACHINES, Machine
from collectives.advise.memory import memory
from collectives.advise.model import Shape, transformer
from collectives.advise.plan import Choices, Mesh, Plan, meshes, plans
from collectives.advise.ranking import advise, judged
from collectives.advise.reasons import reasons
from collectives.advise.step import Estimate, Step
from collectives.simulation.strategies import pace
from collectives.train.cli.choice import Choice

MODEL = transformer(Shape(10, 1024, 16, sequence=512, vocabulary=8192))
BATCH = 48


def machine(**changes):
    return Machine(**{"ranks": 12, **MACHINES["dgx-a100"], "per_host": 4, "beta": 10e9, "memory": 1.2e9, **changes})


def everything(rig, choices):
    """The fastest plan of each mesh, without any shortcut."""
    found = {}
    for mesh in meshes(MODEL, BATCH, rig.ranks, choices):
        fitting = [p for p in plans(MODEL, BATCH, mesh, choices) if memory(MODEL, p).total <= rig.memory]
        if fitting:
            found[mesh] = min(judged(MODEL, rig, plan).step.seconds for plan in fitting)
    return found


@pytest.mark.parametrize("nbytes", [0.3e9, 0.8e9, 1.2e9, 80e9])
def test_the_best_of_all_plans(nbytes):
    choices = Choices(schedules=("1f1b", "interleaved_1f1b", "zero_bubble"), zero=(0, 1, 3))
    rig = machine(memory=nbytes)
    found = advise(MODEL, rig, BATCH, choices, top=4)
    expected = everything(rig, choices)
    seconds = [entry.step.seconds for entry in found.ranked]
    assert seconds == pytest.approx(sorted(expected.values())[:4], rel=0.0051)
    assert seconds == sorted(seconds)
    for entry in found.ranked:
        assert expected[entry.plan.mesh] == pytest.approx(entry.step.seconds, rel=0.0051)
        assert entry.memory.total <= nbytes
    assert found.others == len(expected) - len(found.ranked)
    assert len(found.too_large) == len(meshes(MODEL, BATCH, 12, choices)) - len(expected)


def test_a_step_takes_at_least_what_is_known_at_once():
    choices = Choices(schedules=("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "pipedream_2bw"), zero=(0, 1))
    for mesh in meshes(MODEL, BATCH, 12, choices):
        for plan in plans(MODEL, BATCH, mesh, choices):
            estimate = Estimate(MODEL, machine(), plan)
            step = estimate.step()
            assert estimate.least <= step.seconds * (1 + 1e-9), plan
            assert min(step) >= -1e-12, plan


def test_every_mesh_has_a_reason():
    found = advise(MODEL, machine(memory=0.5e9), BATCH, top=50)
    sentences = reasons(found)
    assert len(sentences) == len(found.ranked) + len(found.too_large)
    assert sentences[0].startswith(f"{found.ranked[0].plan.mesh.form} is the fastest that fits")
    for entry, sentence in zip(found.ranked[1:], sentences[1:], strict=False):
        assert sentence.startswith(f"{entry.plan.mesh.form} takes ") or "as fast, within" in sentence
    for excess, sentence in zip(found.too_large, sentences[len(found.ranked) :], strict=True):
        missing = float(re.search(r"([\d.]+) GB too much", sentence)[1])
        assert missing == pytest.approx((excess.memory.total - 0.5e9) / 1e9, rel=1e-3)


def test_a_reason_names_the_term_that_costs_the_most():
    found = advise(MODEL, machine(memory=80e9), BATCH, top=50)
    best = found.ranked[0].step
    for entry, sentence in zip(found.ranked[1:], reasons(found)[1:], strict=False):
        if "times as long" in sentence:
            more = [mine - theirs for mine, theirs in zip(entry.step, best, strict=True)]
            assert f"more of {Step._fields[more.index(max(more))]}" in sentence


def test_tensor_ranks_on_several_hosts_lose():
    """Narayanan et al. 2021, takeaway 1: tensor parallelism up to the ranks of a host, then pipelines."""
    found = advise(MODEL, machine(memory=80e9), BATCH, Choices(data=1), top=50)
    place = {entry.plan.mesh: number for number, entry in enumerate(found.ranked)}
    assert place[Mesh(1, 3, 4)] < place[Mesh(1, 1, 12)] if Mesh(1, 1, 12) in place else True
    assert all(entry.plan.mesh.tensor <= 4 for entry in found.ranked[:3])


def test_faster_links_bring_data_parallelism_forward():
    slow, fast = (advise(MODEL, machine(memory=80e9, beta=beta), BATCH, top=1).ranked[0] for beta in (1e8, 1e12))
    assert slow.plan.mesh.data < fast.plan.mesh.data


def test_meshes_with_fixed_axes():
    choices = Choices(tensor=2, pipeline=3)
    assert meshes(MODEL, BATCH, 12, choices) == [Mesh(2, 3, 2)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: advise(MODEL, machine(memory=1e6), BATCH), r"nothing fits 0.001 GB: the smallest, data=\d+ .* needs"),
        (lambda: advise(MODEL, machine(), 0), "batch: expected at least 1 sample, not 0"),
        (lambda: meshes(MODEL, BATCH, 12, Choices(tensor=5)), "no mesh of 12 ranks has tensor=5"),
        (
            lambda: meshes(MODEL, 5, 12, Choices(data=12)),
            "a batch of 5 is not cut evenly by any mesh; data is at least",
        ),
        (lambda: Choices(schedules=("fifo",)), "unknown pipeline schedule 'fifo'"),
        (lambda: Choices(recompute=("all",)), "unknown recomputation 'all'; there are none"),
        (lambda: Choices(zero=(4,)), "ZeRO has the stages 1, 2 and 3"),
        (lambda: Choices(data=0), "data: expected at least 1, not 0"),
        (lambda: machine(ranks=0), "ranks: expected at least 1, not 0"),
        (lambda: machine(beta=0), "beta: expected a number above 0, not 0"),
        (lambda: machine(alpha=-1), "alpha: expected 0 or more, not -1"),
        (lambda: advise(MODEL, machine(), BATCH, Choices(schedules=("interleaved_1f1b",), pipeline=12)), "no plan has"),
    ],
)
def test_bad_questions(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_the_smallest_plan_that_is_named_fits():
    with pytest.raises(ValueError, match="needs") as caught:
        advise(MODEL, machine(memory=1e6), BATCH)
    needed = float(re.search(r"needs ([\d.]+) GB", str(caught.value))[1])
    assert advise(MODEL, machine(memory=needed * 1.001e9), BATCH).ranked
    with pytest.raises(ValueError, match="nothing fits"):
        advise(MODEL, machine(memory=needed * 0.999e9), BATCH)


# --- synchronous or asynchronous ------------------------------------------------------------------------------------


def test_conditions_are_those_of_the_data_axis():
    found = advise(MODEL, machine(memory=80e9), BATCH, Choices(data=6, tensor=2, pipeline=1, zero=(0,)))
    (entry,) = found.ranked
    given = conditions(found, entry, 0.1, {1: 3.0})
    assert given.step == pytest.approx(entry.step.seconds - entry.step.data)
    assert given.nbytes == entry.memory.gradients
    assert (given.alpha, given.beta) == (5e-6, 10e9 / 4)  # on three hosts, of four ranks each
    assert (given.jitter, given.stragglers) == (0.1, {1: 3.0})


def test_a_straggler_makes_asynchronous_steps_pay():
    found = advise(MODEL, machine(memory=80e9, beta=1e13, fold=1e13), BATCH, Choices(data=12, zero=(0,)))
    entry = found.ranked[0]
    strategies = [Choice.parse("async_parameter_server"), Choice.parse("ssp:staleness=3")]
    even, without = compared(found, entry, strategies, 0.0, {})
    slow, with_one = compared(found, entry, strategies, 0.0, {1: 4.0})
    assert without[0].speedup < 1.05
    assert with_one[0].speedup > 2
    assert slow.waiting > even.waiting
    given = conditions(found, entry, 0.0, {1: 4.0})
    alone = pace(strategies[0].pattern(12), 12, given, 100)
    assert with_one[0].pace == alone
    assert with_one[0].verdict == f"if it needs less than {with_one[0].speedup:.3g} times as many steps"
    assert without[0].verdict == "no" or without[0].speedup > 1


def test_a_straggler_must_be_a_data_rank():
    found = advise(MODEL, machine(memory=80e9), BATCH, Choices(data=12, zero=(0,)))
    with pytest.raises(ValueError, match="straggler 12"):
        compared(found, found.ranked[0], [], 0.0, {12: 4.0})


def test_plans_say_what_they_are():
    plan = Plan(Mesh(2, 4, 1), 1, 8, "interleaved_1f1b", 2, "block", 1)
    assert str(plan.mesh) == "data=2 pipeline=4 tensor=1"
    assert plan.settings == "8 x 1, interleaved_1f1b:2, recompute block, zero 1"
    assert [Mesh(*m).kind for m in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1))] == [
        "one rank", "data", "pipeline", "tensor", "hybrid",
    ]  # fmt: skip
