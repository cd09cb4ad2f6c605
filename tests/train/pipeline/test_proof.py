"""The proof finds what is wrong: every program with an instruction too few, twice, or in another place."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.train.pipeline.gpipe import GPipe
from collectives.train.pipeline.instructions import Instruction, Kind, ScheduleError
from collectives.train.pipeline.lowering import chain, lower, lowered
from collectives.train.pipeline.proof import prove, verify
from collectives.train.pipeline.registry import SCHEDULES, find


def refused(schedule, stages, micro_batches, programs):
    """What the proof says of programs that are not those of the schedule."""
    with pytest.raises(ScheduleError) as error:
        prove(programs, schedule.chunks, micro_batches, chain(schedule.chunks * stages))
    return str(error.value)


def size(name):
    """Few stages and micro-batches, such that the schedule has all its kinds of instructions."""
    return (2, 4) if name != "interleaved_1f1b" else (2, 2)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_missing_or_repeated_instruction_is_found(name):
    """Each instruction of each stage."""
    schedule, (stages, micro_batches) = find(name)(), size(name)
    programs = lowered(schedule, stages, micro_batches)
    for stage, program in enumerate(programs):
        for index, instruction in enumerate(program):
            for changed in (program[:index], [*program[: index + 1], instruction]):
                mutant = [*programs]
                mutant[stage] = [*changed, *program[index + 1 :]]
                assert refused(schedule, stages, micro_batches, mutant)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_changed_field_is_found(name):
    schedule, (stages, micro_batches) = find(name)(), size(name)
    programs = lowered(schedule, stages, micro_batches)
    for stage, program in enumerate(programs):
        for index, instruction in enumerate(program):
            changes = [{"micro_batch": instruction.micro_batch + 1}]
            if instruction.kind is not Kind.STEP:
                changes.append({"chunk": instruction.chunk + 1})
            if instruction.peer is None:
                changes.append({"version": instruction.version + 1})
            else:
                changes.append({"peer": instruction.peer + 1})
            for change in changes:
                mutant = [*programs]
                mutant[stage] = [*program[:index], dataclasses.replace(instruction, **change), *program[index + 1 :]]
                assert refused(schedule, stages, micro_batches, mutant), (instruction, change)


PAIRS = {Kind.FORWARD: Kind.RECEIVE_ACTIVATION, Kind.SEND_ACTIVATION: Kind.FORWARD, Kind.SEND_GRADIENT: Kind.BACKWARD}


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_a_swap_of_what_depends_on_each_other_is_found(name):
    schedule, programs = find(name)(), lowered(find(name)(), 3, 4)
    swapped = 0
    for stage, program in enumerate(programs):
        for index in range(1, len(program)):
            before, after = program[index - 1 : index + 1]
            if PAIRS.get(after.kind) is before.kind and before.micro_batch == after.micro_batch:
                mutant = [*programs]
                mutant[stage] = [*program[: index - 1], after, before, *program[index + 1 :]]
                assert "comes before" in refused(schedule, 3, 4, mutant)
                swapped += 1
    assert swapped == 24  # 4 micro-batches over 2 borders, in 3 ways


@given(st.data())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_another_order_is_refused_or_computes_the_same(data):
    name = data.draw(st.sampled_from(sorted(SCHEDULES)))
    schedule, (stages, micro_batches) = find(name)(), size(name)
    programs = lowered(schedule, stages, micro_batches)
    program = programs[data.draw(st.integers(0, stages - 1))]
    moved = program.pop(data.draw(st.integers(0, len(program) - 1)))
    program.insert(data.draw(st.integers(0, len(program))), moved)
    try:
        prove(programs, schedule.chunks, micro_batches, chain(schedule.chunks * stages))
    except ScheduleError:
        return
    assert gradients(programs, schedule.chunks) == wanted(schedule, stages, micro_batches)


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_proved_computes_all_gradients(name):
    schedule = find(name)()
    programs = lowered(schedule, 4, 8)
    assert gradients(programs, schedule.chunks) == wanted(schedule, 4, 8)


def wanted(schedule, stages, micro_batches):
    return {(virtual, batch) for virtual in range(schedule.chunks * stages) for batch in range(micro_batches)}


def gradients(programs, chunks):
    """Run the programs, on names of tensors, with endless buffers: the gradients of weights that are computed."""
    stages, wires, found = len(programs), {}, set()
    tensors = [{("activation", -1, m) for m in range(99)} for _ in programs]
    left = [list(program) for program in programs]
    while any(left):
        before = sum(map(len, left))
        for stage, program in enumerate(left):
            while program and run(program[0], stage, stages, chunks * stages - 1, tensors[stage], wires, found):
                program.pop(0)
        assert sum(map(len, left)) < before, "deadlock"
    return found


def run(instruction, stage, stages, last, tensors, wires, found):
    """Run an instruction on a stage that has ``tensors``; False if it must wait for a message."""
    kind, batch, virtual = instruction.kind, instruction.micro_batch, instruction.chunk * stages + stage
    own, before = ("activation", virtual, batch), ("activation", virtual - 1, batch)
    gradient, after = ("gradient", virtual, batch), ("gradient", virtual + 1, batch)
    if kind in (Kind.RECEIVE_ACTIVATION, Kind.RECEIVE_GRADIENT):
        wire = wires.get((instruction.peer, virtual))
        if not wire:
            return False
        tensors.add(wire.pop(0))
    elif kind in (Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT):
        sent = own if kind is Kind.SEND_ACTIVATION else gradient
        assert sent in tensors
        wires.setdefault((virtual, instruction.peer), []).append(sent)
    elif kind is Kind.FORWARD:
        assert before in tensors
        tensors.add(own)
    elif kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
        assert own in tensors
        assert virtual == last or after in tensors
        tensors.add(gradient)
    if kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
        assert gradient in tensors
        found.add((virtual, batch))
    return True


def test_messages_in_another_order_are_found():
    """Stage 0 computes and sends micro-batch 1 before micro-batch 0, stage 1 expects 0 first."""
    programs = lowered(GPipe(), 2, 2)
    programs[0][:4] = [*programs[0][2:4], *programs[0][:2]]
    assert refused(GPipe(), 2, 2, programs) == "stage 1: RA0>0 meets the message of micro-batch 1"


def test_a_deadlock_is_found():
    """Stage 1 waits for all activations before it sends the gradient that stage 0 waits for."""
    programs = lowered(find("1f1b")(), 2, 3)
    for micro_batch in (1, 2):
        receive = Instruction(Kind.RECEIVE_ACTIVATION, micro_batch, peer=0)
        programs[1].remove(receive)
        programs[1].insert(programs[1].index(Instruction(Kind.SEND_GRADIENT, 0, peer=0)), receive)
    said = refused(find("1f1b")(), 2, 3, programs)
    assert said == "deadlock with 2 buffers: stage 0 at RG0>1, stage 1 at RA2>0 wait for each other"


def test_stages_step_together():
    programs = lowered(GPipe(), 2, 2)
    for program, last in zip(programs, (1, 0), strict=True):
        program[:] = [i for i in program if i.kind is not Kind.STEP]
        program.append(Instruction(Kind.STEP, last, version=1))
    assert "stage 1: U0 does not follow exactly the gradients" in refused(GPipe(), 2, 2, programs)
    single = [Instruction(Kind.FORWARD), Instruction(Kind.BACKWARD), Instruction(Kind.STEP, version=1)]
    second = [dataclasses.replace(i, micro_batch=1, version=1 + (i.kind is Kind.STEP)) for i in single]
    by_turns = [
        Instruction(Kind.FORWARD), Instruction(Kind.FORWARD, 1), Instruction(Kind.BACKWARD),
        Instruction(Kind.BACKWARD, 1), Instruction(Kind.STEP, 1, version=1),
    ]  # fmt: skip
    with pytest.raises(ScheduleError, match=r"stage 1 steps after micro-batches \[1\], stage 0 after \[0, 1\]"):
        prove([[*single, *second], by_turns], 1, 2, [])


@pytest.mark.parametrize(
    ("promise", "said"),
    [
        ("activations", "activations 2, promised are 1"),
        ("versions", "versions 2, promised are 1"),
        ("staleness", "staleness 1, promised are 0"),
    ],
)
def test_a_broken_promise_is_found(promise, said):
    schedule = find("pipedream")()
    kept = getattr(schedule, promise)
    setattr(schedule, promise, lambda *sizes: kept(*sizes) - 1)
    with pytest.raises(ScheduleError, match=f"pipedream, stage 0: {said}"):
        verify(schedule, 2, 8)


SKIP = [(0, 1), (1, 2), (2, 3), (0, 3)]  # a branch beside virtual stages 1 and 2


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "interleaved_1f1b"])
def test_a_graph_with_a_branch(name):
    verify(find(name)(), 4, 8, edges=SKIP)
    program = list(lower(find(name)().instructions(0, 4, 8), 0, 4, SKIP))
    sent = [i.peer for i in program if i.kind is Kind.SEND_ACTIVATION and i.micro_batch == 5]
    received = [i.peer for i in program if i.kind is Kind.RECEIVE_GRADIENT and i.micro_batch == 5]
    assert sent == received == [1, 3]


def test_chunks_of_one_stage_exchange_no_messages():
    programs = lowered(find("interleaved_1f1b")(3), 1, 4)
    assert all(instruction.peer is None for instruction in programs[0])
    verify(find("interleaved_1f1b")(3), 1, 4)


@pytest.mark.parametrize("edges", [[(1, 0)], [(1, 1)], [(-1, 1)]])
def test_an_edge_that_does_not_lead_on(edges):
    with pytest.raises(ValueError, match="from a virtual stage to a later one"):
        verify(GPipe(), 2, 2, edges=edges)


def test_an_edge_to_nowhere():
    with pytest.raises(ValueError, match="the last one is 1"):
        verify(GPipe(), 2, 2, edges=[(0, 2)])
