"""Point-to-point messages on one node: the C code under sanitizers, and its Python side with ranks in one process."""

import subprocess
import time

import numpy as np
import pytest
from fuzz import HEAP
from jobs import ROOT
from node_groups import joined

from collectives.core import _core
from collectives.system import heap

SOURCES = [f"base/{name}.c" for name in ("moves", "ticks")] + HEAP
SOURCES += [f"schedule/{name}.c" for name in ("program", "executor", "executor_new")] + ["transport/inproc.c"]
SOURCES += [f"progress/{name}.c" for name in ("progress", "patience", "thread", "ending")]
SOURCES += [f"p2p/{name}.c" for name in ("p2p", "queues")]
EAGER = 192  # bytes that a slot holds
PIECE = 4 << 20  # bytes that are copied at a time
WAIT = 20_000_000_000  # ns


def run_driver(program, *sanitizers, prefix=()):
    files = [*(ROOT / "csrc" / name for name in SOURCES), ROOT / "tests/csrc/p2p_driver.c"]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
    flags += ["-DCOLL_P2P_PIECE=3000"]  # so that data come in pieces
    subprocess.run(["cc", *flags, *sanitizers, *files, "-o", program, "-pthread"], check=True)
    for ranks, reads_private in ((1, 1), (2, 1), (2, 0), (3, 1), (5, 0)):
        words = [*prefix, program, *map(str, (ranks, 100 // ranks, ranks, reads_private))]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr[-6000:]
        assert "all right" in done.stdout


def test_address_sanitizer(tmp_path):
    run_driver(tmp_path / "driver", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def test_thread_sanitizer(tmp_path):
    run_driver(tmp_path / "driver", "-fsanitize=thread", prefix=("setarch", "-R"))


def opened(size):
    """The channels of so many ranks."""
    own, nbytes = heap.process_heap(), _core.point_to_point_bytes(size)
    areas = [_core.HeapBlock(own, nbytes, True) for _ in range(size)]
    offsets = [area.offset for area in areas]
    return [_core.PointToPoint(engine, offsets, area) for (_, engine), area in zip(joined(size), areas, strict=True)]


def test_memory_is_as_docs_operating_says():
    assert _core.point_to_point_bytes(0) < 1 << 10
    assert 2 << 10 <= _core.point_to_point_bytes(2) - _core.point_to_point_bytes(1) < 2500


def of(array):
    return _core.address(array), array.nbytes


@pytest.mark.parametrize("nbytes", [0, 1, EAGER, EAGER + 1, 100_000])
@pytest.mark.parametrize("first", ["send", "receive"])
def test_a_message_comes(nbytes, first):
    ranks = opened(2)
    sent, received = np.arange(nbytes, dtype=np.uint8), np.zeros(nbytes, np.uint8)
    begin = {
        "send": lambda: ranks[0].send(*of(sent), 1, 5),
        "receive": lambda: ranks[1].receive(*of(received), 0, 5),
    }
    works = {name: begin[name]() for name in sorted(begin, key=lambda name: name != first)}
    for work in works.values():
        assert work.wait()
        assert work.done
    assert works["receive"].source == 0
    assert works["receive"].received == nbytes
    np.testing.assert_array_equal(received, sent)


def test_messages_match_by_sender_and_tag_in_order():
    ranks = opened(3)
    values = np.arange(6.0)
    for rank, tag, i in ((0, 1, 0), (1, 1, 1), (0, 2, 2), (0, 1, 3), (1, 2, 4)):
        ranks[rank].send(*of(values[i : i + 1]), 2, tag)
    found = np.full(5, -1.0)
    for i, (rank, tag) in enumerate([(1, 2), (0, 1), (0, 2), (None, 1), (None, 1)]):
        assert ranks[2].receive(*of(found[i : i + 1]), rank, tag).wait()
    assert found[:3].tolist() == [4, 0, 2]
    assert sorted(found[3:]) == [1, 3]


def test_a_long_message_comes_while_nobody_waits():
    """The progress thread of the receiver copies it."""
    ranks = opened(2)
    sent, received = np.arange(1e5), np.zeros(100_000)
    receive = ranks[1].receive(*of(received), 0, 0)
    send = ranks[0].send(*of(sent), 1, 0)
    end = time.monotonic() + 20
    while not (send.done and receive.done) and time.monotonic() < end:
        time.sleep(0.001)
    np.testing.assert_array_equal(received, sent)


def test_another_length_is_an_error_of_the_receiver_alone():
    ranks = opened(2)
    for sent, wanted in ((8, 16), (16, 8), (1000, 2000), (2000, 1000)):
        memory, target = np.ones(sent, np.uint8), np.zeros(wanted, np.uint8)
        send = ranks[0].send(*of(memory), 1, 0)
        receive = ranks[1].receive(*of(target), 0, 0)
        for _ in range(2):
            with pytest.raises(_core.MismatchError):
                receive.wait()
        assert receive.received == sent
        assert not target.any()
        assert send.wait()


def test_a_message_that_is_dropped_is_given_up():
    """A receiver of its data gets an error, and none of the data."""
    ranks = opened(2)
    memory, target = np.ones(1000), np.zeros(1000)
    ranks[0].send(*of(memory), 1, 0)  # whose object is deleted at once
    with pytest.raises(_core.GivenUpError):
        ranks[1].receive(*of(target), 0, 0).wait()
    dropped = ranks[1].receive(*of(target), 0, 0)
    del dropped
    send = ranks[0].send(*of(memory), 1, 0)
    assert not send.wait(limit=1_000_000)
    assert not target.any()
    send.withdraw()
    with pytest.raises(_core.GivenUpError):
        send.wait()


def test_more_messages_than_places_for_them():
    """Those for which there is no place wait at the sender, in order."""
    ranks, n = opened(2), 300
    values, found = np.arange(2.0 * n).reshape(n, 2), np.zeros((n, 2))
    longer = np.repeat(values, 100, axis=1)
    sends = [ranks[0].send(*of(row), 1, 0) for pair in zip(values, longer, strict=True) for row in pair]
    assert not sends[-1].wait(limit=0)
    for i in range(n):
        long = np.zeros(200)
        assert ranks[1].receive(*of(found[i]), 0, 0).wait()
        assert ranks[1].receive(*of(long), 0, 0).wait()
        assert (long == longer[i]).all()
    assert all(send.wait() for send in sends)
    np.testing.assert_array_equal(found, values)


def test_the_last_of_many_long_messages_is_received_first():
    """There are as many records as messages: else the last one would wait for the end of others."""
    ranks, n = opened(2), 200
    values, found = np.repeat(np.arange(float(n)), 100).reshape(n, 100), np.zeros(100)
    sends = [ranks[0].send(*of(row), 1, i) for i, row in enumerate(values)]
    for i in range(n - 1, -1, -1):
        assert ranks[1].receive(*of(found), 0, i).wait(limit=WAIT)
        assert (found == i).all()
    assert all(send.wait(limit=WAIT) for send in sends)
    assert ranks[0].pending == ranks[1].pending == 0


@pytest.mark.parametrize("nbytes", [PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 3])
def test_long_messages_come_in_pieces(nbytes):
    """Several at a time."""
    ranks, draw = opened(2), np.random.default_rng(nbytes)
    sent = [draw.integers(0, 256, nbytes, np.uint8) for _ in range(2)]
    received = [np.zeros(nbytes, np.uint8) for _ in range(2)]
    sends = [ranks[0].send(*of(x), 1, i) for i, x in enumerate(sent)]
    receives = [ranks[1].receive(*of(x), 0, i) for i, x in enumerate(received)]
    assert all(message.wait(limit=WAIT) for message in (*receives, *sends))
    for x, y in zip(sent, received, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_receive_is_given_up_between_two_pieces():
    """Its sender gets an error, too, and the rest of the target stays."""
    ranks, nbytes = opened(2), 100 * PIECE
    sent, received = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    send = ranks[0].send(*of(sent), 1, 0)
    receive = ranks[1].receive(*of(received), 0, 0)
    assert not receive.wait(limit=0)
    receive.withdraw()
    so_far = int(received.sum())
    assert 0 < so_far < nbytes
    for message in (receive, send):
        with pytest.raises(_core.GivenUpError):
            message.wait(limit=WAIT)
    assert received.sum() == so_far
    assert ranks[0].pending == ranks[1].pending == 0


def test_all_messages_are_given_up():
    ranks, memory = opened(2), np.zeros(1000)
    sends = [ranks[0].send(*of(memory), 1, 0) for _ in range(20)]
    receives = [ranks[0].receive(*of(memory), 1, 0) for _ in range(3)]
    ranks[0].give_up(receives_only=True)
    assert [message.done for message in sends + receives] == [False] * 20 + [True] * 3
    assert ranks[0].pending == 20
    ranks[0].give_up()
    assert ranks[0].pending == 0
    for message in sends + receives:
        with pytest.raises(_core.GivenUpError):
            message.wait()


@pytest.mark.parametrize("peer", [-2, -1, 2])
def test_a_peer_that_is_none_is_refused(peer):
    channel, memory = opened(2)[0], np.zeros(1)
    with pytest.raises(ValueError, match="out of range"):
        channel.send(*of(memory), peer, 0)
