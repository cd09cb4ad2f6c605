"""A thread that makes batches in advance: the same batches, no thread left behind, no hang where it cannot be."""

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import ROOT

from collectives import train
from collectives.train.data.prefetch import Prefetch


class Counted:
    """Samples 0 to n - 1; counts how many were read."""

    def __init__(self, n=100):
        self.n, self.read = n, 0

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.read += 1
        return i


def loader(prefetch=2, dataset=None, **kwargs):
    data = (np.arange(100),) if dataset is None else dataset
    return train.Loader(data, 8, comm=SimpleNamespace(rank=0, size=1), prefetch=prefetch, check_content=False, **kwargs)


def threads():
    return [t for t in threading.enumerate() if t.name == "collectives.train.Loader"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    assert threads() == []


def numbers(batches):
    return [x.tolist() for (x,) in batches]


def wait_until(holds):
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert holds()


@pytest.mark.parametrize("prefetch", [1, 2, 50])
def test_the_same_batches_in_every_epoch(prefetch):
    ahead, plain = loader(prefetch), loader(0)
    for _ in range(3):
        assert numbers(ahead) == numbers(plain)
    assert threads() == []


@pytest.mark.parametrize("prefetch", [1, 3])
def test_so_many_batches_are_made_in_advance_and_no_more(prefetch):
    data = Counted()
    batches = iter(loader(prefetch, data))
    next(batches)
    wait_until(lambda: data.read == 1 + 8 * (1 + prefetch))  # the loader itself has looked at one sample
    time.sleep(0.05)
    assert data.read == 1 + 8 * (1 + prefetch)
    batches.close()


@pytest.mark.parametrize("stop", [1, 5, 12])
def test_the_position_is_that_of_the_batches_yielded(stop):
    first, second = loader(4), loader(4)
    seen = []
    for (x,) in first:
        seen.append(x.tolist())
        if len(seen) == stop:
            break
    assert first.position == 8 * stop
    second.load_state_dict(first.state_dict())
    assert seen + numbers(second) == numbers(loader(0))


def test_break_ends_the_thread():
    for _ in loader(3):
        assert len(threads()) == 1
        break
    assert threads() == []


def test_an_iterator_that_is_dropped_or_fails_leaves_no_thread():
    batches = iter(loader())
    next(batches)
    del batches
    assert threads() == []
    with pytest.raises(KeyError):
        fail_in(loader())
    gc.collect()
    assert threads() == []


def fail_in(data):
    for _ in data:
        raise KeyError("of the loop's body")


def test_a_second_iterator_goes_on_and_the_first_ends():
    data = loader()
    first = iter(data)
    seen = [next(first)[0].tolist()]
    second = iter(data)
    seen += [next(second)[0].tolist()]
    with pytest.raises(RuntimeError, match="a later iterator"):
        next(first)
    assert len(threads()) == 1
    assert seen + numbers(second) == numbers(loader(0))


def test_two_loaders_at_once():
    assert [[a.tolist() for (a,) in pair] for pair in zip(loader(), loader(3), strict=True)] == [
        [x, x] for x in numbers(loader(0))
    ]


def test_a_loader_that_is_set_back_starts_its_thread_anew():
    data = loader()
    start = data.state_dict()
    batches = iter(data)
    seen = [next(batches)[0].tolist() for _ in range(4)]
    data.load_state_dict(start)
    assert numbers(batches)[:4] == seen
    assert data.epoch == 1


def test_errors_do_not_hide_earlier_batches_and_the_loader_goes_on_after_them():
    class Once(Counted):
        failed = False

        def __getitem__(self, i):
            if i == bad and not self.failed:
                self.failed = True
                raise OSError("for a moment")
            return i

    bad = int(loader(0).indices(0)[30])
    data = loader(4, Once())
    batches, seen = iter(data), []
    for _ in range(3):
        seen.append(next(batches)[0].tolist())
    with pytest.raises(train.SampleError, match=f"sample {bad}: OSError: for a moment"):
        next(batches)
    assert list(batches) == []
    assert data.position == 24
    assert seen + numbers(data) == numbers(loader(0))


def in_child(data, batches, seen, results):
    rest = numbers(batches)
    results.put((seen + rest, data.epoch, data.position))


def test_a_forked_child_goes_on_with_a_thread_of_its_own():
    context = multiprocessing.get_context("fork")
    for _ in range(5):
        data = loader(3)
        batches, results = iter(data), context.Queue()
        seen = [next(batches)[0].tolist() for _ in range(3)]
        child = context.Process(target=in_child, args=(data, batches, seen, results))
        child.start()
        assert results.get(timeout=30) == (numbers(loader(0)), 1, 0)
        child.join(30)
        assert child.exitcode == 0
        assert seen + numbers(batches) == numbers(loader(0))  # the parent does, too


def test_a_forked_child_that_drops_the_iterator_ends():
    for _ in range(20):
        batches = iter(loader(3))
        next(batches)
        pid = os.fork()
        if not pid:
            batches.close()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        batches.close()


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyError"])
def test_a_process_ends_with_an_iterator_open(end):
    program = f"""
import sys
from types import SimpleNamespace
import numpy as np
from collectives import train
data = train.Loader((np.arange(1000),), 8, comm=SimpleNamespace(rank=0, size=1), prefetch=2)
batches = iter(data)
next(batches)
{end}
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True, env=env)
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(end, 1), done.stderr
    assert "KeyError" in done.stderr if end.startswith("raise") else not done.stderr


def test_closing_waits_for_the_sample_that_is_being_read():
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def items():
        yield 1
        begun.set()
        go_on.wait(20)
        ended.set()
        yield 2

    ahead = Prefetch(items(), 2)
    assert next(ahead) == 1
    assert begun.wait(20)
    threading.Timer(0.05, go_on.set).start()
    ahead.close()
    assert ended.is_set()


@pytest.mark.alone
def test_reading_goes_on_beside_the_loop():
    class Slow(Counted):
        def __getitem__(self, i):
            time.sleep(0.002)
            return i

    took = {}
    for prefetch in (0, 2):
        begin = time.perf_counter()
        for _ in loader(prefetch, Slow()):
            time.sleep(0.016)
        took[prefetch] = time.perf_counter() - begin
    assert took[2] < 0.75 * took[0]
