"""Gorila on ranks that are threads: the synchronous server against one process, and counts of the other one."""

import numpy as np
import pytest
from corridor import corridor, small

from collectives import rl, train
from collectives.rl.acting import Actor
from collectives.train import threads

HOW = {"timeout": 60}
SEED = 2


def play(size, untils=(120, 240), servers=1, lockstep=True, accept=None, **changes):
    def on_rank(comm):
        player = rl.Gorila(corridor(), small(**changes), SEED, comm, servers=servers, lockstep=lockstep)
        found = []
        if player.trains and accept is not None:
            player.learner.accept = accept()
        for until in untils if player.trains else ():
            player.advance(until)
            found.append((player.values.flat(), player.steps, player.updates))
        player.close()
        return found, player.traffic(), player.counts()

    return threads.run(size, on_rank, **HOW)


def alone(bundles, untils, numbers):
    """All bundles in one process: an update is by the mean of their gradients."""
    task = corridor()
    network, optimizer = numbers.makers(task, SEED)
    values = network()
    opt = optimizer(values)
    targets, memories, actors = [network() for _ in range(bundles)], [], []
    for i in range(bundles):
        epsilon = rl.annealed(numbers.epsilon_first, numbers.epsilon_last, numbers.epsilon_steps // bundles)
        actors.append(Actor(task, values, train.Random(SEED, "actor", i), numbers.n, numbers.gamma, epsilon))
        memories.append(rl.Memory(task, numbers, SEED, i, bundles))
    updates, found = 0, []
    for until in untils:
        while actors[0].steps < until // bundles:
            for actor, memory in zip(actors, memories, strict=True):
                memory.add(actor.play(1), None, 1)
            while memories[0].due:
                grads = []
                for memory, target in zip(memories, targets, strict=True):
                    sample = memory.draw()
                    now = sample.transitions
                    wanted = rl.double_q(now, values(now.next_observations), target(now.next_observations))
                    opt.zero_grad()
                    errors, _ = values.backward(now.observations, now.actions, wanted, sample.weights)
                    memory.update(np.abs(errors).astype(np.float32))
                    grads.append([p.grad.copy() for p in values.net.parameters()])
                for p, *each in zip(values.net.parameters(), *grads, strict=True):
                    p.grad[...] = np.mean(each, axis=0)
                opt.step()
                updates += 1
                if updates % (numbers.target_every // bundles) == 0:
                    for target in targets:
                        target.put(values.flat())
        for actor, memory in zip(actors, memories, strict=True):
            memory.add(actor.give_up(), None, 0)
        found.append((values.flat(), bundles * actors[0].steps, bundles * updates))
    return found


@pytest.mark.parametrize(("bundles", "servers"), [(1, 1), (2, 1), (3, 2)])
def test_lockstep_is_what_one_process_does(bundles, servers):
    wanted = alone(bundles, (120, 240), small(deviations=1e9))
    results = play(bundles + servers, servers=servers, deviations=1e9)
    assert wanted[-1][2] > 60
    for found, _, _ in results[:bundles]:
        for (flat, *counts), (flat_alone, *counts_alone) in zip(found, wanted, strict=True):
            np.testing.assert_allclose(flat, flat_alone, rtol=1e-4, atol=1e-5)
            assert counts == counts_alone
    assert all(found == [] for found, _, _ in results[bundles:])


def test_lockstep_gives_the_same_bits():
    one, other = play(4)[0], play(4)[0]
    np.testing.assert_array_equal(one[0][-1][0], other[0][-1][0])
    assert one[1:] == other[1:]


@pytest.mark.parametrize("lockstep", [True, False])
def test_the_bytes(lockstep):
    """A step sends a gradient to the server and parameters back; beside these there are heads, and a few meetings."""
    results = play(3, lockstep=lockstep)
    (flat, _, updates), traffic = results[0][0][-1], results[0][1]
    assert all(result[1] == traffic for result in results)
    least = 4 * len(flat) * updates
    assert least < traffic["learners to server"] < least + 220 * updates + 8 * 4 * len(flat)
    assert least < traffic["server to learners"] < least + 100 * updates + 12 * 4 * len(flat)


class Refusing:
    """Refuses every third loss."""

    def __init__(self):
        self.seen = 0

    def __call__(self, loss):
        self.seen += 1
        return self.seen % 3 != 0


@pytest.mark.parametrize("lockstep", [True, False])
def test_refused_losses_are_no_updates(lockstep):
    results = play(4, lockstep=lockstep, accept=Refusing, untils=(300, 600))
    (_, steps, updates), counts = results[0][0][-1], results[0][2]
    assert steps == 600
    assert updates == 3 * 64
    assert counts["refused"] == 3 * 32  # of 96 = (200 - 8) / 2 of a bundle
    assert all(result[2] == counts for result in results)


def test_old_gradients_are_dropped():
    counts = play(4, lockstep=False, oldest=0, deviations=1e9, untils=(300, 600))[0][2]
    assert 0 < counts["dropped"] <= 3 * 96
    assert play(4, lockstep=True, oldest=0)[0][2]["dropped"] == 0


def test_a_state_goes_on_with_the_same_bits():
    def begun(comm):
        player = rl.Gorila(corridor(), small(), SEED, comm, servers=2, lockstep=True)
        found = None
        if player.trains:
            player.advance(120)
            state = player.state_dict()
            player.advance(300)
            found = state, player.values.flat(), player.steps, player.updates
        player.close()
        return found

    results = threads.run(4, begun, **HOW)

    def resumed(comm):
        player = rl.Gorila(corridor(), small(), SEED, comm, servers=2, lockstep=True)
        found = None
        if player.trains:
            player.load_state_dict(results[comm.rank][0])
            player.advance(300)
            found = player.values.flat(), player.steps, player.updates
        player.close()
        return found

    for wanted, found in zip(results[:2], threads.run(4, resumed, **HOW)[:2], strict=True):
        np.testing.assert_array_equal(found[0], wanted[1])
        assert found[1:] == wanted[2:]


def test_it_learns():
    def on_rank(comm):
        numbers = small(max_steps=4000, evaluate_every=500, target_every=50)
        task = corridor(threshold=1.0)
        player = rl.Gorila(task, numbers, 0, comm, lockstep=True)
        course = rl.follow(player, task, numbers, 0, lambda text: None) if player.trains else None
        player.close()
        return course

    courses = threads.run(4, on_rank, **HOW)
    assert courses[0].solved
    assert [course and course.final.mean_return for course in courses] == [1.0, 1.0, 1.0, None]


def test_no_rank_is_left_to_train():
    def on_rank(comm):
        with pytest.raises(ValueError, match="none is left to train"):
            rl.Gorila(corridor(), small(), 0, comm, servers=2)

    threads.run(2, on_rank, **HOW)


def test_bundles_without_room_for_an_episodes_end():
    def on_rank(comm):
        with pytest.raises(ValueError, match="each of 2 replays has room for 12 transitions, not for the 13"):
            rl.Gorila(corridor(), small(capacity=24, n=13), 0, comm)

    threads.run(3, on_rank, **HOW)
    with pytest.raises(ValueError, match="the replay has room for 24 transitions, not for the 25"):
        rl.DQN(corridor(), small(capacity=24, n=25), 0)


def test_a_run_that_goes_on_counts_its_own_bytes():
    """Servers save no counts, so those of the bundles begin anew, too."""

    def begun(comm):
        player = rl.Gorila(corridor(), small(), SEED, comm, lockstep=True)
        state = None
        if player.trains:
            player.advance(120)
            state = player.state_dict()
        player.close()
        return state, player.traffic()

    results = threads.run(3, begun, **HOW)

    def resumed(comm):
        player = rl.Gorila(corridor(), small(), SEED, comm, lockstep=True)
        if player.trains:
            player.load_state_dict(results[comm.rank][0])
        player.close()
        return player.traffic(), player.counted_from, player.steps

    found = threads.run(3, resumed, **HOW)
    assert [counts for _, *counts in found] == [[120, 120], [120, 120], [0, 0]]
    for path, count in results[0][1].items():
        assert 0 < found[0][0][path] < count / 2


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_bundle_that_diverges_ends_the_run_of_all(lockstep):
    def diverging(loss):
        raise FloatingPointError("the loss is nan")

    def on_rank(comm):
        player = rl.Gorila(corridor(), small(), SEED, comm, lockstep=lockstep)
        if player.trains:
            second = player.comm.rank == 1
            if second:
                player.learner.accept = diverging
            with pytest.raises(FloatingPointError, match="^the loss is nan" if second else "^rank 1: the loss is nan"):
                player.advance(240)
        player.close()

    threads.run(4, on_rank, **HOW)
