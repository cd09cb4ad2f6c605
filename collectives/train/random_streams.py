"""Random numbers that depend on a seed, a rank and a purpose, and on nothing else."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from .agree import communicator
from .loading import fields


def _sequence(seed: int, purpose: str, comm: Any, mesh: Any) -> tuple[int, int, np.random.SeedSequence]:
    """The rank and the stage that `comm` or `mesh` stands for, and the seed sequence of their stream.

    Raises TypeError or ValueError.
    """
    if not isinstance(purpose, str):
        raise TypeError(f"purpose must be a string, not {type(purpose).__name__}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, not {seed}")
    if mesh is None:
        rank, stage = comm if isinstance(comm, int) else int(communicator(comm).rank), 0
    elif comm is None:
        rank, stage = int(mesh.place["data"]), int(mesh.place["pipeline"])
    else:
        raise TypeError("a stream of random numbers takes comm or mesh, not both")
    if rank < 0:
        raise ValueError(f"a rank must not be negative, not {rank}")
    words = np.frombuffer(
        hashlib.sha256(purpose.encode()).digest(), "<u4"
    )  # 8 words: no two keys are put together alike
    place = (rank, stage) if stage else (rank,)  # so the first stage has the streams of ``comm=mesh.data``
    return rank, stage, np.random.SeedSequence(seed, spawn_key=(*(int(word) for word in words), *place))


class Random:
    """A stream of random numbers for one rank and one purpose: ``generator`` is a NumPy ``Generator`` (PCG64).

    Streams of different seeds, ranks or purposes are independent: their keys are spawn keys of a ``SeedSequence``
    (O'Neill 2015; NumPy's parallel random number generation). `purpose` is any string, such as "dropout". `comm` is
    the communicator whose rank the stream is for (default: the world), or the number of a rank. With the same number on
    all ranks, ``Random(seed, purpose, 0)``, all ranks draw the same numbers.

    `mesh`, in the place of `comm`, is the `Mesh` of a model of which ranks hold parts. Each data rank and each stage of
    a pipeline has a stream of its own then. Ranks that differ on the axes ``tensor`` and ``tasks`` only draw the same
    numbers: activations that are the same on a tensor axis need the same dropout.

    ``per_rank`` says whether the ranks' states differ: True unless `comm` is a number. Raises TypeError for a purpose
    that is no string and for both `comm` and `mesh`, ValueError for a negative seed or rank.
    """

    def __init__(self, seed: int, purpose: str, comm: Any = None, *, mesh: Any = None) -> None:
        self.seed, self.purpose, self.per_rank = int(seed), purpose, not isinstance(comm, int)
        self.rank, self.stage, sequence = _sequence(seed, purpose, comm, mesh)
        self.generator = np.random.Generator(np.random.PCG64(sequence))

    def __repr__(self) -> str:
        stage = f", stage={self.stage}" if self.stage else ""
        return f"Random(seed={self.seed}, purpose={self.purpose!r}, rank={self.rank}{stage})"

    def state_dict(self) -> dict[str, Any]:
        """The stream and its position, as plain values: numbers, and 128-bit numbers in hexadecimal."""
        state = self.generator.bit_generator.state
        words = {key: f"{state['state'][key]:x}" for key in ("state", "inc")}
        rest = {key: int(state[key]) for key in ("has_uint32", "uinteger")}
        return {"seed": self.seed, "purpose": self.purpose, **_place(self), **words, **rest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Raises ValueError, with nothing changed, if it is of another seed or purpose."""
        _same_stream(self, state)

        def word(text: str) -> int:
            return int(text, 16)

        *given, half, unused = fields("Random", state, state=word, inc=word, has_uint32=int, uinteger=int)
        words, rest = dict(zip(("state", "inc"), given, strict=True)), {"has_uint32": half, "uinteger": unused}
        self.generator.bit_generator.state = {"bit_generator": "PCG64", "state": words, **rest}


class TorchRandom:
    """torch's own random numbers on this rank (dropout, initial weights), seeded as a `Random` of the same arguments.

    Seeds the generators of torch for the whole process when it is made. ``state_dict`` has the state of the processor's
    generator. Ranks that are threads of one process share these generators, so they are not reproducible there. Raises
    ValueError unless torch has been imported; TypeError and ValueError as `Random`.
    """

    def __init__(self, seed: int, purpose: str = "torch", comm: Any = None, *, mesh: Any = None) -> None:
        self.seed, self.purpose, self.per_rank = int(seed), purpose, not isinstance(comm, int)
        self.rank, self.stage, sequence = _sequence(seed, purpose, comm, mesh)
        self._torch().manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))

    @staticmethod
    def _torch() -> Any:
        if "torch" not in sys.modules:
            raise ValueError("TorchRandom seeds torch, which this program has not imported")
        return sys.modules["torch"]

    def state_dict(self) -> dict[str, Any]:
        """The seed, the purpose, the rank and the stage, and the state of torch's generator as an array of bytes."""
        words = self._torch().get_rng_state().numpy().copy()
        return {"seed": self.seed, "purpose": self.purpose, **_place(self), "state": words}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of torch's generator. Raises ValueError if it is of another seed or purpose."""
        _same_stream(self, state)
        (words,) = fields("TorchRandom", state, state=lambda words: np.asarray(words, np.uint8))
        self._torch().set_rng_state(self._torch().tensor(words))


def _place(mine: Random | TorchRandom) -> dict[str, int]:
    """The rank and the stage of a stream, by which a run on another mesh finds its own."""
    return {"rank": mine.rank, "stage": mine.stage}


def _same_stream(mine: Random | TorchRandom, state: Mapping[str, Any]) -> None:
    saved = fields(type(mine).__name__, state, seed=lambda seed: seed, purpose=lambda purpose: purpose)
    for key, value in zip(("seed", "purpose"), saved, strict=True):
        if value != getattr(mine, key):
            raise ValueError(f"the saved stream has {key} = {value!r}, this one {getattr(mine, key)!r}")
