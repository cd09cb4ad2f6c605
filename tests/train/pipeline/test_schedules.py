"""Every schedule for 1 to 8 stages, 1 to 16 micro-batches and 1 to 4 chunks: proved, and as good as it promises."""

from fractions import Fraction

import pytest

from collectives.train.pipeline.instructions import Kind
from collectives.train.pipeline.lowering import lowered
from collectives.train.pipeline.pipedream_2bw import PipeDream2BW
from collectives.train.pipeline.proof import verify
from collectives.train.pipeline.registry import SCHEDULES, find
from collectives.train.pipeline.replay import Durations, replay

SHAPES = [
    (name, chunks) for name, schedule in SCHEDULES.items() for chunks in (range(1, 5) if schedule.interleaved else [1])
]


def sizes(schedule):
    """The numbers of stages and of micro-batches that the schedule allows."""
    for stages in range(1, 9):
        for micro_batches in range(1, 17):
            try:
                schedule.check(stages, micro_batches)
            except ValueError:
                continue
            yield stages, micro_batches


def idle(schedule, stages, micro_batches):
    """The share of idle time, exactly."""
    durations = Durations.equal(schedule.chunks * stages)
    timeline = replay(lowered(schedule, stages, micro_batches), durations)
    return Fraction(sum(timeline.idle(stage) for stage in range(stages)), timeline.length * stages)


@pytest.mark.parametrize(("name", "chunks"), SHAPES)
def test_proof_bubble_and_activations(name, chunks):
    """Idle time and activations are what the formulas say, not less."""
    schedule, seen = find(name)(chunks), 0
    for stages, micro_batches in sizes(schedule):
        held = verify(schedule, stages, micro_batches, buffers=1).held
        assert idle(schedule, stages, micro_batches) == schedule.bubble(stages, micro_batches)
        assert [found.activations for found in held] == [
            schedule.activations(stage, stages, micro_batches) for stage in range(stages)
        ]
        seen += 1
    assert seen >= 42  # multiples of 1 to 8 up to 16


def test_formulas():
    """The numbers of the papers, for 4 stages and 8 micro-batches."""
    found = {name: schedule().bubble(4, 8) for name, schedule in SCHEDULES.items()}
    assert found == {
        "gpipe": Fraction(3, 11), "1f1b": Fraction(3, 11), "interleaved_1f1b": Fraction(3, 19),
        "zero_bubble": Fraction(3, 27), "pipedream": Fraction(3, 11), "pipedream_2bw": Fraction(3, 11),
    }  # fmt: skip
    most = {name: [schedule().activations(stage, 4, 8) for stage in range(4)] for name, schedule in SCHEDULES.items()}
    assert most == {
        "gpipe": [8, 8, 8, 8], "1f1b": [4, 3, 2, 1], "interleaved_1f1b": [11, 9, 7, 5], "zero_bubble": [4, 4, 4, 4],
        "pipedream": [4, 3, 2, 1], "pipedream_2bw": [4, 3, 2, 1],
    }  # fmt: skip


@pytest.mark.parametrize("stages", range(1, 9))
def test_pipedream_uses_weights_k_minus_1_minus_i_steps_old(stages):
    for stage, held in enumerate(verify(find("pipedream")(), stages, 16).held):
        late = stages - 1 - stage
        assert held.staleness == tuple(min(step, late) for step in range(16))
        assert held.versions == stages - stage


@pytest.mark.parametrize("stages", range(1, 9))
def test_2bw_uses_weights_one_step_old_on_all_stages(stages):
    for batch in (stages, stages + 1):
        for held in verify(PipeDream2BW(accumulate=batch), stages, 4 * batch).held:
            assert held.staleness == (0, 1, 1, 1)
            assert held.versions == 2


@pytest.mark.parametrize("name", [name for name, schedule in SCHEDULES.items() if not schedule.flushless])
def test_a_flush_means_one_step_of_fresh_weights(name):
    for held in verify(find(name)(), 4, 8).held:
        assert held.staleness == (0,)
        assert held.versions == 1


def test_synchronous_sends_are_enough_for_gpipe_only():
    """The others send an activation while the next stage sends a gradient: one message must be under way."""
    for name, schedule in SCHEDULES.items():
        if name == "gpipe":
            verify(schedule(), 4, 8, buffers=0)
        else:
            with pytest.raises(ValueError, match="deadlock with 0 buffers: stage 0 at .* wait for each other"):
                verify(schedule(), 4, 8, buffers=0)


def test_bytes():
    """In 1F1B stage i holds at most K-i activations, where GPipe holds M."""
    sizes = [100.0, 10.0, 50.0, 1.0]
    assert [h.activation_bytes for h in verify(find("1f1b")(), 4, 8, activation_bytes=sizes).held] == [400, 30, 100, 1]
    assert [h.activation_bytes for h in verify(find("gpipe")(), 4, 8, activation_bytes=sizes).held] == [800, 80, 400, 8]


def test_bytes_of_chunks_that_differ():
    """Stage 0 holds most bytes when it holds all activations of chunk 0, which are 10 times as large."""
    held = verify(find("interleaved_1f1b")(2), 2, 2, activation_bytes=[10.0, 0.0, 1.0, 0.0]).held
    assert [found.activation_bytes for found in held] == [22, 0]


def test_the_order_is_lazy():
    """A stream of many steps is not made before it runs."""
    stream = find("pipedream")().instructions(1, 4, 10**12)
    first = [next(stream) for _ in range(6)]
    assert [str(instruction) for instruction in first] == ["F0", "F1", "F2", "B0", "U0", "F3"]
    assert [i.version for i in first] == [0, 0, 0, 0, 1, 1]
    assert first[4].kind is Kind.STEP


@pytest.mark.parametrize(
    ("make", "stages", "micro_batches", "said"),
    [
        (lambda: find("rung")(), 1, 1, "unknown pipeline schedule 'rung'; there are gpipe, 1f1b"),
        (lambda: find("gpipe")(0), 1, 1, "at least one chunk, not 0"),
        (lambda: find("1f1b")(2), 1, 1, "1f1b has one chunk for each stage, not 2"),
        (lambda: find("1f1b")(), 0, 1, "at least one stage, not 0"),
        (lambda: find("1f1b")(), 1, 0, "at least one micro-batch, not 0"),
        (lambda: find("interleaved_1f1b")(), 4, 6, "a multiple of its 4 stages as number of micro-batches, not 6"),
        (lambda: PipeDream2BW(accumulate=3), 4, 6, "at least as many micro-batches as stages, 4, not 3"),
        (lambda: PipeDream2BW(accumulate=5), 4, 8, "a multiple of the 5 micro-batches that it accumulates, not 8"),
    ],
)
def test_bad_input(make, stages, micro_batches, said):
    with pytest.raises(ValueError, match=said):
        make().programs(stages, micro_batches)
