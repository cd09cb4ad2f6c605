"""The faults themselves, and what a collective makes of them."""

import subprocess
import sys
import time

import pytest
from faults import Hosts, delay, kill


@pytest.fixture
def clock():
    """A process that prints the time as fast as it can."""
    process = subprocess.Popen(
        [sys.executable, "-uc", "import time\nwhile True: print(time.monotonic()); time.sleep(0.01)"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.kill()
    process.wait()


def test_delay_and_kill(clock):
    clock.stdout.readline()
    with delay(clock.pid):
        begin = time.monotonic()
        time.sleep(0.3)
    times = [float(clock.stdout.readline()) for _ in range(60)]
    assert not any(begin + 0.05 < t < begin + 0.3 for t in times)
    assert times[-1] > begin + 0.3
    kill(clock.pid)
    assert clock.wait(10) == -9


def test_drop_of_a_link():
    with Hosts(2) as hosts:
        assert hosts.reaches(0, 1)
        hosts.drop(1)
        assert not hosts.reaches(0, 1, seconds=1)
        hosts.restore(1)
        assert hosts.reaches(0, 1, seconds=20)
    assert hosts.address(0) not in subprocess.run(["ip", "addr"], capture_output=True, text=True).stdout


def test_without_root(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(RuntimeError, match="need root, and ip"):
        Hosts(2)
