"""The benchmark programs, by name. Imports without MPI."""

from __future__ import annotations

from dataclasses import dataclass

from ..schedules import registry

__all__ = ["EXCHANGES", "NAMES", "POINT_TO_POINT", "Program", "find", "messages_of"]

COLLECTIVES = registry.NAMES
EXCHANGES = registry.EXCHANGES
#: Programs of messages between pairs of ranks, and the titles of their tables.
POINT_TO_POINT = {
    "latency": "MPI Latency", "bw": "MPI Bandwidth", "bibw": "MPI Bi-Directional Bandwidth",
    "multi_lat": "MPI Multi Latency", "mbw_mr": "MPI Multiple Bandwidth / Message Rate",
}  # fmt: skip

_EVERY = (*COLLECTIVES, *EXCHANGES)
NAMES = (
    *_EVERY,
    *(f"i{name}" for name in _EVERY),
    *(f"{name}_persistent" for name in _EVERY),
    *POINT_TO_POINT,
    "init",
)


@dataclass(frozen=True)
class Program:
    """One program. ``form`` is ``call`` (blocking), ``start`` (non-blocking), ``plan`` (persistent), ``init``, or the
    name of a program between pairs of ranks; ``collective`` is empty for ``init`` and for these."""

    name: str
    form: str
    collective: str = ""

    @property
    def title(self) -> str:
        """The title in the first line of a table."""
        if self.form == "init":
            return "MPI Init"
        if self.pairs:
            return POINT_TO_POINT[self.form]
        kind = {"call": "", "start": "Non-blocking ", "plan": "Persistent "}[self.form]
        return f"MPI {kind}{self.collective.capitalize()} Latency"

    @property
    def pairs(self) -> bool:
        """Whether pairs of ranks exchange messages."""
        return self.form in POINT_TO_POINT

    @property
    def many_pairs(self) -> bool:
        """Whether there may be more than one pair."""
        return self.form in ("multi_lat", "mbw_mr")

    @property
    def streams(self) -> bool:
        """Whether many messages of a pair are under way at a time, so that a bandwidth is measured."""
        return self.form in ("bw", "bibw", "mbw_mr")

    @property
    def ours(self) -> bool:
        """Whether this library has algorithms for the collective."""
        return bool(self.collective)

    @property
    def exchanges(self) -> bool:
        """Whether ranks exchange blocks with some of the others."""
        return self.collective in EXCHANGES

    @property
    def on_a_graph(self) -> bool:
        """Whether the collective is one of neighbours."""
        return self.collective.startswith("neighbor_")

    @property
    def rooted(self) -> bool:
        """Whether the collective has a root."""
        return self.ours and registry.spec(self.collective).rooted

    @property
    def in_place(self) -> bool:
        """Whether the collective has an in-place form."""
        return self.collective in COLLECTIVES and self.collective not in ("barrier", "bcast")

    @property
    def sized(self) -> bool:
        """Whether messages have a size; False for the barrier and for ``init``."""
        return self.collective != "barrier" and self.form != "init"


def messages_of(collective: str, size: int) -> int:
    """How many messages, in the sense of OSU's tables, make up the vector: all ranks' blocks, or the vector itself."""
    about = registry.spec(collective)
    return size if about.blockwise and not about.reduces else 1


def find(name: str) -> Program:
    """The program ``name``; ValueError unless it is one of NAMES."""
    if name in POINT_TO_POINT or name == "init":
        return Program(name, name)
    if name in _EVERY:
        return Program(name, "call", name)
    if name in NAMES and name.endswith("_persistent"):
        return Program(name, "plan", name.removesuffix("_persistent"))
    if name in NAMES:
        return Program(name, "start", name[1:])
    raise ValueError(f"no benchmark {name!r}; there are: {', '.join(NAMES)}")
