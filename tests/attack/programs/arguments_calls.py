"""One case of `arguments.py` on all ranks: what every rank hands over, and who raises."""

from dataclasses import dataclass, replace

from arguments_kinds import KINDS, Maker
from arguments_model import ERRORS, parse
from mpi4py import MPI

from collectives.arguments.calls import COLLECTIVES

SIZE = MPI.COMM_WORLD.size
ROOT = SIZE - 1
#: Kinds whose elements are bytes of doubles: the sums do not fit, and some MPIs saturate where others wrap.
OF_BYTES = ("bytes", "bytearray", "memoryview", "mpi4py-buffer", "as-bytes")


@dataclass(frozen=True)
class Case:
    """One call: ``side`` ("send" or "recv") is of a kind, the other is an ordinary array that fits."""

    collective: str
    form: str
    keywords: str
    side: str
    kind: str
    n: int

    @property
    def about(self):
        """The collective's line in the table."""
        return COLLECTIVES[self.collective]


class Side:
    """A side of a call on one rank: its specification, and what mpi4py reads in it, or the error."""

    def __init__(self, maker, spec, writable):
        self.maker, self.spec, self.parsed, self.error = maker, spec, None, None
        self.nothing = spec is None or spec is MPI.IN_PLACE
        try:
            self.parsed = parse(spec, writable, maker.blocks, maker.vector)
        except ERRORS as e:
            self.error = e

    @property
    def counts(self):
        """Elements of each block; those of an ordinary array where mpi4py would raise."""
        if self.parsed is None or not self.parsed.inside():
            return [self.maker.n // self.maker.blocks] * self.maker.blocks
        return self.parsed.counts


def roles(case, rank):
    """Blocks that a rank sends and receives, None for a side that it does not have."""
    base, root = case.about.base, rank == ROOT
    one, all_ = 1, SIZE
    return {
        "bcast": (one if root else None, None if root else one),
        "gather": (one, all_ if root else None), "allgather": (one, all_),
        "scatter": (all_ if root else None, one), "alltoall": (all_, all_),
        "reduce": (one, one if root else None),
        "reduce_scatter": (one if case.about.vector else all_, one),
    }.get(base, (one, one))  # fmt: skip


def may_stand_aside(case, rank, side):
    """Whether MPI.IN_PLACE or None have a meaning there."""
    base = case.about.base
    if base == "bcast":
        return False
    if base in ("gather", "scatter", "reduce") and rank != ROOT:
        return False
    return side == ("recv" if base == "scatter" else "send")


class Calls:
    """A case on all ranks."""

    def __init__(self, case):
        self.case = case
        other = "recv" if case.side == "send" else "send"
        varied = [self._varied(rank) for rank in range(SIZE)]
        fitting = [self._fitting(rank, other, varied) for rank in range(SIZE)]
        self.sides = [
            {case.side: mine, other: fits} for mine, fits in zip(varied, fitting, strict=True)
        ]  # fmt: skip
        self.recvcounts = self._recvcounts(varied) if case.collective == "reduce_scatter" else None
        self.errors = [self._error(rank) for rank in range(SIZE)]
        self.outside = [self._is_outside(sides) for sides in self.sides]

    def _is_outside(self, sides):
        """Whether the call would read or write beyond a buffer; in place, this one reads as many blocks as ranks."""
        if self.case.collective == "reduce_scatter_block" and sides["send"].nothing and sides["recv"].parsed:
            recv = sides["recv"].parsed
            return not replace(recv, counts=[recv.elements * SIZE]).inside()
        return any(side is not None and side.parsed is not None and not side.parsed.inside() for side in sides.values())

    def _maker(self, rank, side, n):
        blocks = roles(self.case, rank)[side == "recv"]
        vector = self.case.about.vector and not self.case.about.reduces and blocks == SIZE and self._is_whole(side)
        return None if blocks is None else Maker(n, blocks, vector, rank, side == "send")

    def _is_whole(self, side):
        base = self.case.about.base
        return base == "alltoall" or (base == "scatter") == (side == "send")

    def _varied(self, rank):
        maker = self._maker(rank, self.case.side, self.case.n)
        return None if maker is None else Side(maker, KINDS[self.case.kind](maker), self.case.side == "recv")

    def _fitting(self, rank, side, varied):
        """The other side, as the varied ones of all ranks want it."""
        maker = self._maker(rank, side, 0)
        if maker is None:
            return None
        there = [one for one in varied if one is not None]
        own = varied[rank] or (there[0] if there else None)
        datatype, counts = MPI.DOUBLE, [self.case.n // maker.blocks] * maker.blocks
        if own is not None and own.parsed is not None:
            datatype, counts = own.parsed.datatype, self._fitting_counts(rank, side, varied, own)
        if own is not None and own.nothing and may_stand_aside(self.case, rank, self.case.side):
            counts = [self.case.n // maker.blocks] * maker.blocks
        maker.n = sum(counts)
        if datatype in (MPI.DOUBLE, MPI.C_BOOL):  # what is neither true nor false has no logical or
            memory = maker.array("f8" if datatype == MPI.DOUBLE else "?")
        else:
            memory = maker.array("u1", maker.n * max(0, _extent(datatype)))
        spec = [memory, counts if maker.vector else counts[0], datatype]
        return Side(maker, spec, side == "recv")

    def _fitting_counts(self, rank, side, varied, own):
        base = self.case.about.base
        if base in ("gather", "allgather", "scatter"):
            whole = (base == "scatter") == (side == "send")
            return [one.counts[0] for one in varied] if whole else [own.counts[rank]]
        if base == "alltoall":
            return [one.counts[rank] for one in varied]
        if self.case.collective == "reduce_scatter_block":
            return own.counts * SIZE if side == "send" else own.counts[:1]
        if base == "reduce_scatter":
            total = own.counts[0]
            if side == "send":
                return [sum(one.counts[0] for one in varied)]
            return [total // SIZE + (rank < total % SIZE)]
        return own.counts

    def _recvcounts(self, varied):
        if self.case.side == "recv":
            return [one.counts[0] for one in varied]
        total = varied[0].counts[0] if varied[0] is not None else self.case.n
        if varied[0] is not None and varied[0].nothing:
            total = self.case.n
        return [total // SIZE + (rank < total % SIZE) for rank in range(SIZE)]

    def _error(self, rank):
        """What a rank raises before anything is sent."""
        sides = dict(self.sides[rank])
        for name, side in sides.items():
            if side is None or (side.nothing and may_stand_aside(self.case, rank, name)):
                sides[name] = None
            elif side.error is not None:
                return side.error
        send, recv = sides["send"], sides["recv"]
        if not self.case.about.reduces or recv is None:
            return None
        if self.case.collective == "reduce_scatter":
            if send is None and recv.parsed.elements != sum(self.recvcounts):
                return ValueError("counts")
            return None
        if send is not None and send.parsed.datatype != recv.parsed.datatype:
            return ValueError("types")
        return None

    def arguments(self, rank):
        """What a rank passes to the method, without the names of mpi4py's parameters."""
        send, recv = (
            None if side is None else side.spec for side in (self.sides[rank]["send"], self.sides[rank]["recv"])
        )
        found = {
            "sendbuf": send,
            "recvbuf": recv,
            "root": ROOT,
            "op": MPI.LOR if self.case.kind == "type-?" else MPI.MAX if self.case.kind in OF_BYTES else MPI.SUM,
            "recvcounts": self.recvcounts,
        }
        if self.case.collective == "bcast":
            found["buf"] = send if rank == ROOT else recv
        return {name: found[name] for name in self.case.about.takes}

    def overlaps(self, rank):
        """Whether blocks that a rank receives share elements."""
        recv = self.sides[rank]["recv"]
        return recv is not None and recv.parsed is not None and recv.parsed.overlaps()

    def peek(self, rank):
        """All memory that a rank's call could have written."""
        return [side.maker.peek() for side in self.sides[rank].values() if side is not None]


def _extent(datatype):
    return datatype.Get_extent()[1] if datatype != MPI.DATATYPE_NULL else 1
