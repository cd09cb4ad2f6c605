"""``python -m collectives run``: runs a Python program on all ranks, and ends all of them when one fails.

The program finds ``sys.argv``, ``__main__`` and ``sys.path[0]`` as if Python itself had started it.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import runpy
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any

from .place import place
from .usage import UsageError

__all__ = ["add_arguments", "as_a_whole", "main"]

#: Seconds from the traceback to MPI_Abort: launchers may lose output that they have not read when the job ends.
GRACE = 0.1

#: Seconds that a rank that fails before MPI is started waits in MPI_Init for the others.
PATIENCE = 60


EPILOG = """\
An exception that nothing catches, or an exit code other than 0, on one rank ends all ranks; the traceback comes first,
its lines marked with the rank. With --replace-world, MPI.COMM_WORLD is a collectives.Communicator, so that an
unmodified mpi4py program runs on this library; MPI is then initialized before the program starts.

  mpiexec -n 4 python -m collectives run prog.py ARGS
  mpiexec -n 4 python -m collectives run --replace-world prog.py ARGS
  mpiexec -n 4 python -m collectives run -m package.module ARGS
  mpiexec -n 4 python -m collectives run -c CODE ARGS"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run``; everything from the program on belongs to the program."""
    parser.usage = "%(prog)s [-h] [--replace-world] (PROGRAM | -m MODULE | -c CODE) [ARGS ...]"
    parser.epilog = EPILOG
    parser.add_argument("--replace-world", action="store_true", help="make MPI.COMM_WORLD a collectives.Communicator")
    rest: dict[str, Any] = {"nargs": argparse.REMAINDER, "default": []}
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as python -m does", **rest)
    parser.add_argument("-c", dest="code", metavar="CODE", help="run this code", **rest)
    parser.add_argument(
        "program", metavar="PROGRAM", help="a Python file, or a directory or zip with __main__.py", **rest
    )


def main(args: argparse.Namespace) -> int:
    """Run the program and return its exit code; if that is not 0, end all other ranks by MPI_Abort."""
    words = [*(args.module or args.code), *args.program]
    if not words:
        raise UsageError("name a program, or give -m MODULE or -c CODE")
    find = _module if args.module else _code if args.code else _file

    def run() -> int:
        program = find(words)
        if args.replace_world:
            _replace_world()
        program()
        return 0

    return as_a_whole(run)


def as_a_whole(program: Callable[[], int]) -> int:
    """Return ``program()``; report an exception, and end all ranks after one or after an exit code other than 0."""
    try:
        return program()
    except BaseException as error:
        code = 1
        try:
            code = _report(error)
        except SystemExit as end:  # of the program's own sys.excepthook
            code = _exit_code(end.code)
        finally:
            if code:
                _end_all(code)
        return code


# --- the program --------------------------------------------------------------------------------------------------
# Each function sets sys.argv and sys.path[0], and returns a function that runs the program as the module __main__.


def _module(words: list[str]) -> Callable[[], object]:
    sys.argv[:] = ["-m", *words[1:]]  # runpy replaces the first item by the module's file
    return lambda: runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _code(words: list[str]) -> Callable[[], object]:
    sys.argv[:] = ["-c", *words[1:]]
    _first_on_path("")
    return lambda: _execute(types.ModuleType("__main__"), compile(words[0], "<string>", "exec", dont_inherit=True))


def _file(words: list[str]) -> Callable[[], object]:
    """The program in a source file, or in a directory or zip file with ``__main__.py``."""
    sys.argv[:] = words
    path = os.path.join(os.getcwd(), words[0])  # as Python itself does; not normalized
    if pkgutil.get_importer(path) is not None:
        _first_on_path(path, always=True)
        return _container(words[0], path)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        print(f"cannot open {words[0]}: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from None
    _first_on_path(os.path.dirname(os.path.realpath(path)))
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    return lambda: _execute(module, compile(source, path, "exec", dont_inherit=True))


def _container(name: str, path: str) -> Callable[[], object]:
    spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
    if spec is None:
        print(f"no __main__.py in {name}", file=sys.stderr)
        raise SystemExit(2)
    loader: Any = spec.loader
    return lambda: _execute(importlib.util.module_from_spec(spec), loader.get_code("__main__"))


def _first_on_path(directory: str, always: bool = False) -> None:
    """Set ``sys.path[0]`` to ``directory``, as Python does; in safe or isolated mode only with ``always``."""
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path[0] = directory
    elif always:
        sys.path.insert(0, directory)


def _execute(module: types.ModuleType, code: types.CodeType) -> None:
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _replace_world() -> None:
    from mpi4py import MPI

    from .. import Communicator

    MPI.COMM_WORLD = Communicator.in_place_of(MPI.COMM_WORLD)  # type: ignore[misc]  # Final in the stub only


# --- the end ------------------------------------------------------------------------------------------------------


def _report(error: BaseException) -> int:
    """Print what ended the program, as Python would, and flush; return the exit code."""
    if isinstance(error, SystemExit):
        code = _exit_code(error.code)
    elif isinstance(error, KeyboardInterrupt):
        code = 128 + signal.SIGINT
    else:
        code = 1
        _print_traceback(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    return code


def _exit_code(code: Any) -> int:
    """The exit status for ``code``, the argument of ``sys.exit``, which is printed if it is neither None nor an int."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    _print_error(f"{code}\n")
    return 1


def _print_error(text: str) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # no stream, or one that is closed
        sys.stderr.write(text)


def _print_traceback(error: BaseException) -> None:
    """Print through the program's ``sys.excepthook`` if it has one, else in one write, with the rank on each line."""
    trace = error.__traceback__
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    if sys.excepthook is not sys.__excepthook__:
        try:
            sys.excepthook(type(error), error, trace)
            return
        except Exception as e:
            inner = e.__traceback__.tb_next if e.__traceback__ else None
            failed = traceback.format_exception(type(e), e, inner, chain=False)
            lines = ["Error in sys.excepthook:\n", *failed, "\nOriginal exception was:\n", *lines]
    rank, size = place()
    mark = f"[rank {rank}] " if size > 1 else ""
    _print_error("".join(f"{mark}{line}\n" for line in "".join(lines).splitlines()))


def _end_all(code: int) -> None:
    """Abort MPI if there are other ranks, after MPI_Init if it has not been called.

    Without that, launchers may let the other ranks wait for ever in MPI_Init.
    """
    if place()[1] == 1:
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(PATIENCE)
    try:
        from mpi4py import MPI

        if not MPI.Is_initialized():
            MPI.Init()
    except (ImportError, RuntimeError):
        return
    finally:
        signal.alarm(0)
    if not MPI.Is_finalized():
        if "collectives.trace.recording" in sys.modules:
            from ..trace import recording

            recording.leave()
        time.sleep(GRACE)
        MPI.COMM_WORLD.Abort(code)
