"""Futures whose failures reach C++ as failures."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

import torch

__all__ = ["Future"]


class _Failure:
    """What a future holds that has failed: whoever reads it gets the error.

    C++ sees no more of a future of Python's than its value. It finds the tensors in a value by pickling it, and puts
    what it cannot use into a message.
    """

    def __init__(self, error: BaseException):
        self._error = error

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self._error.with_traceback(None)

    def __str__(self) -> NoReturn:
        raise self._error.with_traceback(None)


class Future(torch.futures.Future):
    """As torch's. Where that one has failed, C++ takes the exception for tensors: DistributedDataParallel crashes."""

    def wait(self) -> Any:
        """Its value, once it is there; raises what came in its place. Signals are handled meanwhile."""
        if threading.current_thread() is threading.main_thread() and not self.done():
            ended = threading.Event()  # a wait in C++ lasts to the end, whatever the signal
            super().add_done_callback(lambda _: ended.set())
            ended.wait()
        return super().wait()

    def set_exception(self, result: BaseException) -> None:
        """End it: ``wait`` and ``value`` raise this, here and in C++."""

        def fail(value: _Failure) -> NoReturn:
            raise result.with_traceback(None)

        self._set_unwrap_func(fail)
        self.set_result(_Failure(result))
