"""What needs no other rank: ``python -m pytest tests/torch/programs/alone.py``, in one process, without MPI."""

import queue
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # before the backend is imported

import collectives.torch  # noqa: E402
from collectives.torch import devices  # noqa: E402
from collectives.torch.calls import Calls  # noqa: E402
from collectives.torch.work import Callbacks, OperationWork  # noqa: E402


def test_a_monitored_barrier_is_of_the_group_that_there_is():
    dist.monitored_barrier()  # torch's, of Gloo
    dist.destroy_process_group()
    dist.init_process_group("collectives", store=dist.HashStore(), rank=0, world_size=1)
    assert isinstance(dist.group.WORLD, collectives.torch.ProcessGroup)
    dist.monitored_barrier()
    dist.destroy_process_group()


def test_a_group_has_one_backend():
    """torch drops the one for GPUs, so a tensor there must not come here instead."""
    dist.init_process_group("cpu:collectives,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert isinstance(group, collectives.torch.ProcessGroup)
    with pytest.raises(RuntimeError, match=r"new_group\(backend='nccl'\)"):
        devices.check_config(group, torch.device("cuda", 0))
    dist.destroy_process_group()
    dist.init_process_group("collectives", store=dist.HashStore(), rank=0, world_size=1)
    devices.check_config(dist.group.WORLD, torch.device("cuda", 0))
    dist.destroy_process_group()


def test_a_barrier_is_in_memory_of_the_processor():
    with torch.device("meta"):
        assert Calls(0, 1)._token.device.type == "cpu"


def test_splits_may_be_an_array():
    calls, x = Calls(0, 1), torch.arange(4)
    assert calls._split(x, np.array([4]), "input") == calls._split(x, torch.tensor([4]), "input") == [4]


def test_a_future_has_the_error_of_a_call_that_ended_before_it_waited():
    failed = SimpleNamespace(done=True, complete=Mock(side_effect=collectives.CollectiveError("rank 1 gave up")))
    with pytest.raises(collectives.CollectiveError, match="rank 1 gave up"):
        OperationWork([], [failed], Callbacks("of a test"), None)._wait_aside()


class Interrupted(queue.SimpleQueue):
    """A queue in which ``meanwhile`` is done while a job is put there."""

    meanwhile = None

    def put(self, job):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().put(job)


def callbacks(meanwhile):
    made = Callbacks("of a test")
    made._jobs = Interrupted()
    made._jobs.meanwhile = lambda: meanwhile(made)
    return made


def test_a_callback_that_is_attached_while_the_group_is_closed():
    done = threading.Event()

    def close(of):
        thread = threading.Thread(target=of.close)
        thread.start()
        thread.join(0.2)  # if it can close now

    callbacks(close).run(done.set)
    assert done.wait(10)


def test_a_callback_that_a_signal_handler_attaches_while_one_is_attached():
    first, second = threading.Event(), threading.Event()
    made = callbacks(lambda of: of.run(second.set))
    thread = threading.Thread(target=made.run, args=(first.set,), daemon=True)
    thread.start()
    assert first.wait(10)
    assert second.wait(10)
    made.close()


def test_a_callback_that_is_attached_to_a_closed_group_runs_at_once():
    made, done = Callbacks("of a test"), []
    made.close()
    made.run(lambda: done.append(threading.current_thread()))
    assert done == [threading.current_thread()]
