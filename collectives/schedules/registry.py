"""The table of algorithms: by name, each with what it promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .schedule import Ints, Round, Rounds
from .spec import SPECS, Spec

__all__ = [
    "EXCHANGES", "NAMES", "PRIVATE_LENGTHS", "UNEVEN", "Algorithm", "NativeAlgorithm", "ScheduleAlgorithm",
    "algorithms", "base", "collectives", "find", "register", "register_native", "rules", "spec",
]  # fmt: skip

#: Collectives that use the algorithms of another one, and its name.
_VARIANTS = {
    "allgatherv": "allgather", "alltoallv": "alltoall", "gatherv": "gather", "scatterv": "scatter",
    "reduce_scatter_block": "reduce_scatter",
}  # fmt: skip
#: Collectives in which ranks exchange blocks with some of the others: all-to-alls, most of whose blocks may be empty.
EXCHANGES = (
    "alltoallw", "neighbor_allgather", "neighbor_allgatherv", "neighbor_alltoall", "neighbor_alltoallv",
    "neighbor_alltoallw",
)  # fmt: skip
#: All other collectives.
NAMES = tuple(sorted((*SPECS, *_VARIANTS)))
#: Collectives that allow blocks of different lengths.
UNEVEN = frozenset({"reduce_scatter", "allgatherv", "alltoallv", "gatherv", "scatterv"})
#: Those of UNEVEN whose ranks know only some of the lengths.
PRIVATE_LENGTHS = frozenset({"alltoallv", "gatherv", "scatterv"})
#: Scratch memory, in vectors, that is assumed for an algorithm that promises none.
UNPROMISED = 4.0


@dataclass(frozen=True)
class Algorithm:
    """Properties that every algorithm declares.

    ``ordered``: operands are folded in rank order, so that non-commutative ops are allowed. ``linear``: every element
    is folded ``((x0 op x1) op x2) ...``, wherever it is in the vector (required by deterministic mode). Both are True
    where nothing is folded. ``uneven``: the blocks of the ranks may differ in length.
    """

    collective: str
    name: str
    summary: str
    ordered: bool
    linear: bool
    uneven: bool

    @property
    def spec(self) -> Spec:
        """What ranks hold before the collective, and what they must hold at the end."""
        return SPECS[self.collective]


@dataclass(frozen=True)
class ScheduleAlgorithm(Algorithm):
    """A generator of rounds (see :mod:`collectives.schedules.schedule`), proved by :mod:`collectives.analysis.verify`.

    ``blocks(p)`` is the number of blocks of the vector. ``rounds(p)`` is the length of the longest chain, over all
    ranks, of rounds with messages that follow each other. ``sent(p)`` is the number of blocks that the busiest rank
    sends. ``memory(p)`` is the most blocks that a rank needs for scratch vectors and for staging arrivals that it
    reduces (a plan stages two rounds); None promises nothing. These three are promises, which verification counts
    again. In rooted collectives they take ``root`` as well, 0 by default.

    ``divisible(p)``: whether segments can cut the vector. In blockwise collectives segments cut each block, which is
    impossible if a step has several blocks. ``order``: the name of the order of ranks, in
    :data:`collectives.schedules.placement.ORDERS`, in which least of its messages leave a host.
    """

    generator: Rounds
    blocks: Callable[[int], int]
    rounds: Callable[..., int]
    sent: Callable[..., int]
    memory: Callable[..., int] | None
    divisible: Callable[[int], bool]
    order: str = ""

    def rounds_of(self, rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
        """The rounds of one rank, or of an array of ranks; ``root`` is ignored in collectives without a root."""
        return self.generator(rank, size, **self._root(root))

    def promise(self, size: int, root: int = 0) -> tuple[int, int]:
        """Rounds, and the number of blocks that the busiest rank sends."""
        return self.rounds(size, **self._root(root)), self.sent(size, **self._root(root))

    def vectors(self, size: int, root: int = 0) -> float:
        """Scratch and staging memory of one segment, in vectors, on the rank that needs most."""
        blocks = self.promised_memory(size, root)
        return UNPROMISED if blocks is None else blocks / self.blocks(size)

    def promised_memory(self, size: int, root: int = 0) -> int | None:
        """Scratch and staging memory, in blocks, on the rank that needs most; None if nothing is promised."""
        return None if self.memory is None else self.memory(size, **self._root(root))

    def _root(self, root: int) -> dict[str, int]:
        return {"root": root} if self.spec.rooted else {}


@dataclass(frozen=True)
class NativeAlgorithm(Algorithm):
    """An algorithm that is not a schedule: the MPI library's own, the node-local engine, or both engines together."""


_table: dict[tuple[str, str], Algorithm] = {}


def _add(algorithm: Algorithm) -> None:
    key = algorithm.collective, algorithm.name
    if key in _table:
        raise ValueError(f"{algorithm.collective} has an algorithm named {algorithm.name!r} already")
    _table[key] = algorithm


def register(
    collective: str,
    name: str,
    generator: Rounds | Callable[..., Iterator[Round]],
    *,
    blocks: Callable[[int], int],
    rounds: Callable[..., int],
    sent: Callable[..., int],
    memory: Callable[..., int] | None = None,
    divisible: Callable[[int], bool] | None = None,
    ordered: bool = False,
    linear: bool = False,
    uneven: bool = True,
    doc: str | None = None,
    order: str = "",
) -> ScheduleAlgorithm:
    """Add a schedule algorithm to the table.

    ``generator(rank, size)``, with ``root`` if the collective has one, yields the rounds of a rank. The other arguments
    say what :class:`ScheduleAlgorithm` and :class:`Algorithm` tell of it: ``blocks``, ``rounds``, ``sent`` and
    ``memory`` count blocks and rounds on ``size`` ranks. The summary is the first line of ``doc`` (default: the
    docstring of ``generator``). By default segments may cut blocks (``divisible``) unless the collective is blockwise,
    the ranks' blocks may differ in length (``uneven``), and positions are ranks (``order``). ValueError if the name is
    taken or the collective unknown; the variants (``"allgatherv"``) take the algorithms of the plain collective.
    """
    generator = generator if isinstance(generator, Rounds) else Rounds(generator)
    summary = (doc or generator.__doc__ or "").strip().split("\n")[0]
    if collective not in SPECS:
        raise ValueError(f"collective: {collective!r} is none of {', '.join(SPECS)}")
    about = SPECS[collective]
    if not about.reduces:
        ordered = linear = True
    algorithm = ScheduleAlgorithm(
        collective, name, summary, ordered, linear, uneven, generator, blocks, rounds, sent, memory,
        divisible or (lambda p: not about.blockwise), order,
    )  # fmt: skip
    _add(algorithm)
    return algorithm


def register_native(
    collective: str, name: str, summary: str, *, ordered: bool, linear: bool, uneven: bool = True
) -> NativeAlgorithm:  # fmt: skip
    """Add an algorithm that is not a schedule to the table; ValueError if the name is taken."""
    algorithm = NativeAlgorithm(collective, name, summary, ordered, linear, uneven)
    _add(algorithm)
    return algorithm


def base(collective: str) -> str:
    """The collective whose algorithms serve a call: ``"allgather"`` for ``"allgatherv"``."""
    return "alltoall" if collective in EXCHANGES else _VARIANTS.get(collective, collective)


def rules(collective: str) -> str:
    """The collective by whose rules the algorithm of a call is chosen: ``"alltoallv"`` for all exchanges."""
    return "alltoallv" if collective in EXCHANGES else collective


def spec(collective: str) -> Spec:
    """What ranks hold before and after a collective, a variant included; KeyError for an unknown one."""
    return SPECS[base(collective)]


def algorithms(collective: str) -> list[str]:
    """Names of the algorithms for ``collective``, e.g. ``"allreduce"``; ValueError for an unknown collective."""
    owner = base(collective)
    even = collective not in UNEVEN and collective not in EXCHANGES
    names = [name for (kind, name), a in _table.items() if kind == owner and (a.uneven or even)]
    if not names:
        known = ", ".join(sorted({kind for kind, _ in _table} | _VARIANTS.keys() | set(EXCHANGES)))
        raise ValueError(f"unknown collective {collective!r}; known: {known}")
    return names


def find(collective: str, name: str) -> Algorithm:
    """The algorithm ``name`` of ``collective``; ValueError, which lists the known names, if there is none."""
    known = algorithms(collective)
    if name not in known:
        other = _table.get((base(collective), name))
        what = f"no algorithm {name!r}" if other is None else f"no use for {name!r}, whose blocks are of one length"
        raise ValueError(f"{collective} has {what}; known: {', '.join(known)}")
    return _table[base(collective), name]


def collectives() -> list[str]:
    """Names of the collectives that have algorithms of their own, sorted."""
    return sorted({kind for kind, _ in _table})
