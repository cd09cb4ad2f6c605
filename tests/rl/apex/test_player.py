"""Ape-X on ranks that are threads: in lockstep against one process without messages, else by its counts."""

import time

import numpy as np
import pytest
from corridor import PIXELS, SMALL, corridor, pictured, small

from collectives import rl, train
from collectives.rl.acting import Actor, priorities
from collectives.rl.mail import HEAD, Mail
from collectives.train import threads

HOW = {"timeout": 60}


def network_of(player):
    return player.values.flat().copy()


def in_lockstep(size, shards=1, rounds_until=(120, 240), seed=4, task=corridor, **changes):
    """Parameters on all ranks, and counts, after each part of a run."""

    def on_rank(comm):
        player = rl.ApeX(task(), small(**changes), seed, comm, shards=shards, lockstep=True)
        found = []
        for until in rounds_until:
            player.advance(until)
            found.append((network_of(player), player.steps, player.updates))
        player.close()
        return found, player.traffic(), player.counts()

    return threads.run(size, on_rank, **HOW)


class OneProcess:
    """Ape-X in the order of lockstep, written out without ranks and messages."""

    def __init__(self, actors, shards, numbers, seed, task):
        network, optimizer = numbers.makers(task, seed)
        values = network()
        self.numbers, self.shards = numbers, shards
        self.learner = rl.Learner(
            values, network(), optimizer(values), target_every=numbers.target_every, clip=numbers.clip
        )
        self.memories = [
            rl.Memory(task, numbers, seed, s, shards, len(range(s, actors, shards))) for s in range(shards)
        ]
        self.actors = []
        for i in range(actors):
            ladder = [rl.apex_epsilon(i * numbers.envs + e, actors * numbers.envs) for e in range(numbers.envs)]
            epsilons = [lambda steps, epsilon=epsilon: epsilon for epsilon in ladder]
            random = train.Random(seed, "actor", i)
            self.actors.append(Actor(task, network(), random, numbers.n, numbers.gamma, *epsilons))

    def run(self, rounds):
        since, chunk = self.numbers.fetch_every, self.numbers.chunk
        for number in range(rounds):
            if since >= self.numbers.fetch_every:
                since = 0
                for actor in self.actors:
                    actor.values.put(self.learner.values.flat())
            since += chunk
            for i, actor in enumerate(self.actors):
                self.keep(i, actor.play(chunk), chunk)
                if number == rounds - 1:
                    self.keep(i, actor.give_up(), 0)
            for memory in self.memories:
                for _ in range(memory.due):
                    memory.update(self.learner.update(memory.draw()))
        for actor in self.actors:
            actor.values.put(self.learner.values.flat())
        return self.learner.values.flat(), sum(actor.steps for actor in self.actors), self.learner.updates

    def keep(self, actor, transitions, steps):
        self.memories[actor % self.shards].add(transitions, priorities(self.actors[actor].values, transitions), steps)


@pytest.mark.parametrize(
    ("size", "shards", "task", "changes"),
    [
        (3, 1, corridor, {}),
        (4, 1, corridor, {}),
        (6, 2, corridor, {}),
        (4, 1, corridor, {"envs": 5}),
        (4, 1, pictured, PIXELS),
    ],
)
def test_lockstep_is_what_one_process_does(size, shards, task, changes):
    actors = size - 1 - shards
    alone, wanted, steps = OneProcess(actors, shards, small(**changes), 4, task()), [], 0
    for until in (120, 240):
        wanted.append(alone.run(-(-(until - steps) // (10 * actors))))
        steps = wanted[-1][1]
    assert wanted[1][2] > wanted[0][2] > 20
    for found, _, counts in in_lockstep(size, shards, task=task, **changes):
        for (flat, *numbers), (flat_alone, *numbers_alone) in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(flat, flat_alone)
            assert numbers == numbers_alone
        assert counts == {"actor_steps": [steps // actors] * actors, "dead": []}


def test_another_seed_gives_other_bits():
    one, other = (in_lockstep(3, seed=seed)[0][0][-1][0] for seed in (4, 5))
    assert not np.array_equal(one, other)


def test_the_bytes_in_lockstep():
    """240 steps of two actors are 12 rounds in two parts; a transition has 28 bytes, a priority or a weight 4."""
    numbers = small()
    results = in_lockstep(4)
    (_, steps, updates), size = results[0][0][-1], len(results[0][0][-1][0])
    assert steps == 240
    fetches = 2 * 2 * 3  # per part of 6 rounds, each actor at rounds 0, 2 and 4
    traffic = {
        "actors to replay": 240 * (28 + 4) + (24 + 4) * HEAD,
        "replay to actors": (24 + 4) * HEAD,
        "replay to learner": 12 * HEAD + updates * (HEAD + numbers.batch * (28 + 4)),
        "learner to replay": updates * (HEAD + 4 * numbers.batch),
        "actors to learner": fetches * HEAD,
        "learner to actors": fetches * (HEAD + 4 * size),
    }
    assert results[0][1] == traffic
    assert all(result[1] == traffic for result in results)


@pytest.mark.parametrize(("size", "shards"), [(3, 1), (5, 1), (6, 2)])
def test_at_its_own_pace(size, shards):
    numbers = small(ratio=3.0)

    def on_rank(comm):
        player = rl.ApeX(corridor(), numbers, 0, comm, shards=shards)
        for until in (120, 400):
            player.advance(until)
            assert player.steps >= until
            flats = comm.allgather(network_of(player))
            assert all(np.array_equal(flats[0], flat) for flat in flats)
        player.close()
        memory = player.memory
        return player, player.counts(), None if memory is None else (memory.steps, memory.batches, memory.waiting)

    results = threads.run(size, on_rank, **HOW)
    player, counts, _ = results[0]
    parts = [found for _, _, found in results if found is not None]
    assert len(parts) == shards
    assert sum(steps for steps, _, _ in parts) == player.steps == sum(counts["actor_steps"])
    assert sum(batches for _, batches, _ in parts) == player.updates > 50
    assert all(waiting == 0 for _, _, waiting in parts)
    for steps, batches, _ in parts:
        assert batches == (steps - numbers.start // shards) // 3


@pytest.fixture
def deadline(monkeypatch):
    """A rank that still waits after 30 s fails."""
    nap, until = Mail.nap, time.monotonic() + 30

    def hurried(self):
        if time.monotonic() > until:
            raise TimeoutError("a rank still waits")
        nap(self)

    monkeypatch.setattr(Mail, "nap", hurried)


@pytest.mark.usefixtures("deadline")
@pytest.mark.parametrize(
    ("changes", "updates"),
    [
        ({"chunk": 1, "ratio": 8.0}, 22),
        ({"chunk": 4, "ratio": 20.0}, 8),
        ({"chunk": 8, "envs": 8, "n": 30}, 88),
        ({"ratio": 1e6}, 0),
    ],
)
def test_batches_that_are_long_in_coming(changes, updates):
    """Actors play on meanwhile, and the learner hears of their steps: a run ends soon after `until`."""

    def on_rank(comm):
        player = rl.ApeX(corridor(), small(start=64, **changes), 10, comm)  # long episodes at first
        player.advance(240)
        player.close()
        return player.steps, player.updates

    (steps, found), *_ = threads.run(3, on_rank, **HOW)
    assert found >= updates
    assert steps >= 240
    assert steps < 1000


def test_an_actor_that_fails_ends_the_run():
    def on_rank(comm):
        player = rl.ApeX(corridor(), small(), 0, comm)
        if comm.rank == 3:
            player._actor.play = None
        player.advance(10_000)

    with pytest.raises(TypeError, match="not callable"):
        threads.run(4, on_rank, **HOW)


@pytest.mark.parametrize(("lockstep", "until"), [(True, 240), (False, 100_000)])
def test_a_learner_that_diverges_ends_the_run_of_all(lockstep, until):
    """In lockstep after the rounds that all have begun, else at once."""

    def diverging(loss):
        raise FloatingPointError("the loss is nan")

    def on_rank(comm):
        player = rl.ApeX(corridor(), small(), 0, comm, lockstep=lockstep)
        if comm.rank == 0:
            player._learner.accept = diverging
        with pytest.raises(FloatingPointError, match="^the loss is nan$"):
            player.advance(until)
        player.close()
        return player.updates, player.steps < 2000

    assert threads.run(4, on_rank, **HOW) == [(0, True)] * 4


@pytest.mark.parametrize(("size", "shards", "text"), [(2, 1, "needs 3 ranks"), (4, 2, "needs 5"), (4, 0, "at least 1")])
def test_too_few_ranks(size, shards, text):
    def on_rank(comm):
        with pytest.raises(ValueError, match=text):
            rl.ApeX(corridor(), small(), 0, comm, shards=shards)

    threads.run(size, on_rank, **HOW)


def test_a_state_goes_on_with_the_same_bits():
    def begun(comm):
        player = rl.ApeX(corridor(), small(), 4, comm, shards=2, lockstep=True)
        player.advance(120)
        state = player.state_dict()
        player.advance(300)
        player.close()
        return state, network_of(player), player.steps, player.updates, player.traffic()

    results = threads.run(6, begun, **HOW)

    def resumed(comm):
        player = rl.ApeX(corridor(), small(), 4, comm, shards=2, lockstep=True)
        player.load_state_dict(results[comm.rank][0])
        player.advance(300)
        player.close()
        return network_of(player), player.steps, player.updates, player.traffic()

    for (_, *wanted), found in zip(results, threads.run(6, resumed, **HOW), strict=True):
        np.testing.assert_array_equal(found[0], wanted[0])
        assert list(found[1:]) == wanted[1:]


@pytest.mark.parametrize(("task", "changes"), [(corridor, {}), pytest.param(pictured, PIXELS, marks=pytest.mark.slow)])
def test_it_learns(task, changes):
    def on_rank(comm):
        numbers = small(max_steps=3000, evaluate_every=500, target_every=50, **changes)
        player = rl.ApeX(task(threshold=1.0), numbers, 0, comm, lockstep=True)
        course = rl.follow(player, task(threshold=1.0), numbers, 0, lambda text: None)
        player.close()
        return course

    courses = threads.run(4, on_rank, **HOW)
    assert courses[0].solved
    assert [course.final.mean_return for course in courses] == [1.0] * 4


@pytest.mark.parametrize(
    ("size", "shards", "changes", "text"),
    [
        (
            5,
            2,
            {"capacity": 80, "start": 64, "chunk": 50},
            "each of 2 replays has room for 40 transitions, not for the 52",
        ),
        (3, 1, {"capacity": 24, "chunk": 20, "n": 6}, "the replay has room for 24 transitions, not for the 25"),
        (
            3,
            1,
            {"capacity": 24, "chunk": 16, "n": 4, "envs": 4},
            "the replay has room for 24 transitions, not for the 28",
        ),
    ],
)
def test_shards_without_room_for_a_chunk(size, shards, changes, text):
    def on_rank(comm):
        with pytest.raises(ValueError, match=text):
            rl.ApeX(corridor(), small(**changes), 0, comm, shards=shards)

    threads.run(size, on_rank, **HOW)


def test_shards_with_just_enough_room():
    for changes in ({"chunk": 20, "n": 5}, {"chunk": 16, "n": 3, "envs": 4}):
        (_, steps, updates), *_ = in_lockstep(3, capacity=24, **changes)[0][0]
        assert steps >= 120
        assert updates == (steps - 24) // 2


class Untorched(rl.Settings):
    """Settings of a rank without torch."""

    def makers(self, task, seed):
        raise ImportError("no torch here")


@pytest.mark.parametrize("make", [rl.ApeX, rl.Gorila])
def test_a_rank_that_cannot_make_a_network_stops_all(make):
    def on_rank(comm):
        numbers = Untorched(**SMALL) if comm.rank == 1 else small()
        with pytest.raises(ImportError, match="no torch here" if comm.rank == 1 else "rank 1: no torch here"):
            make(corridor(), numbers, 0, comm)

    threads.run(3, on_rank, timeout=10)
