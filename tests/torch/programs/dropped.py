"""Works of messages that the program drops: ``python -m pytest tests/torch/programs/dropped.py``, in one process."""

import gc
import types
import weakref

import numpy as np
import pytest
import torch
from mpi4py import MPI

from collectives.torch.messages import MPIMessages
from collectives.torch.work import MANY

CONTEXT = types.SimpleNamespace(check=lambda: None, mpi_queries=None)


class Messages:
    """A communicator whose messages are complete, or have failed, once that is said. A message taken back may come."""

    complete, error, nbytes = False, None, 80

    def Get_attr(self, key):
        return 100

    def Isend(self, buffer, peer, tag):
        return self

    Irecv = Isend

    def Cancel(self):
        pass

    def Test(self, status):
        if self.error is not None:
            raise MPI.Exception(self.error)
        status.Set_elements(MPI.BYTE, self.nbytes)
        return self.complete


@pytest.fixture(params=["send", "receive"])
def begin(request):
    """A function that begins a message, drops it, and returns a weak reference to its memory."""

    def begun(comm, use=lambda work: None, count=10):
        memory = np.zeros(count)  # which the garbage collector does not know, so that the reference lasts as it does
        use(getattr(MPIMessages(comm, CONTEXT, None), request.param)(torch.from_numpy(memory), 0, 0))
        return weakref.ref(memory)

    return begun


def there(memory):
    for _ in range(2):  # what refers to itself and has a __del__ is freed by the second one
        gc.collect()
    return sum(one() is not None for one in memory)


def test_memory_stays_until_the_message_is_complete(begin):
    comm = Messages()
    memory = [begin(comm) for _ in range(5 * MANY)]
    assert there(memory) == 5 * MANY
    comm.complete = True
    assert there([begin(comm) for _ in range(20 * MANY)]) <= 20 * MANY // 2
    assert there(memory) == 0


def test_memory_of_messages_that_are_waited_for_is_not_kept(begin):
    comm = Messages()
    comm.complete = True
    memory = [begin(comm, lambda work: work.is_completed()) for _ in range(5 * MANY)]
    assert there(memory) <= MANY


def test_memory_of_failed_messages_does_not_stay(begin):
    comm = Messages()
    memory = [begin(comm) for _ in range(2 * MANY)]
    comm.error = MPI.ERR_TRUNCATE
    more = [begin(comm) for _ in range(20 * MANY)]
    assert there(memory) == 0
    assert there(more) <= len(more) // 2


@pytest.mark.parametrize("begin", ["receive"], indirect=True)
def test_memory_of_receives_that_were_taken_back_stays(begin):
    comm = Messages()
    memory = [begin(comm, lambda work: work.withdraw()) for _ in range(2 * MANY)]
    comm.complete = True
    assert there([begin(comm) for _ in range(20 * MANY)]) < 20 * MANY
    assert there(memory) == 2 * MANY


def test_works_that_are_dropped_keep_the_latest_large_tensors_only(begin):
    comm = Messages()
    comm.complete, comm.nbytes = True, 160_000
    memory = [begin(comm, lambda work: work.is_completed(), count=20_000) for _ in range(2 * MANY)]
    assert there(memory) <= 6
