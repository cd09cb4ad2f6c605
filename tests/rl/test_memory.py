"""The pace of a replay, its state, and recorded experience."""

import numpy as np
import pytest
from corridor import corridor, small

from collectives import rl
from collectives.rl.transitions import Transitions

FORM = corridor().form


def made(count, first=0):
    found = FORM.empty(count)
    for array in found:
        array[...] = 0
    found.rewards[:] = np.arange(first, first + count)
    return found


def test_the_pace():
    """start=24, ratio=4, chunk=10, two actors: a batch is due at 28, 32, ... steps, actors are ahead by at most 40."""
    memory = rl.Memory(corridor(), small(ratio=4.0), 0, 0, actors=2)
    due = {}
    for steps in range(1, 200):
        memory.add(made(1), None, 1)
        due[steps] = memory.due
        assert memory.actors_may_go_on == (steps <= 24 + 40)
    assert [due[n] for n in (23, 24, 27, 28, 31, 32, 199)] == [0, 0, 0, 1, 1, 2, 43]
    for left in range(43, 0, -1):
        assert memory.due == left
        memory.draw()
        memory.update(np.ones(8))
    assert memory.due == 0
    assert memory.waiting == 0
    assert memory.actors_may_go_on


@pytest.mark.parametrize(
    "changes",
    [{"chunk": 1, "ratio": 8.0}, {"chunk": 4, "ratio": 20.0}, {"chunk": 8, "envs": 8, "n": 6}, {"chunk": 1, "n": 7}],
)
def test_actors_go_on_until_a_batch_is_due(changes):
    """However far they are ahead, and however many of their last steps are no transitions yet."""
    numbers = small(start=64, **changes)
    memory, rows = rl.Memory(corridor(), numbers, 0, 0), 0
    while memory.batches < 5:
        while not memory.due:
            assert memory.actors_may_go_on
            complete = max(0, memory.steps + numbers.chunk - (numbers.n - 1) * numbers.envs)
            memory.add(made(complete - rows), None, numbers.chunk)
            rows = complete
        memory.draw()
        memory.update(np.ones(8))


def test_actors_do_not_play_on_while_a_batch_is_under_way():
    memory = rl.Memory(corridor(), small(ratio=30.0, chunk=1), 0, 0)
    memory.add(made(54), None, 54)
    memory.draw()
    memory.add(made(3), None, 3)
    assert not memory.actors_may_go_on
    memory.update(np.ones(8))
    assert memory.actors_may_go_on


def test_parts_have_all_together():
    parts = [rl.Memory(corridor(), small(capacity=100, start=25), 0, number, 3) for number in range(3)]
    assert [part.replay.storage.capacity for part in parts] == [34] * 3
    for part in parts:
        part.recall(made(31))
    kept = np.concatenate([part.replay.storage.ordered().rewards for part in parts])
    np.testing.assert_array_equal(np.sort(kept), np.arange(31))


def test_recorded_experience_counts_for_the_start():
    memory = rl.Memory(corridor(), small(ratio=2.0), 0, 0)
    memory.recall(made(24))
    assert memory.due == 0
    memory.add(made(1), None, 2)
    assert memory.due == 1


@pytest.mark.parametrize("prioritised", [True, False])
def test_a_state_goes_on_alike(prioritised):
    def ended(memory):
        rewards = []
        for first in range(0, 60, 10):
            memory.add(made(10, 100 + first), np.linspace(0, 1, 10), 10)
            while memory.due:
                rewards.append(memory.draw().transitions.rewards)
                memory.update(np.linspace(0, 3, 8))
        return np.array(rewards)

    numbers = small(prioritised=prioritised)
    first, second = (rl.Memory(corridor(), numbers, seed, 0) for seed in (7, 7))
    first.add(made(60), np.ones(60), 60)
    first.draw()
    first.update(np.ones(8))
    second.load_state_dict(first.state_dict())
    found = ended(first)
    assert len(found) > 20
    np.testing.assert_array_equal(found, ended(second))


def test_experience_in_a_file(tmp_path):
    path = tmp_path / "experience.npz"
    rl.write_experience(path, made(5))
    for kept, wanted in zip(rl.read_experience(path, FORM, 2), made(5), strict=True):
        np.testing.assert_array_equal(kept, wanted)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"actions": np.zeros(5, np.int64)}, "actions are int64"),
        ({"observations": np.zeros((5, 3), np.float32)}, r"observations are float32 of shape \(5, 3\)"),
        ({"rewards": np.full(5, np.nan, np.float32)}, "rewards are not all finite"),
        ({"discounts": np.zeros(4, np.float32)}, "discounts are"),
        ({"actions": np.array([0, 1, 0, 2, 1], np.int32)}, "actions are 0 to 2, of this environment 0 to 1"),
        ({"actions": np.array([0, -1, 0, 1, 1], np.int32)}, "actions are -1 to 1, of this environment 0 to 1"),
    ],
)
def test_other_experience_is_refused(tmp_path, change, text):
    path = tmp_path / "experience.npz"
    rl.write_experience(path, made(5)._replace(**change))
    with pytest.raises(ValueError, match=text):
        rl.read_experience(path, FORM, 2)


def test_files_that_are_none(tmp_path):
    path = tmp_path / "experience.npz"
    with pytest.raises(OSError, match="experience"):
        rl.read_experience(path, FORM, 2)
    for data in (b"", b"nothing", b"PK\x03\x04"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="no file of recorded experience"):
            rl.read_experience(path, FORM, 2)
    np.savez(path, actions=np.array([{}], object))
    with pytest.raises(ValueError, match="no file of recorded experience"):
        rl.read_experience(path, FORM, 2)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_byte_of_a_file_is_found_or_changes_nothing(tmp_path, save):
    path = tmp_path / "experience.npz"
    save(path, **made(5)._asdict())
    whole, said = path.read_bytes(), []
    for place in range(0, len(whole), 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place // 2 % 8]) + whole[place + 1 :])
        try:
            read = rl.read_experience(path, FORM, 2)
        except (ValueError, OSError) as error:
            said.append(str(error))
            continue
        for kept, wanted in zip(read, made(5), strict=True):
            np.testing.assert_array_equal(kept, wanted)
    assert len(said) > len(whole) / 4
    assert all("no file of recorded experience" in text or "Invalid argument" in text for text in said)


def test_transitions_have_the_fields_of_files():
    assert Transitions._fields == ("observations", "actions", "rewards", "next_observations", "discounts")
