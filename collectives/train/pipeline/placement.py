"""Which rank has which stage, and which micro-batches."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from .instructions import Instruction, Kind

__all__ = ["Placement"]


class Placement:
    """The stages of `ranks` ranks, seen by `rank`: `replicas[s]` ranks, one after the other, have copies of stage s.

    By default each rank has a stage of its own. Replica r of a stage works on the micro-batches r, r + replicas[s],
    and so on (Narayanan et al., SOSP 2019, section 3.2: round-robin). ``stages`` is the number of stages, ``stage``
    and ``replica`` are this rank's. Virtual stage v is a chunk of stage v mod ``stages``.

    Raises TypeError unless `replicas` are integers, ValueError unless they are at least 1 and their sum is `ranks`.
    """

    def __init__(self, rank: int, ranks: int, replicas: Sequence[Any] | None = None) -> None:
        try:
            self.replicas = (1,) * ranks if replicas is None else tuple(operator.index(count) for count in replicas)
        except TypeError:
            raise TypeError(f"replicas are the numbers of ranks of each stage, not {replicas!r}") from None
        if min(self.replicas, default=0) < 1 or sum(self.replicas) != ranks:
            raise ValueError(f"replicas {list(self.replicas)} are no {ranks} ranks, at least 1 for each stage")
        self.stages = len(self.replicas)
        self._first = [0, *accumulate(self.replicas)]
        self._stage_of = [stage for stage, count in enumerate(self.replicas) for _ in range(count)]
        self.stage = self._stage_of[rank]
        self.replica = rank - self._first[self.stage]

    def __str__(self) -> str:
        """What this rank is: ``stage 1``, or with several ranks ``stage 1 (replica 0)``."""
        return f"stage {self.stage}" + (f" (replica {self.replica})" if self.replicas[self.stage] > 1 else "")

    def rank(self, virtual: int, micro_batch: int) -> int:
        """The rank that works on a micro-batch in a virtual stage."""
        stage = virtual % self.stages
        return self._first[stage] + micro_batch % self.replicas[stage]

    def ranks(self, virtual: int) -> range:
        """The ranks that have a virtual stage."""
        stage = virtual % self.stages
        return range(self._first[stage], self._first[stage + 1])

    def stage_of(self, rank: int) -> int:
        """The stage of a rank."""
        return self._stage_of[rank]

    def virtual(self, chunk: int) -> int:
        """The virtual stage of a chunk of this rank."""
        return chunk * self.stages + self.stage

    def has(self, virtual: int) -> bool:
        """Whether this rank has a virtual stage."""
        return virtual % self.stages == self.stage

    def chunk(self, virtual: int) -> int:
        """The number of a virtual stage among the chunks of its stage."""
        return virtual // self.stages

    def own(self, program: Iterable[Instruction]) -> list[Instruction]:
        """This rank's part of the program of its stage: all steps, and what is for its micro-batches.

        If the program of all stages ends, so do those of all ranks: at every moment the ranks of a stage may do what
        the stage would do, and nothing more is asked of them.
        """
        count = self.replicas[self.stage]
        return [i for i in program if i.kind is Kind.STEP or i.micro_batch % count == self.replica]
