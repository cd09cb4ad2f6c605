"""Records a timeline: every collective of every rank, while ``COLLECTIVES_TRACE`` or ``comm.trace`` asks for it.

Each process records into its own memory (``trace.pxi``). At the end the ranks that began together compare their clocks
again, and the first of them writes the file. If ranks can no longer communicate, because one failed or MPI has ended,
each writes its part beside the file, and ``python -m collectives trace`` merges the parts.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arguments.timeouts import LONGEST
from ..core import _core
from ..diagnostics import peer_queries
from ..diagnostics.diagnosis import foreign
from ..errors import CollectiveError, brief
from ..files import obstacle
from ..waiting.ending import at_the_end
from . import clocks, perfetto, spans
from .timeline import BLOCKING, COLLECTIVES, EVENT, Part, part_file, part_files
from .together import Together

__all__ = ["EVENTS", "Trace", "end", "from_environment", "is_recording", "join", "leave"]

EVENTS = 1_000_000  # default for the most records of a process
_log = logging.getLogger("collectives")
_TRAIN = os.path.join(os.path.dirname(os.path.dirname(__file__)), "train") + os.sep
_current: Trace | None = None


def from_environment() -> tuple[str | None, int]:
    """The values of ``COLLECTIVES_TRACE`` and ``COLLECTIVES_TRACE_EVENTS``; ValueError if one is invalid."""
    path, text = os.environ.get("COLLECTIVES_TRACE") or None, os.environ.get("COLLECTIVES_TRACE_EVENTS") or str(EVENTS)
    why = obstacle(path) if path is not None and _current is None else None
    if why is not None:
        raise ValueError(f"COLLECTIVES_TRACE={path!r}: {why}")
    if not text.isdecimal() or not 0 < int(text) < 1 << 32:
        raise ValueError(f"COLLECTIVES_TRACE_EVENTS={text!r}: expected a number of calls and spans, such as {EVENTS}")
    return path and os.path.abspath(path), int(text)


def is_recording() -> bool:
    """Whether this process records a timeline."""
    return _current is not None


def join(context: Any, path: str | None, most: int, anybody: bool) -> None:
    """Record the calls of a new communicator, if a timeline is asked for.

    ``path`` and ``most`` are rank 0's settings; ``anybody``: at least one rank records already. If none does, all ranks
    begin together; otherwise each rank that does not record yet begins alone. MemoryError as in ``_memory``.
    """
    if path:
        recorder = _memory(context.internal, most)
        if recorder is not None:
            parent = None if anybody else context.internal
            Trace(parent, path, most, context.identity, world=True).begin(recorder)
    if _current is not None:
        _current.attach(context)


def _memory(comm: Any, most: int) -> _core.Recorder | None:
    """Memory for ``most`` records; None if this process records already. Collective.

    MemoryError on all ranks of ``comm`` if one has no memory: what the others call next would wait for that rank.
    """
    recorder, without = None, comm.size  # without: the lowest rank that has no memory
    if _current is None:
        try:
            recorder = _core.Recorder(most, _passed_over)
        except MemoryError:
            without = comm.rank
    without = comm.allreduce(without, MPI.MIN)
    if without < comm.size:
        raise MemoryError(f"rank {without} has no memory for a timeline of {most} calls and spans")
    return recorder


def leave() -> None:
    """Save this rank's part, as far as possible."""
    if _current is not None and os.getpid() == _current.pid:
        with contextlib.suppress(OSError):
            _current.save()


class Trace:
    """A timeline being recorded: ``with comm.trace("file.json"): ...``, on all ranks of the communicator together.

    All collectives of these processes are recorded, on every communicator of this library. The file is written when
    the block ends; if the block ends with an exception, each rank writes its part instead. ``path`` is the file's:
    its name has the number of the first rank, as in ``file.rank4.json``, if rank 0 of MPI.COMM_WORLD does not record.
    """

    def __init__(self, parent: Any, path: str, most: int, identity: str, world: bool = False):
        """``parent``: the library's communicator of the ranks that record together, or None; ``world``: number the
        ranks as in MPI.COMM_WORLD."""
        self.path, self.most, self.identity = path, most, identity
        self.pid = os.getpid()
        self.rank, self.size = self.world = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        if not world:
            self.rank, self.size = parent.rank, parent.size
        self._parent = parent
        self.ending = False
        self._failures: list[tuple[int, str]] = []
        self._comms: list[dict[str, Any]] = []
        self._estimates: list[clocks.Estimate] = []

    span = staticmethod(spans.span)

    # From begin to end

    def __enter__(self) -> Trace:
        """Begin; collective. ValueError on all ranks if the file cannot be written or a rank records already.

        MemoryError on all ranks if one has no memory for the records.
        """
        self.path = self._parent.bcast(os.path.abspath(self.path))
        told = self._parent.allgather(is_recording())
        why = self._parent.bcast(obstacle(self.path) if self.rank == 0 else None)
        if any(told):
            why = f"rank {next(r for r, h in enumerate(told) if h)} records one already"
        if why is not None:
            raise ValueError(f"path: cannot record a timeline to {self.path!r}: {why}")
        recorder = _memory(self._parent, self.most)
        assert recorder is not None  # nobody records
        self.begin(recorder)
        for context in peer_queries.contexts():
            self.attach(context)
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        """End and write the file; collective unless there was an exception. OSError on all ranks if writing fails.

        If a rank has an exception or a broken communicator, or does not come in time, each writes its part instead.
        """
        self._stop()
        why = self._finish(kind is None and not self._hopeless(), self._ranks.patience)
        if why is not None:
            raise OSError(why)

    def begin(self, recorder: _core.Recorder) -> None:
        """Record from now on, in the memory of ``recorder``; collective if there is a ``parent``."""
        global _current
        self.recorder = recorder
        self.comm: Any = None if self._parent is None else self._parent.Dup()
        self._tell_ranks()
        self._ranks: Any = None
        if self.comm is not None:
            self._ranks = Together(self.comm, self.identity, f"timeline {self._zero} of {self.identity}")
        _current = self
        spans.recorder = self.recorder
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _on_signal)
        _watch_end()
        if self.comm is not None:
            self.comm.Barrier()

    def _tell_ranks(self) -> None:
        """Agree on clocks, on the start of the time axis, and on the path of the file."""
        self._zero, self._domains = time.monotonic_ns(), [clocks.domain()]
        self.aligned = self.comm is not None
        ranks = self.world[:1]
        if self.comm is not None:
            self._domains = self.comm.allgather(self._domains[0])
            self._compare(self.comm)
            self._zero = self.comm.bcast(self._zero)
            ranks = self.comm.allgather(self.world[0])
        self.path = _own_path(self.path, ranks, self.comm)

    def _compare(self, comm: Any) -> None:
        found = clocks.compare(comm, self._domains)
        if found is not None:
            self._estimates.append(found)

    def attach(self, context: Any) -> None:
        """Record the calls of the communicator of ``context``."""
        context.log = _core.Log(self.recorder)
        context.timeline = self
        self._comms.append({"identity": context.identity, "rank": context.rank, "size": context.size})

    def failed(self, context: Any, run: Any, error: BaseException) -> None:
        """Record a call that ended early, and save this rank's part, since the program may end by an abort.

        What goes wrong here is only logged: the program is to see ``error``.
        """
        for step in (lambda: self.note(context.log, run, error), leave):
            try:
                step()
            except Exception as e:
                _log.warning("the timeline may lack a call that failed: %s", brief(e))

    def note(self, log: _core.Log, run: Any, error: BaseException) -> None:
        """Record a call that ended early with ``error``; one that is no collective is recorded as a span."""
        call = run.call()
        name = call.collective.removesuffix("_init")
        name = name if name in _core.FAST_COLLECTIVES else name.removeprefix("i")
        if name not in COLLECTIVES.values():
            index = self.recorder.begin_span(call.collective)
            self.recorder.end_span(index)
        else:
            item = _core.itemsize(_core.DTYPES.index(call.dtype)) if call.op and call.dtype in _core.DTYPES else 1
            begin = getattr(run, "begin", 0) or _core.ticks()
            index = log.add(
                BLOCKING, name, call.algorithm, call.elements * item, call.number or 0, call.root or 0, begin,
                failed=True,
            )  # fmt: skip
        self._failures.append((index, brief(error)))

    # The end

    def _stop(self) -> None:
        _core.sweep()
        spans.recorder = None
        for context in peer_queries.contexts():
            context.log = None

    def _hopeless(self) -> bool:
        return MPI.Is_finalized() or any(context.broken for context in peer_queries.contexts())

    def end(self) -> None:
        """End at the end of the program: write the file, or this rank's part if ranks cannot communicate."""
        self._stop()
        why = self._finish(not self._hopeless(), LONGEST)
        if why is not None:
            _log.warning("no timeline: %s", why)

    def _finish(self, able: bool, timeout: float | None) -> str | None:
        """Put the timeline together, or save this rank's part unless all ranks are ``able`` to; forget the recording.

        ``timeout`` is that of the wait for the other ranks. Returns why writing failed, on all ranks.
        """
        whole = False
        try:
            if able:
                why = self._put_together(timeout)
                whole = True
                return why
        except (CollectiveError, MPI.Exception) as e:
            _log.warning("%s: each rank leaves its part instead: %s", self.path, e)
        finally:
            if not whole:
                self._save_or_say()
                if self._ranks is not None and not MPI.Is_finalized():
                    self._ranks.part_ways()
            _forget()
        return None

    def _put_together(self, timeout: float | None) -> str | None:
        """Compare clocks, gather the parts and write the file; returns why it failed, on all ranks."""
        ranks = self._ranks
        if ranks is None:
            return _write(self.path, [self.part()])
        ranks.meet(timeout)
        self._compare(ranks)
        parts = list(ranks.gather(self.part()))
        why: str | None = ranks.bcast(_write(self.path, parts) if parts else None)
        ranks.settle()
        if not self.ending:  # else MPI_Finalize frees it
            self.comm.Free()
        return why

    def _save_or_say(self) -> None:
        try:
            self.save()
        except OSError as e:
            _log.warning("no part of a timeline: %s", e)

    def save(self) -> None:
        """Write this rank's part to a file beside the timeline's."""
        self.part().save(part_file(self.path, self.rank))

    def part(self) -> Part:
        """This rank's records up to now."""
        about = {
            "rank": self.rank, "ranks": self.size, "world_rank": self.world[0], "host": socket.gethostname(),
            "pid": self.pid, "comms": self._comms, "names": list(self.recorder.names),
            "places": self.recorder.places.texts(), "moments": self.recorder.moments(),
            "estimates": [list(e) for e in self._estimates], "aligned": self.aligned, "zero": self._zero,
            "dropped": self.recorder.dropped, "failures": self._failures,
        }  # fmt: skip
        return Part(about, np.frombuffer(self.recorder.events(), EVENT))


def _forget() -> None:
    """Stop recording in this process, and restore the handler of SIGTERM."""
    global _current
    _current = None
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _on_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _write(path: str, parts: list[Part]) -> str | None:
    """Write the file, and remove parts that an older run left beside it; returns why writing failed."""
    try:
        perfetto.write(path, parts)
    except OSError as e:
        return f"{path}: {e.strerror or e}"
    with contextlib.suppress(OSError):
        for file in part_files(path):
            file.unlink()
    return None


@functools.cache
def _watch_end() -> None:
    """Write the file in MPI_Finalize, if the program calls it: MPI then deletes the attributes of MPI_COMM_SELF."""
    key = MPI.Comm.Create_keyval(delete_fn=lambda *_: end())
    MPI.COMM_SELF.Set_attr(key, True)


def _own_path(path: str, ranks: Sequence[int], comm: Any) -> str:
    """The file of these ranks of MPI.COMM_WORLD: ``path`` if rank 0 is one of them.

    Others get a name of their own, and so do spawned processes: parts of a communicator may be recorded to one path.
    """
    stem, suffix = os.path.splitext(path)
    if MPI.Comm.Get_parent() != MPI.COMM_NULL:
        number = comm.bcast(os.getpid()) if comm is not None else os.getpid()
        stem = f"{stem}.spawned{number}"
    return f"{stem}{suffix}" if 0 in ranks else f"{stem}.rank{min(ranks)}{suffix}"


def _passed_over(file: str) -> bool:
    """Whether frames of ``file`` are skipped in the search for the caller; those of ``train`` are not skipped."""
    return foreign(file) and not file.startswith(_TRAIN)


def _on_signal(number: int, frame: Any) -> None:
    """Handle SIGTERM, by which a launcher ends a job: save this rank's part, then die of the signal."""
    del frame
    leave()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def end() -> None:
    """Write the timeline, if one is recorded; called at exit, or earlier in MPI_Finalize."""
    if _current is not None and os.getpid() == _current.pid and not _current.ending:
        _current.ending = True
        _current.end()


at_the_end(end)
