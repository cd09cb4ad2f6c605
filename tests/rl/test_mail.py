"""Messages between ranks that are threads: what is packed comes out, in order, and is counted."""

import numpy as np
from mpi4py import MPI

from collectives.rl.mail import HEAD, Kind, Mail, longest, pack, pack_transitions, unpack
from collectives.rl.transitions import Form
from collectives.train import threads

FORM = Form((3, 2), "|u1")
STACKED = Form((4, 3, 2), "|u1")


def made(rows, form=FORM):
    rng = np.random.default_rng(rows)
    found = form.empty(rows)
    for array in found:
        array[...] = rng.integers(0, 200, array.shape)
    return found, rng.random(rows).astype(np.float32)


def test_transitions_come_out_as_they_went_in():
    for rows in (0, 1, 7):
        transitions, numbers = made(rows)
        packed = pack_transitions(Kind.ADD, 12, transitions, numbers, FORM)
        assert len(packed) == HEAD + rows * (FORM.nbytes + 4) == HEAD + longest(FORM, rows)
        message = unpack(np.concatenate([packed, np.ones(50, np.uint8)]))  # at the beginning of a longer buffer
        assert (message.kind, message.number, message.rows) == (Kind.ADD, 12, rows)
        found, others = message.transitions(FORM)
        np.testing.assert_array_equal(others, numbers)
        for one, other in zip(found, transitions, strict=True):
            np.testing.assert_array_equal(one, other)


def check_stacked(transitions):
    """The bytes of a message with stacks, which come out as they went in."""
    numbers = np.arange(transitions.rows, dtype=np.float32)
    packed = pack_transitions(Kind.BATCH, 3, transitions, numbers, STACKED)
    found, others = unpack(packed).transitions(STACKED)
    np.testing.assert_array_equal(others, numbers)
    for one, other in zip(found, transitions, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    return len(packed)


def test_stacks_that_share_nothing():
    for rows in (0, 1, 7):
        transitions, _ = made(rows, STACKED)
        frames = STACKED.frames(transitions).reshape(-1, 6)
        assert len(np.unique(frames, axis=0)) == 8 * rows  # all of them are different
        assert check_stacked(transitions) == HEAD + longest(STACKED, rows)


def test_each_frame_is_sent_once():
    """20 steps of a game, in stacks of 4, which are 3 steps apart in a transition, have 26 frames."""
    game = np.random.default_rng(0).integers(0, 256, (26, 3, 2), np.uint8)
    transitions, _ = made(20, STACKED)
    for row in range(20):
        transitions.observations[row], transitions.next_observations[row] = game[row : row + 4], game[row + 3 : row + 7]
    assert check_stacked(transitions) == HEAD + 8 + 26 * 6 + 20 * (8 * 4 + 4 * 4)


def test_numbers():
    numbers = np.linspace(0, 1, 9, dtype=np.float32)
    message = unpack(pack(Kind.ERRORS, 0, 9, numbers))
    np.testing.assert_array_equal(message.numbers(), numbers)


def test_messages_come_in_order_and_are_counted():
    def on_rank(comm):
        mail = Mail(comm, lambda: None)
        inbox = mail.inbox(1 - comm.rank, 5, 40)
        for number in range(20):
            mail.send(
                "there" if comm.rank else "back", 1 - comm.rank, 5, pack(Kind.GO, number, 0, np.zeros(number)[:5])
            )
        found = [mail.wait(inbox).number for _ in range(20)]
        empty = inbox.take()
        comm.allgather(None)  # the other one has looked, too
        mail.close()
        return found, empty, mail.bytes

    total = 20 * HEAD + 8 * (0 + 1 + 2 + 3 + 4 + 15 * 5)
    one, other = threads.run(2, on_rank, timeout=20)
    assert one == (list(range(20)), None, {"back": total})
    assert other == (list(range(20)), None, {"there": total})


def test_no_message_comes_of_a_rank_that_has_died():
    """Its last message is taken first."""

    class Dying:
        def __init__(self):
            self.left = [pack(Kind.GO, 7)]

        def Irecv(self, buffer, source, tag):
            if not self.left:
                raise MPI.Exception(MPI.ERR_PROC_FAILED)
            message = self.left.pop()
            buffer[: len(message)] = message
            return self

        def Test(self):
            return True

    mail = Mail(Dying(), lambda: None)
    inbox = mail.inbox(3, 5, 40)
    assert mail.wait(inbox).number == 7
    assert inbox.take() is None
    assert inbox.taken == 1
