"""An exception of one rank where ranks agree: all raise one, of whatever kind it is. The ranks are threads."""

import threading

import pytest

import collectives
from collectives import train
from collectives.train.agree import on_rank_0, together


class Odd(Exception):
    """Of a kind that the library does not know, and that cannot be pickled back."""

    def __init__(self, one, two):
        super().__init__(one)


class Two(ValueError):
    """Of a known kind, that cannot be pickled back either."""

    def __init__(self, one, two):
        super().__init__(one)


def holding(what):
    error = OSError(2, "no such file")
    error.what = what
    return error


def raised(work):
    """What each of two ranks raises in ``work(comm)``."""

    def rank(comm):
        try:
            work(comm)
        except Exception as error:
            return error
        return None

    return train.threads.run(2, rank, timeout=5)


def failing(error):
    def fail():
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (KeyError("key"), ValueError, "rank 0: KeyError: 'key'"),
        (Odd("here", 2), ValueError, "rank 0: Odd: here"),
        (TypeError("type"), TypeError, "rank 0: type"),
        (ValueError("value"), ValueError, "value"),
        (FloatingPointError("inf"), FloatingPointError, "rank 0: inf"),
        (Two("two", 2), ValueError, "rank 0: two"),
        (holding(threading.Lock()), FileNotFoundError, "[Errno 2] rank 0: no such file"),
        (holding("file"), FileNotFoundError, "[Errno 2] no such file"),
    ],
)
def test_an_exception_of_rank_0_is_raised_on_all(error, kind, text):
    own, other = raised(lambda comm: on_rank_0(comm, failing(error)))
    assert (type(own), str(own)) == (type(error), str(error))
    assert type(other) is kind
    assert str(other) == text


@pytest.mark.parametrize("error", [KeyError("key"), AttributeError("key"), Odd("key", 2)])
def test_an_exception_of_any_rank_is_raised_on_all(error):
    other, own = raised(lambda comm: together(comm, failing(error) if comm.rank else int))
    assert own is error
    assert type(other) is ValueError
    assert str(other) == f"rank 1: {type(error).__name__}: {error}"


def test_a_failed_collective_is_not_agreed_on_by_another_one():
    failure = collectives.PeerFailure("rank 1 died")
    for agree in (on_rank_0, together):
        with pytest.raises(collectives.PeerFailure):
            train.threads.run(1, lambda comm, agree=agree: agree(comm, failing(failure)))
