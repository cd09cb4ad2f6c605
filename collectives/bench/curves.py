"""Times by message size, read from the JSON of ``bench --json`` and ``benchmarks/peers.py --json``, as curves."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from ..schedules import registry
from ..trace.fields import is_number, lacks
from .programs import messages_of

__all__ = ["Curve", "curves", "groups", "of_files", "read", "size_name", "size_ticks", "speed_unit", "time_name"]

PEERS = {"ompi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI", "gloo": "Gloo"}
OURS = {"private": "collectives", "heap": "collectives, heap arrays"}
PLACES = {"out": "out of place", "in": "in place"}
#: Fields of a result, which are needed to draw it.
_OF_BENCH = {"type": str, "ranks": int, "algorithm": (str, NoneType), "bytes": int, "vector": float, "us": dict}
_OF_PEERS = {
    "place": str, "reuse": str, "contestant": str, "collective": str, "ranks": int, "bytes": int, "us": list,
}  # fmt: skip


@dataclass
class Curve:
    """One line of a picture: ``points`` maps bytes of the message to us, ``vectors`` to bytes of the whole vector.

    ``group`` names the picture. ``emphasis``: whether the curve is this library's, among others.
    """

    group: str
    label: str
    points: dict[int, float] = field(default_factory=dict)
    vectors: dict[int, int] = field(default_factory=dict)
    emphasis: bool = False

    def bandwidths(self) -> dict[int, float]:
        """GB/s by bytes of the message: bytes of the vector divided by the time (algbw of nccl-tests)."""
        return {n: self.vectors[n] / us / 1e3 for n, us in self.points.items() if us > 0 and self.vectors.get(n)}


def read(path: str | Path) -> dict[str, Any]:
    """The content of a results file, and under ``file`` its name; ValueError, which names it, if it is not one."""
    try:
        content = json.loads(Path(path).read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("results"), list):
        raise ValueError(f"{path} has no results of bench or of benchmarks/peers.py")
    why = _wrong(content)
    if why is not None:
        raise ValueError(f"{path}: {why}")
    return {**content, "file": str(path)}


def _wrong(content: Mapping[str, Any]) -> str | None:
    """Which field, needed to draw a results file, is missing or wrong; None if there is none."""
    bench = content.get("kind") == "bench"
    why = lacks(content, {"title": str}) if bench else None
    if why is None and "machine" in content:
        why = lacks(content["machine"], {"cpu": str, "cores": int})
        why = why and f"machine: {why}"
    for number, record in enumerate(content["results"] if why is None else [], 1):
        why = (_wrong_of_bench if bench else _wrong_of_peers)(record)
        if why is None and "core_waits" in record:
            why = lacks(record, {"core_waits": float})
        if why is not None:
            return f"result {number}: {why}"
    return why


def _wrong_of_bench(record: Any) -> str | None:
    why = lacks(record, _OF_BENCH)
    if why is not None:
        return why
    if record["us"].get("p50") is not None:
        return lacks(record["us"], {"p50": float})
    why = lacks(record, {"MB/s": float})
    return why if why is not None or record["MB/s"] > 0 or not record["vector"] else "MB/s: not above 0"


def _wrong_of_peers(record: Any) -> str | None:
    why = lacks(record, _OF_PEERS)
    if why is not None:
        return why
    if not record["us"] or not all(map(is_number, record["us"])):
        return "us: expected a list of numbers"
    if record["collective"] not in registry.NAMES:
        return f"collective: {record['collective']!r:.40} is unknown"
    return None if record["place"] in PLACES else f"place: {record['place']!r:.40} is none of {', '.join(PLACES)}"


def curves(content: Mapping[str, Any]) -> list[Curve]:
    """The curves of a results file; curves of one picture follow each other."""
    return _of_bench(content) if content.get("kind") == "bench" else _of_peers(content)


def of_files(contents: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """The curves of several results files. If two files have curves of one name, their labels end with the file's."""
    each = [curves(content) for content in contents]
    count = Counter((curve.group, curve.label) for made in each for curve in made)
    alike = [number for number, made in enumerate(each) if any(count[curve.group, curve.label] > 1 for curve in made)]
    names = [Path(contents[number].get("file", f"{number + 1}")) for number in alike]
    short = len({name.stem for name in names}) == len(names)
    for number, name in zip(alike, names, strict=True):
        for curve in each[number]:
            curve.label += f", {name.stem if short else name}"
    return [curve for made in each for curve in made]


def groups(every: Iterable[Curve]) -> dict[str, list[Curve]]:
    """The curves by the name of their picture."""
    found: dict[str, list[Curve]] = {}
    for curve in every:
        found.setdefault(curve.group, []).append(curve)
    return found


def _of_bench(content: Mapping[str, Any]) -> list[Curve]:
    """Curves of ``bench``: medians over all samples of all ranks, which a single slow call does not change."""
    found: dict[tuple[str, str], Curve] = {}
    several = len({record["type"] for record in content["results"]}) > 1
    both = len({bool(record.get("in_place")) for record in content["results"]}) > 1  # of bench --nccl
    for record in content["results"]:
        us = record["us"].get("p50")
        if us is None and not record["vector"]:  # a bandwidth of nothing
            continue
        group = f"{content['title'].removesuffix(' Latency')}, {record['ranks']} ranks"
        if several:
            group += f", {record['type'].upper()}"
        label = record["algorithm"] or "chosen by the library"
        if both:
            label += f", {PLACES['in' if record.get('in_place') else 'out']}"
        curve = found.setdefault((group, label), Curve(group, label))
        curve.vectors[record["bytes"]] = record["vector"]
        curve.points[record["bytes"]] = record["vector"] / record["MB/s"] if us is None else us
    return list(found.values())


def _of_peers(content: Mapping[str, Any]) -> list[Curve]:
    """Curves of ``peers.py``: medians of the rounds; of each other library the faster thread level at each size."""
    found: dict[tuple[str, str], Curve] = {}
    modes = {(record["place"], record["reuse"]) for record in content["results"]}
    for record in content["results"]:
        name = record["contestant"].split("/")[0]
        label = OURS.get(name) or PEERS.get(name)
        if label is None:  # a pass over memory, or our heap arrays in a program that does not know this library
            continue
        group = f"{record['collective'].capitalize()}, {record['ranks']} ranks"
        if len(modes) > 1:
            group += f", {PLACES[record['place']]}, {'one buffer' if record['reuse'] == 'one' else 'buffers in turn'}"
        curve = found.setdefault((group, label), Curve(group, label, emphasis=name in OURS))
        nbytes, us = record["bytes"], statistics.median(record["us"])
        curve.points[nbytes] = min(us, curve.points.get(nbytes, us))
        curve.vectors[nbytes] = nbytes * messages_of(record["collective"], record["ranks"])
    return list(found.values())


def size_name(nbytes: float) -> str:
    """A number of bytes as text: 8 B, 16 KiB, 64 MiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:g} {unit}"
    return f"{nbytes:g} B"


def time_name(us: float) -> str:
    """A time in us as text: 100 ns, 10 µs, 1 ms."""
    for unit, factor in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if us >= factor * 0.9999:
            return f"{us / factor:g} {unit}"
    return f"{us * 1e3:g} ns"


def size_ticks(low: float, high: float, measured: Iterable[int]) -> list[int]:
    """Powers of 16, 4 or 2 between ``low`` and ``high``, the first of these with three; else the sizes measured."""
    found: list[int] = []
    for bits in (4, 2, 1):
        found = [1 << i for i in range(0, 64, bits) if low <= 1 << i <= high]
        if len(found) > 2:
            return found
    return found if len(found) == 2 else sorted(set(measured))


def speed_unit(most: float) -> tuple[str, float]:
    """The unit for speeds up to ``most`` GB/s, and how many GB/s it is."""
    units = (("GB/s", 1.0), ("MB/s", 1e-3))
    return next(((unit, factor) for unit, factor in units if most >= factor), ("kB/s", 1e-6))
