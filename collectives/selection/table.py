"""Selection tables: what ``python -m collectives tune`` measured, as a JSON file that people can read, edit and merge.

A table has entries, each for one machine, MPI library and layout of ranks. An entry has rules (rows as in
:mod:`collectives.selection.policy`, of which the first that fits is used), limits of the node-local engine, and the
models from which the rules were derived. docs/tuning.md describes the file.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..files import replacing
from ..schedules import registry
from ..schedules.registry import PRIVATE_LENGTHS, NativeAlgorithm
from .layout import Layout
from .model import Model, Piece, pieces_cover
from .policy import DEFAULT, Limits, ModelKey, Rows, Tuned

__all__ = [
    "VERSION",
    "Entry",
    "Table",
    "from_environment",
    "load",
    "merge",
    "named",
    "nearest",
    "noted",
    "parse",
    "pick",
    "save",
]

FORMAT = "collectives tuning table"
VERSION = 1
_LONGEST_SEGMENT, _LONGEST_READ = 256 << 10, 64 << 10  # as in csrc/node/node.h
_LARGEST = (1 << 63) - 1  # integers go to compiled code


def named(vendor: str, version: tuple[int, ...]) -> str:
    """The name of an MPI library in tables: what mpi4py's ``get_vendor`` returns, without the patch level."""
    return f"{vendor} {'.'.join(map(str, version[:2]))}"


@dataclass
class Entry:
    """What was measured on one machine with one MPI library and one layout.

    ``machine`` and ``mpi`` may be shell patterns (``*``). ``made`` tells people when and how it was measured.
    """

    machine: str
    mpi: str
    layout: Layout
    rules: dict[str, Rows] = field(default_factory=dict)
    limits: Limits | None = None
    models: dict[ModelKey, Model] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, Layout]:
        """Machine, MPI and layout; entries with equal keys are merged."""
        return self.machine, self.mpi, self.layout

    @property
    def patterns(self) -> int:
        """How many of machine and MPI are patterns."""
        return sum(any(sign in name for sign in "*?[") for name in (self.machine, self.mpi))


@dataclass
class Table:
    """The entries of one file, and its path."""

    entries: list[Entry] = field(default_factory=list)
    path: str = ""

    def serving(self, machine: str, mpi: str | None) -> Table:
        """The entries whose patterns match ``machine`` and ``mpi`` (None: any MPI)."""
        fit = [
            entry for entry in self.entries
            if fnmatchcase(machine, entry.machine) and (mpi is None or fnmatchcase(mpi, entry.mpi))
        ]  # fmt: skip
        return Table(fit, self.path)


_LONGEST_FILE = 64 << 20  # characters: what is not a table, such as a device, is not read for ever


# --- files --------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> Table:
    """Read a table; ValueError, with file and entry, if it is not valid; OSError if the file cannot be read."""
    path = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_LONGEST_FILE + 1)
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a text in UTF-8") from None
    if len(text) > _LONGEST_FILE:
        raise ValueError(f"{path}: longer than {_LONGEST_FILE >> 20} MiB: not a table of tune")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as e:
        raise ValueError(f"{path}, line {e.lineno}, column {e.colno}: not JSON: {e.msg}") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply: not a table of tune") from None
    except ValueError as e:  # an integer of thousands of digits
        raise ValueError(f"{path}: {e}") from None
    return parse(data, path)


def save(table: Table, path: str | os.PathLike[str]) -> None:
    """Write a table by replacing the file, so that concurrent readers find the old file or the new one."""
    text = json.dumps(_as_json(table), indent=2)
    text = re.sub(r"\{[^{}\[\]]*\}|\[[^{}\[\]]*\]", lambda leaf: " ".join(leaf[0].split()), text)  # one line per row
    with replacing(path) as file:
        file.write(text + "\n")


def merge(tables: Iterable[Table]) -> Table:
    """One table with all entries; of entries with equal keys, later rules and models replace earlier ones.

    All that was measured of a collective is replaced together: its models, and what ``made`` says of it. A collective
    for which the later entry has neither rules nor models stays as it was.
    """
    found: dict[Any, Entry] = {}
    for table in tables:
        for entry in table.entries:
            old = found.get(entry.key)
            found[entry.key] = entry if old is None else _merged(old, entry)
    return Table(list(found.values()))


def _merged(old: Entry, new: Entry) -> Entry:
    known, replaced = ({*entry.rules, *(key[0] for key in entry.models)} for entry in (old, new))
    kept = {*known, *noted(old, "fitted", dict)} - replaced
    made = old.made | new.made
    if "fitted" in made:
        made["fitted"] = {
            name: lengths for entry in (old, new) for name, lengths in noted(entry, "fitted", dict).items()
            if (name in kept) == (entry is old)
        }  # fmt: skip
    if "not_measured" in made:
        made["not_measured"] = [
            text for entry in (old, new) for text in noted(entry, "not_measured", list)
            if (str(text).split(" ")[0] in kept) == (entry is old)
        ]  # fmt: skip
    models = {key: model for key, model in old.models.items() if key[0] in kept} | new.models
    return dataclasses.replace(
        new, rules=old.rules | new.rules, limits=new.limits or old.limits, models=models, made=made
    )  # fmt: skip


def noted(entry: Entry, name: str, kind: Callable[[], Any]) -> Any:
    """What tune noted in ``made``; empty if it is not there, or no longer of ``kind``, since people may edit it."""
    found, empty = entry.made.get(name), kind()
    return found if isinstance(found, type(empty)) else empty


# --- which entry --------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def _load_once(path: str, modified: int, length: int) -> Table:
    return load(path)


def from_environment(machine: str, mpi: str | None = None) -> Table | None:
    """The entries of the file ``COLLECTIVES_TUNING`` for ``machine`` and ``mpi`` (None: any); None if it is not set.

    They are without ``made``, which the library does not need. ValueError, with the variable's name, if the file cannot
    be used.
    """
    path = os.environ.get("COLLECTIVES_TUNING")
    if not path:
        return None
    try:
        state = os.stat(path)
        table = _load_once(path, state.st_mtime_ns, state.st_size)
    except OSError as e:
        raise ValueError(f"COLLECTIVES_TUNING={path!r}: {e.strerror}") from None
    except ValueError as e:
        raise ValueError(f"COLLECTIVES_TUNING: {e}") from None
    fit = table.serving(machine, mpi).entries
    return Table([dataclasses.replace(entry, made={}) for entry in fit], table.path)


def pick(table: Table, layout: Layout) -> Tuned | None:
    """The rules for a communicator of ``layout``, from the :func:`nearest` entry; None if there is none."""
    entry = nearest(table, layout)
    if entry is None:
        return None
    near = "" if entry.layout == layout else f", nearest to {layout}"
    chosen = {(collective, name, segment) for collective, rows in entry.rules.items() for _, name, segment in rows}
    models = {key: model for key, model in entry.models.items() if key in chosen}
    return Tuned(entry.rules, f"{table.path} ({entry.layout}{near})", entry.limits, models)


def nearest(table: Table, layout: Layout) -> Entry | None:
    """The entry for ``layout``, else the nearest one that may serve it; see :meth:`Layout.distance`.

    Of equally near ones it is the one with the fewest patterns. None if there is no such entry, and for a single rank.
    """
    ranked = sorted((e.layout.distance(layout), e.patterns, i) for i, e in enumerate(table.entries))
    if layout.ranks == 1 or not ranked or math.isinf(ranked[0][0][0]):
        return None
    return table.entries[ranked[0][2]]


# --- from and to JSON ---------------------------------------------------------------------------------------------


def _as_json(table: Table) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION, "entries": [_entry_out(e) for e in table.entries]}


def _entry_out(entry: Entry) -> dict[str, Any]:
    models: dict[str, list[dict[str, Any]]] = {}
    for (collective, name, segment), model in entry.models.items():
        pieces = [{x: _rounded(value) for x, value in dataclasses.asdict(piece).items()} for piece in model.pieces]
        row = {"algorithm": name, "segment": segment, "error": _rounded(model.error), "pieces": pieces}
        models.setdefault(collective, []).append(row)
    return {
        "machine": entry.machine,
        "mpi": entry.mpi,
        "nodes": entry.layout.nodes,
        "ranks_per_node": entry.layout.ranks_per_node,
        "ranks": entry.layout.ranks,
        "made": entry.made,
        "rules": {
            collective: [dict(zip(("upto", "algorithm", "segment"), row, strict=True)) for row in rows]
            for collective, rows in entry.rules.items()
        },
        "node_limits": None if entry.limits is None else entry.limits._asdict(),
        "models": models,
    }


def _rounded(value: Any) -> Any:
    """A float rounded to 4 digits, more than its measurement can have; other values unchanged."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def parse(data: Any, path: str = "table") -> Table:
    """A table from parsed JSON; ValueError, whose message begins with ``path`` and names the entry, if invalid."""
    top = _Reader(path, data, {"format", "version", "entries"})
    version = top.get("version", int)
    if version != VERSION:
        raise top.error(f"version {version}, and this library reads version {VERSION}; tune again")
    if top.data.get("format", FORMAT) != FORMAT:
        raise top.error(f"format {top.data['format']!r:.40}, not {FORMAT!r}")
    entries = [_entry(_Reader(f"{path}, entry {i}", e, _ENTRY)) for i, e in enumerate(top.get("entries", list), 1)]
    seen: dict[Any, int] = {}
    for i, entry in enumerate(entries, 1):
        if entry.key in seen:
            raise ValueError(f"{path}, entry {i}: the same machine, mpi and layout as entry {seen[entry.key]}")
        seen[entry.key] = i
    return Table(entries, path)


_ENTRY = {"machine", "mpi", "nodes", "ranks_per_node", "ranks", "made", "rules", "node_limits", "models"}


class _Reader:
    """A JSON object with a known set of fields; its errors name its place in the file."""

    def __init__(self, where: str, data: Any, known: set[str] | None = None):
        self.where = where
        if not isinstance(data, dict):
            raise self.error(f"expected an object, not {_kind(data)}")
        self.data = data
        unknown = sorted(data.keys() - known) if known is not None else []
        if known is not None and unknown:
            raise self.error(f"unknown field {unknown[0]!r}; known: {', '.join(sorted(known))}")

    def error(self, message: str) -> ValueError:
        return ValueError(f"{self.where}: {message}")

    def get(self, name: str, kind: Any, missing: Any = ...) -> Any:
        """The field ``name``, of type ``kind``; ``missing`` is returned if it is null or not there."""
        value = self.data.get(name)
        if value is None and missing is not ...:
            return missing
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(f"{name}: expected {_NAMES[kind]}, not {_kind(value)}")
        if kind is int and value < 1:
            raise self.error(f"{name}: {_kind(value)} is not at least 1")
        if kind == NUMBER and not 0 <= value < math.inf:
            raise self.error(f"{name}: {_kind(value)} is not a finite number from 0 on")
        if isinstance(value, int) and value > _LARGEST:
            raise self.error(f"{name}: {_kind(value)} is above {_LARGEST}")
        return value


NUMBER = (int, float)
_NAMES: dict[Any, str] = {int: "an integer", str: "a string", list: "a list", dict: "an object", NUMBER: "a number"}


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.40}"


def _entry(of: _Reader) -> Entry:
    return Entry(
        of.get("machine", str),
        of.get("mpi", str),
        _layout(of),
        {name: _rows(f"{of.where}, {name}", name, rows) for name, rows in of.get("rules", dict, {}).items()},
        _limits(f"{of.where}, node_limits", of.get("node_limits", dict, None)),
        dict(
            _model(_Reader(f"{of.where}, models of {name}, {i}", m, {"algorithm", "segment", "error", "pieces"}), name)
            for name, models in of.get("models", dict, {}).items()
            for i, m in enumerate(models if isinstance(models, list) else [models], 1)
        ),
        of.get("made", dict, {}),
    )


def _layout(of: _Reader) -> Layout:
    """The layout of an entry; ValueError if it cannot have so many ranks."""
    layout = Layout(of.get("nodes", int), of.get("ranks_per_node", int), of.get("ranks", int, 0))
    fewest, most = layout.nodes - 1 + layout.ranks_per_node, layout.nodes * layout.ranks_per_node
    if not fewest <= layout.ranks <= most:
        raise of.error(f"ranks: {layout.ranks} is not from {fewest} to {most}")
    return layout


def _algorithm(of: _Reader, collective: str) -> tuple[str, int | None]:
    """Algorithm and segment of a row; ValueError if ``collective`` has no such algorithm or takes no segments."""
    name, segment = of.get("algorithm", str), of.get("segment", int, None)
    try:
        algorithm = registry.find(collective, name)
    except ValueError as e:
        raise of.error(str(e)) from None
    if segment is not None and (isinstance(algorithm, NativeAlgorithm) or collective in PRIVATE_LENGTHS):
        raise of.error(f"segment: {collective} by {name} takes none")
    return name, segment


def _rows(where: str, collective: str, data: Any) -> Rows:
    if collective not in DEFAULT:
        raise ValueError(f"{where}: unknown collective; known: {', '.join(sorted(DEFAULT))}")
    if not isinstance(data, list) or not data:
        raise ValueError(f"{where}: expected a list of rows, not {_kind(data)}")
    rows: Rows = []
    for i, row in enumerate(data, 1):
        of = _Reader(f"{where}, row {i}", row, {"upto", "algorithm", "segment"})
        upto = of.get("upto", NUMBER, None)
        if not isinstance(upto, int | None):
            raise of.error(f"upto: expected a number of bytes, not {upto}")
        if rows and (rows[-1][0] is None or (upto is not None and upto <= rows[-1][0])):
            raise of.error("never reached: upto must grow from row to row, and only the last row may be without one")
        if collective in PRIVATE_LENGTHS and upto is not None:
            raise of.error(f"upto: the ranks of {collective} do not know the same lengths")
        rows.append((upto, *_algorithm(of, collective)))
    return rows


def _limits(where: str, data: Any) -> Limits | None:
    if data is None:
        return None
    of = _Reader(where, data, set(Limits._fields))
    limits = Limits(*(of.get(name, int) for name in Limits._fields))
    if any(value & (value - 1) for value in (limits.shortest, limits.segment)):
        raise of.error("shortest, segment: not powers of two")
    if not 4096 <= limits.shortest <= limits.segment <= _LONGEST_SEGMENT:
        raise of.error(f"shortest, segment: not 4096 <= shortest <= segment <= {_LONGEST_SEGMENT}")
    if not limits.copy <= limits.read <= _LONGEST_READ:
        raise of.error(f"copy, read: not copy <= read <= {_LONGEST_READ}")
    return limits


def _model(of: _Reader, collective: str) -> tuple[ModelKey, Model]:
    name, segment = _algorithm(of, collective)
    pieces = tuple(
        Piece(p.get("upto", int, None), *(p.get(x, NUMBER) for x in ("alpha", "beta", "gamma")))
        for i, piece in enumerate(of.get("pieces", list), 1)
        for p in [_Reader(f"{of.where}, piece {i}", piece, {"upto", "alpha", "beta", "gamma"})]
    )
    if not pieces_cover(pieces):
        raise of.error("pieces: upto must grow from piece to piece, and the last, only the last, be without one")
    return (collective, name, segment), Model(pieces, of.get("error", NUMBER, None))
