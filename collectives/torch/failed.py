"""Futures whose failures reach C++ as failures."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

import torch

__all__ = ["Future"]


class _Failure:
    """The value of a future that has failed. Code that reads the value gets the error.

    C++ sees only the value of a future of Python's. It finds the tensors in a value by pickling the value, and writes a
    value that it cannot use into a message. Both raise the error.
    """

    def __init__(self, error: BaseException):
        self._error = error

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self._error.with_traceback(None)

    def __str__(self) -> NoReturn:
        raise self._error.with_traceback(None)


class Future(torch.futures.Future):
    """torch's future, whose failure is an error in C++ too.

    If torch's own future has failed, C++ takes the exception for tensors, and DistributedDataParallel crashes.
    """

    def wait(self) -> Any:
        """Wait for the value and return it; raises the error of a future that has failed. Signals are handled
        meanwhile."""
        if threading.current_thread() is threading.main_thread() and not self.done():
            ended = threading.Event()  # a wait in C++ would last to the end, whatever signal comes
            super().add_done_callback(lambda _: ended.set())
            ended.wait()
        return super().wait()

    def set_exception(self, result: BaseException) -> None:
        """End the future: ``wait`` and ``value`` raise this error, in Python and in C++."""

        def fail(value: _Failure) -> NoReturn:
            raise result.with_traceback(None)

        self._set_unwrap_func(fail)
        self.set_result(_Failure(result))
