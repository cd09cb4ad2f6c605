"""What the node-local engine moves between caches: formulas from its code, for nodes larger than any at hand.

    python -m collectives.analysis.node_cost -p 2,16,64,128,192

prints the tables of docs/big-nodes.md, which explains them. ``tests/analysis/test_node_cost.py`` counts the same
loads and stores in the engine's own code.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Bytes", "Levels", "Lines", "Machine", "direct", "flat", "grouped", "levels", "pull", "read", "slices"]

LINE = 64  # bytes of a cache line
FLAG = 8  # bytes of the flag that precedes the data of an inline call in the same cache line
GROUP = 16  # ranks of a group, as in csrc/node/internal.h
RING = 2 << 20  # bytes of each rank's staging ring; larger than a private cache


@dataclass(frozen=True)
class Machine:
    """Sockets of ``cores`` cores, with the ranks spread evenly; caches in bytes, times to transfer a line in ns."""

    cores: int = 96
    private: int = 1 << 20
    shared: int = 192 << 20  # the cache that a socket's cores share
    stream: int = 8 << 20  # vectors of at least this length bypass the caches if all outputs are on the heap
    inside: tuple[float, float] = (23, 115)  # shortest and longest time from core to core within a socket
    across: tuple[float, float] = (108, 197)  # the same times between sockets

    def sockets(self, p: int) -> int:
        """The smallest number of sockets with a core for each of ``p`` ranks."""
        return -(-p // self.cores)

    def socket(self, rank: int, p: int) -> int:
        """The number of the socket of ``rank``; consecutive ranks share a socket."""
        return rank * self.sockets(p) // p


# --- inline calls: transfers of lines ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lines:
    """Transfers of cache lines in one call: a rank fetches a line that another rank has written.

    ``chain`` counts the transfers on the path from the last rank's data to the last rank's result, if a rank fetches
    one line at a time; ``across`` counts those of them between sockets. ``steps`` counts the steps of that path, as if
    all lines of a step were fetched at once. ``total`` counts the transfers of all ranks.
    """

    steps: int
    chain: int
    across: int
    total: int

    def ns(self, machine: Machine) -> tuple[float, float]:
        """Shortest and longest time in ns. In each step the writer first takes its line back from its readers."""
        nearest = machine.across[0] if self.across else machine.inside[0]
        shortest = 2 * ((self.steps - 1) * machine.inside[0] + nearest)
        fetched = (self.chain - self.across) * machine.inside[1] + self.across * machine.across[1]
        return shortest, fetched + self.steps * (machine.across if self.across else machine.inside)[1]


def _lines(nbytes: int) -> int:
    return -(-nbytes // LINE)


def flat(p: int, nbytes: int, machine: Machine) -> Lines:
    """Inline call without groups: every rank fetches all other ranks' lines; 56 bytes share the flag's line."""
    each = _lines(FLAG + nbytes)
    away = p - sum(machine.socket(q, p) == 0 for q in range(p))
    return Lines(1, (p - 1) * each, away * each, p * (p - 1) * each)


def grouped(p: int, nbytes: int, machine: Machine) -> Lines:
    """Inline call in groups: leaders fetch members' lines and other leaders' bundles; members fetch the result.

    A member that waits for the result also reads its leader's line once, to see whether the leader is in the same call.
    """
    each, leaders = _lines(FLAG + nbytes), range(0, p, GROUP)
    members = {leader: min(GROUP, p - leader) - 1 for leader in leaders}
    bundles = {leader: _lines(FLAG + (members[leader] + 1) * nbytes) for leader in leaders}
    away = {a: sum(bundles[b] for b in leaders if machine.socket(a, p) != machine.socket(b, p)) for a in leaders}
    others = {a: sum(bundles.values()) - bundles[a] for a in leaders}
    busiest = max(leaders, key=lambda a: members[a] * each + others[a])
    chain = members[busiest] * each + others[busiest] + each
    steps = 1 + (len(leaders) > 1) + 1
    total = sum(members.values()) * (2 * each + 1) + sum(others.values())
    return Lines(steps, chain, away[busiest], total)


# --- longer calls: bytes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bytes:
    """Bytes that one rank moves: in its own arrays, its own staging memory, and the memory of other ranks."""

    loaded: float = 0
    stored: float = 0
    staged: float = 0  # stored in its own staging memory, for other ranks
    reread: float = 0  # loaded from its own staging memory
    taken: float = 0  # loaded from memory that other ranks have written
    given: float = 0  # stored in other ranks' arrays

    @property
    def all(self) -> float:
        """The sum of all loads and stores."""
        return self.loaded + self.stored + self.staged + self.reread + self.taken + self.given


def read(p: int, s: float) -> Bytes:
    """Bytes of the scheme "read" for a vector of ``s``: copy the input in, fold all ranks' vectors."""
    return Bytes(loaded=s, stored=s, staged=s, reread=s, taken=(p - 1) * s)


def slices(p: int, s: float) -> Bytes:
    """Bytes of the scheme "slices": copy in what others fold, fold the own slice, copy the other slices out."""
    return Bytes(loaded=s, stored=s, staged=s, taken=2 * s * (p - 1) / p)


def direct(p: int, s: float) -> Bytes:
    """Bytes of the scheme "direct": fold the own slice from all ranks' inputs to all ranks' outputs."""
    return Bytes(loaded=s / p, stored=s / p, taken=s * (p - 1) / p, given=s * (p - 1) / p)


def pull(collective: str, p: int, s: float, *, heap: bool = False) -> Bytes:
    """Bytes of the busiest rank in ``collective``; ``s`` is the whole vector; ``heap``: inputs are on the heap."""
    b = s / p
    rest, copies = s - b, 0.0 if heap else 1.0
    found = {
        "bcast": Bytes(stored=s, taken=s),
        "scatter": Bytes(stored=b, taken=b),
        "gather": Bytes(loaded=b, stored=s, taken=rest),
        "allgather": Bytes(loaded=copies * b + b, stored=s, staged=copies * b, taken=rest),
        "alltoall": Bytes(loaded=copies * rest + b, stored=s, staged=copies * rest, taken=rest),
        "reduce": Bytes(loaded=s, stored=s, taken=(p - 1) * s),
        "reduce_scatter": Bytes(loaded=copies * rest + b, stored=b, staged=copies * rest, taken=rest),
        "scan": Bytes(loaded=s, stored=s, taken=(p - 1) * s),
    }
    return found[collective]


@dataclass(frozen=True)
class Levels:
    """The parts of the memory system that the bytes of one rank come from or go to."""

    private: float = 0  # the rank's own cache
    shared: float = 0  # the cache that the cores of its socket share
    memory: float = 0
    sockets: float = 0  # the bytes among these that come from or go to another socket


def levels(moved: Bytes, p: int, s: float, machine: Machine, *, heap: bool = False) -> Levels:
    """Distribute what a rank moves over the levels, if the same arrays are used in call after call.

    A rank's own arrays are in the smallest level that holds all that is used in a call: its own cache (what it uses),
    the socket's cache (what all its ranks use), or memory. A store to memory first fetches the line, unless it bypasses
    the caches. Data taken from other ranks' rings have just been written and are in the socket's cache. Stores to the
    own ring go there too, or to memory if the rings are too large. With ``heap``, there are no rings: data of other
    ranks are where the arrays are.
    """
    ranks = -(-p // machine.sockets(p))
    arrays, ring = 2 * s, 0 if heap else RING
    own = "shared" if ranks * (arrays + ring) <= machine.shared else "memory"
    passed = own if heap else "shared"
    own = "private" if arrays + min(moved.staged, ring) <= machine.private else own
    rings = "shared" if ranks * ring <= machine.shared else "memory"
    fetch = 1 if heap and s >= machine.stream else 2  # bytes that memory moves for each byte stored
    total = dict.fromkeys(("private", "shared", "memory"), 0.0)
    for place, loads, stores in (
        (own, moved.loaded, moved.stored), ("private", moved.reread, 0), (rings, 0, moved.staged),
        (passed, moved.taken, moved.given),
    ):  # fmt: skip
        total[place] += loads + stores * (fetch if place == "memory" else 1)
    away = (p - ranks) / (p - 1) if p > 1 else 0
    return Levels(**total, sockets=away * (moved.taken + moved.given))


# --- tables -----------------------------------------------------------------------------------------------------------

#: Rows of the table: name and function of the scheme, whether arrays are on the heap, KiB of the vector.
ROWS: list[tuple[str, Callable[[int, float], Bytes], bool, int]] = [
    ("read", read, False, 4),
    ("slices", slices, False, 256),
    ("slices", slices, False, 64 << 10),
    ("direct", direct, True, 256),
    ("direct", direct, True, 64 << 10),
    ("pull: bcast", lambda p, s: pull("bcast", p, s), False, 256),
    ("pull: allgather", lambda p, s: pull("allgather", p, s), False, 256),
]


def inline_table(numbers: Sequence[int], nbytes: int, machine: Machine) -> list[str]:
    """The table of transfers of lines in an inline call of ``nbytes`` bytes; one string per line."""
    lines = [
        f"All-reduce of {nbytes} bytes, inline",
        f"{'ranks':>5} {'sockets':>7}  {'way':8}{'steps':>5}{'chain':>7}{'across':>7}{'in all':>8}{'ns':>14}",
    ]
    for p in numbers:
        for way in (flat, grouped):
            found = way(p, nbytes, machine)
            chosen = "*" if (way is flat) == (p <= GROUP) else " "
            time = "{:.0f}-{:.0f}".format(*found.ns(machine))
            lines.append(
                f"{p:5} {machine.sockets(p):7}  {way.__name__ + chosen:8}{found.steps:5}{found.chain:7}"
                f"{found.across:7}{found.total:8}{time:>14}"
            )
    return lines


def bytes_table(numbers: Sequence[int], machine: Machine) -> list[str]:
    """The table of bytes that one rank moves, as multiples of the vector; one string per line."""
    lines = [
        "Loads and stores of a rank, as multiples of the vector",
        f"{'ranks':>5}  {'scheme':16}{'KiB':>6}{'in all':>8}{'private':>9}{'shared':>8}{'memory':>8}{'sockets':>9}",
    ]
    for p in numbers:
        for name, scheme, heap, length in ROWS:
            s = length << 10
            moved = scheme(p, s)
            at = levels(moved, p, s, machine, heap=heap)
            lines.append(
                f"{p:5}  {name:16}{length:6}{moved.all / s:8.2f}{at.private / s:9.2f}{at.shared / s:8.2f}"
                f"{at.memory / s:8.2f}{at.sockets / s:9.2f}"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m collectives.analysis.node_cost", description=(__doc__ or "").split("\n")[0]
    )
    default = Machine()
    parser.add_argument("-p", dest="ranks", default="2,16,64,128,192", metavar="P", help="ranks (%(default)s)")
    parser.add_argument("--inline", type=int, default=8, metavar="N", help="bytes of an inline call (%(default)s)")
    parser.add_argument("--cores", type=int, default=default.cores, help="cores of a socket (%(default)s)")
    parser.add_argument("--private", type=int, default=1 << 10, help="KiB of a core's cache (%(default)s)")
    parser.add_argument("--shared", type=int, default=192 << 10, help="KiB of a socket's cache (%(default)s)")
    for where in ("inside", "across"):
        text = f"ns of a line, {where} sockets, shortest and longest"
        parser.add_argument(f"--{where}", type=float, nargs=2, default=getattr(default, where), help=text)
    args = parser.parse_args(arguments)
    machine = Machine(
        args.cores, args.private << 10, args.shared << 10, inside=tuple(args.inside), across=tuple(args.across)
    )
    numbers = [int(text) for text in args.ranks.split(",")]
    tables = inline_table(numbers, args.inline, machine), bytes_table(numbers, machine)
    print("\n\n".join("\n".join(table) for table in tables))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
