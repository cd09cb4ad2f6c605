"""Messages between ranks that are threads: what is packed comes out, in order, and is counted."""

import numpy as np
from mpi4py import MPI

from collectives.rl.mail import HEAD, Kind, Mail, pack, unpack
from collectives.rl.transitions import Form
from collectives.train import threads

FORM = Form((3, 2), "|u1")


def made(rows):
    rng = np.random.default_rng(rows)
    found = FORM.empty(rows)
    for array in found:
        array[...] = rng.integers(0, 200, array.shape)
    return found, rng.random(rows).astype(np.float32)


def test_transitions_come_out_as_they_went_in():
    for rows in (0, 1, 7):
        transitions, numbers = made(rows)
        packed = pack(Kind.ADD, 12, rows, *transitions, numbers)
        assert len(packed) == HEAD + rows * (FORM.nbytes + 4)
        message = unpack(np.concatenate([packed, np.ones(50, np.uint8)]))  # at the beginning of a longer buffer
        assert (message.kind, message.number, message.rows) == (Kind.ADD, 12, rows)
        found, others = message.transitions(FORM)
        np.testing.assert_array_equal(others, numbers)
        for one, other in zip(found, transitions, strict=True):
            np.testing.assert_array_equal(one, other)


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
