"""The benchmark programs, by name. Imports without MPI."""

from __future__ import annotations

from dataclasses import dataclass

from ..schedules import registry

__all__ = ["NAMES", "POINT_TO_POINT", "Program", "find", "messages_of"]

COLLECTIVES = registry.NAMES
POINT_TO_POINT = ("latency", "bw")

NAMES = (
    *COLLECTIVES,
    *(f"i{name}" for name in COLLECTIVES),
    *(f"{name}_persistent" for name in COLLECTIVES),
    *POINT_TO_POINT,
)


@dataclass(frozen=True)
class Program:
    """One program. ``form`` is ``call`` (blocking), ``start`` (non-blocking), ``plan`` (persistent), ``latency`` or
    ``bw``; ``collective`` is empty for ``latency`` and ``bw``."""

    name: str
    form: str
    collective: str = ""

    @property
    def title(self) -> str:
        """The title in the first line of a table."""
        if not self.collective:
            return {"latency": "MPI Latency", "bw": "MPI Bandwidth"}[self.form]
        kind = {"call": "", "start": "Non-blocking ", "plan": "Persistent "}[self.form]
        return f"MPI {kind}{self.collective.capitalize()} Latency"

    @property
    def rooted(self) -> bool:
        """Whether the collective has a root."""
        return bool(self.collective) and registry.spec(self.collective).rooted

    @property
    def sized(self) -> bool:
        """Whether messages have a size; False for the barrier."""
        return self.collective != "barrier"


def messages_of(collective: str, size: int) -> int:
    """How many messages, in the sense of OSU's tables, make up the vector: all ranks' blocks, or the vector itself."""
    about = registry.spec(collective)
    return size if about.blockwise and not about.reduces else 1


def find(name: str) -> Program:
    """The program ``name``; ValueError unless it is one of NAMES."""
    if name in POINT_TO_POINT:
        return Program(name, name)
    if name in COLLECTIVES:
        return Program(name, "call", name)
    if name in NAMES and name.endswith("_persistent"):
        return Program(name, "plan", name.removesuffix("_persistent"))
    if name in NAMES:
        return Program(name, "start", name[1:])
    raise ValueError(f"no benchmark {name!r}; there are: {', '.join(NAMES)}")
