"""Exports models as rules for Open MPI's ``coll_tuned``, for programs that run without this library.

Open MPI numbers its algorithms. If one of this library's algorithms exists there too, and its model says that it is
faster than Open MPI's own choice, the rules name its number; otherwise they say 0, which leaves the choice to Open MPI.
Two forms are written: the classic file of numbers, which every version reads, and the JSON of version 6.0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from ..schedules import registry
from ..selection.model import Model
from ..selection.policy import Choice, load_of
from ..selection.table import Entry, Table

__all__ = ["ALGORITHMS", "Made", "classic", "in_json", "made", "missing", "only", "rules"]

VENDOR = "Open MPI"
FEWEST = 2  # ranks
DEPTH = 4
LONGEST = 1 << 30
#: Collectives with number and name in JSON; gather, scatter and scans are left out: sizes of messages differ there.
COLLECTIVES = {
    "allgather": (0, "allgather"), "allgatherv": (1, "allgatherv"), "allreduce": (2, "allreduce"),
    "alltoall": (3, "alltoall"), "alltoallv": (4, "alltoallv"), "barrier": (6, "barrier"), "bcast": (7, "bcast"),
    "reduce": (11, "reduce"), "reduce_scatter": (12, "reducescatter"),
    "reduce_scatter_block": (13, "reducescatterblock"),
}  # fmt: skip
#: Numbers of the algorithms that both libraries have: (without segments, with segments).
ALGORITHMS: dict[str, dict[str, tuple[int, int | None]]] = {
    "allgather": {
        "bruck": (2, None), "recursive_doubling": (3, None), "ring": (4, None), "neighbor_exchange": (5, None),
    },
    "allgatherv": {"ring": (3, None), "neighbor_exchange": (4, None)},
    "allreduce": {
        "naive": (1, None), "recursive_doubling": (3, None), "ring": (4, 5), "recursive_halving": (6, None),
    },
    "alltoall": {"linear": (1, None), "pairwise": (2, None), "bruck": (3, None)},
    "alltoallv": {"linear": (1, None), "pairwise": (2, None)},
    "barrier": {"dissemination": (4, None)},
    "bcast": {"chain": (3, 3), "binomial": (6, 6), "scatter_allgather": (9, None)},
    "reduce": {"naive": (1, None), "binomial": (5, 5)},
    "reduce_scatter": {"recursive_halving": (2, None), "ring": (3, None)},
    "reduce_scatter_block": {"recursive_halving": (3, None)},
}  # fmt: skip

#: Collectives for which Open MPI looks for a rule by the mean length of the ranks' blocks, not by that of the vector.
BY_BLOCK = frozenset({"allgatherv"})

Rule = tuple[int, int, int]  # least bytes that Open MPI looks for, number of the algorithm, bytes of a segment


class Made(NamedTuple):
    """The rules that follow from an entry, by collective."""

    entry: Entry
    rules: dict[str, list[Rule]]


def rules(entry: Entry) -> dict[str, list[Rule]]:
    """Rules by collective, ascending in bytes; collectives that are left to Open MPI are missing."""
    found: dict[str, list[Rule]] = {}
    size = entry.layout.ranks
    for collective in COLLECTIVES:
        own = entry.models.get((collective, "mpi", None))
        same = dict(_same(entry, collective))
        if own is None or not same:
            continue
        chosen: list[Rule] = []
        lengths = [0, *(1 << k for k in range(3, int(math.log2(_longest(own))) + 2))]
        blocks = size if collective in BY_BLOCK else 1
        for least in sorted({-(-nbytes // blocks) for nbytes in lengths}):
            number, segment = _chosen(collective, same, own, size, least * blocks)
            if not chosen or chosen[-1][1:] != (number, segment):
                chosen.append((least, number, segment))
        # Open MPI looks for a rule of alltoallv by length 0, whatever the length: the first one serves all calls.
        if chosen != [(0, 0, 0)] and (collective != "alltoallv" or len(chosen) == 1):
            found[collective] = chosen
    return found


def _same(entry: Entry, collective: str) -> Iterator[tuple[tuple[str, int | None], tuple[int, Model]]]:
    """The algorithms of ``entry`` that Open MPI has too, as (name, segment): (Open MPI's number, model)."""
    for (of, name, segment), model in entry.models.items():
        numbers = ALGORITHMS[collective].get(name, (None, None))
        number = numbers[segment is not None]
        if of == collective and number is not None:
            yield (name, segment), (number, model)


def _longest(model: Model) -> int:
    """Longest vector for which rules are made: 16 times the start of the last piece of the model."""
    ends = [piece.upto for piece in model.pieces if piece.upto is not None]
    return min(LONGEST, 16 * ends[-1]) if ends else LONGEST


def _chosen(
    collective: str, same: dict[tuple[str, int | None], tuple[int, Model]], own: Model, size: int, nbytes: int
) -> tuple[int, int]:  # fmt: skip
    """Number and segment of the best algorithm, if it is faster than Open MPI's by more than both errors; else 0, 0."""

    def expected(name: str, segment: int | None, model: Model) -> float:
        choice = Choice(registry.find(collective, name), segment, "")
        return model.seconds(load_of(choice, size, nbytes, DEPTH), nbytes)

    theirs = expected("mpi", None, own)
    ours, key = min((expected(*key, model), key) for key, (_, model) in same.items())
    number, model = same[key]
    doubt = (1 + (own.error or 0)) * (1 + (model.error or 0))
    return (number, key[1] or 0) if ours * doubt < theirs else (0, 0)


def only(table: Table, text: str) -> Table:
    """The entries whose MPI and machine, as in ``Open MPI 5.0, AMD EPYC, 2 cores``, have ``text`` in them."""
    return Table([entry for entry in table.entries if text in _where(entry)], table.path)


def _where(entry: Entry) -> str:
    return f"{entry.mpi}, {entry.machine}"


def made(table: Table) -> dict[int, Made]:
    """The rules from the entry of Open MPI for each number of ranks, ascending; of several the one with most nodes.

    ValueError if there is none, or if they are of several machines or versions.
    """
    ours = [e for e in table.entries if e.mpi.startswith(VENDOR) or fnmatchcase(f"{VENDOR} 5.0", e.mpi)]
    if not ours:
        raise ValueError(f"{table.path}: no entry of {VENDOR}, or none that --only chooses")
    if len(places := sorted({_where(entry) for entry in ours})) > 1:
        raise ValueError(f"{table.path}: entries of {'; '.join(places)}: choose one of these by --only TEXT")
    entries = {e.layout.ranks: e for e in sorted(ours, key=lambda e: (e.layout.ranks, e.layout.nodes))}
    return {size: Made(entry, rules(entry)) for size, entry in entries.items()}


def missing(found: dict[int, Made]) -> str | None:
    """Why there is no rule in what :func:`made` found; None if there are some."""
    if any(each.rules for each in found.values()):
        return None
    if not any(name == "mpi" for each in found.values() for _, name, _ in each.entry.models):
        return f"no rule: the table has no models of {VENDOR}'s own choices, of algorithm mpi"
    return f"no rule: by the models, no algorithm is faster for sure than {VENDOR}'s own choice"


def classic(found: dict[int, Made]) -> str:
    """The text of the classic file, from what :func:`made` found.

    Rules for p ranks hold below 2p, or below the next number that was measured. Open MPI uses the first rules for all
    smaller communicators too. So these are ones that leave the choice to it.
    """
    sections: dict[str, list[tuple[int, list[Rule]]]] = {}
    for collective in COLLECTIVES:
        for size, (_, chosen) in found.items():
            followed = any(size < other <= 2 * size for other in found)
            if collective in chosen:
                sections.setdefault(collective, []).append((size, chosen[collective]))
            if (collective in chosen and not followed) or (collective in sections and collective not in chosen):
                end = 2 * size if collective in chosen else size
                if not any(end == known for known, _ in sections[collective]):
                    sections[collective].append((end, [(0, 0, 0)]))
    lines = [f"{len(sections)}  # collectives; written by python -m collectives tune --export"]
    for collective, blocks in sections.items():
        blocks = sorted(dict(blocks).items())
        if blocks[0][0] > FEWEST:
            blocks.insert(0, (FEWEST, [(0, 0, 0)]))
        lines += [f"{COLLECTIVES[collective][0]}  # {collective}", f"{len(blocks)}  # numbers of ranks"]
        for size, each in blocks:
            lines += [f"{size}  # ranks", f"{len(each)}  # rules: bytes, algorithm, fan-out, bytes of a segment"]
            lines += [f"{nbytes} {number} 0 {segment}" for nbytes, number, segment in each]
    return "\n".join(lines) + "\n"


def _spread(entry: Entry) -> str:
    if entry.layout.nodes == 1:
        return "single-node"
    return "one-per-node" if entry.layout.ranks_per_node == 1 else "any"


def in_json(found: dict[int, Made]) -> str:
    """The text of the JSON file of Open MPI 6.0, from what :func:`made` found."""
    sections: dict[str, list[dict[str, object]]] = {}
    for size, (entry, rules_of) in found.items():
        following = [other for other in found if other > size]
        end = min([2 * size, *following]) - 1
        for collective, chosen in rules_of.items():
            ends: list[int | str] = [nbytes - 1 for nbytes, _, _ in chosen[1:]]
            rows = [
                {"msg_size_min": nbytes, "msg_size_max": last, "alg": number, "seg_size": segment}
                for (nbytes, number, segment), last in zip(chosen, [*ends, "inf"], strict=True) if number
            ]  # fmt: skip
            block = {
                "comm_size_min": size,
                "comm_size_max": end,
                "comm_rank_distribution": _spread(entry),
                "rules": rows,
            }
            sections.setdefault(COLLECTIVES[collective][1], []).append(block)
    return json.dumps({"rule_file_version": 3, "module": "tuned", "collectives": sections}, indent=2) + "\n"
