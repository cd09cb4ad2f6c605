"""The clock: starts of instructions, slow stages, transfers, and sends that wait."""

import pytest

from collectives.train.pipeline.instructions import Kind
from collectives.train.pipeline.lowering import lowered
from collectives.train.pipeline.registry import find
from collectives.train.pipeline.replay import Durations, replay


def run(name, stages, micro_batches, durations, buffers=2):
    return replay(lowered(find(name)(), stages, micro_batches), durations, buffers)


def starts(timeline, stage):
    return {str(s.instruction): s.start for s in timeline.stages[stage] if s.instruction.peer is None}


def test_every_start_of_1f1b():
    timeline = run("1f1b", 2, 3, Durations.equal(2))
    assert starts(timeline, 0) == {"F0": 0, "F1": 1, "B0": 4, "F2": 6, "B1": 7, "B2": 10, "U2": 12}
    assert starts(timeline, 1) == {"F0": 1, "B0": 2, "F1": 4, "B1": 5, "F2": 7, "B2": 8, "U2": 10}
    assert timeline.length == 12
    assert timeline.bubble == 1 / 4
    assert [timeline.idle(stage) for stage in range(2)] == [3, 3]


def test_the_slowest_stage_sets_the_pace():
    """Stage 1 takes 5 times as long, and never waits once it has begun: 20 forward and backward passes, 15 together.

    Before it is a forward pass of stage 0, after it a backward pass of that."""
    durations = Durations([1, 5, 1], [2, 10, 2], [1, 5, 1], [1, 5, 1])
    timeline = run("1f1b", 3, 20, durations)
    assert timeline.length == 1 + 20 * 15 + 2
    assert timeline.idle(1) == timeline.length - 20 * 15


def test_a_step_lasts():
    """Stage 1 has three steps before the gradient of the last micro-batch; stage 0 has one after it."""
    part = [1, 1]
    timeline = run("pipedream", 2, 4, Durations(part, part, part, part, step=3))
    assert timeline.length == 1 + 3 * (1 + 1 + 3) + (1 + 1) + (1 + 3)


def test_a_transfer_delays_the_fill_and_the_drain():
    """GPipe waits for 3 transfers on the way forward, and for 3 on the way back; others overlap with computation."""
    assert run("gpipe", 4, 8, Durations.equal(4, transfer=0.5)).length == 3 * (8 + 3) + 6 * 0.5


def test_a_send_waits_for_a_buffer():
    """Stage 1 is slow: with one buffer, stage 0 sends the message 2 only after 1 has been received."""
    durations = Durations([1, 10], [1, 1], [1, 1], [1, 1])
    waits = {}
    for buffers in (0, 1, 2):
        spans = run("gpipe", 2, 3, durations, buffers).stages[0]
        waits[buffers] = [s.end - s.start for s in spans if s.instruction.kind is Kind.SEND_ACTIVATION]
    assert waits == {0: [0, 9, 9], 1: [0, 0, 8], 2: [0, 0, 0]}


@pytest.mark.parametrize(("buffers", "length"), [(0, 9), (1, 6)])
def test_a_synchronous_send_takes_the_time_of_its_transfer(buffers, length):
    """Stage 1 waits 1 + 1 for its first activation and computes for 4. Synchronous transfers overlap with nothing: the
    second one on the way forward and both on the way back last 1 each."""
    durations = Durations([1, 1], [1, 1], [1, 1], [1, 1], transfer=1)
    spans = run("gpipe", 2, 2, durations, buffers).stages[1]
    assert next(s.end for s in spans if s.instruction.kind is Kind.STEP) == length
