"""``Loader``: each rank's part of every global batch of a data set."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np

from ..agree import communicator
from ..counts import count
from .deals import Deal, Deals, OwnShards, Reader, Shuffled
from .identity import check_saved, gathered, same_everywhere
from .local import Local, Part
from .prefetch import Prefetch
from .sources import ArraySource, Rows, SampleSource, Source, source_of

SHARDS = ("shuffled", "strided", "sorted")
PLACEMENTS = ("shared", "local")
Batch = tuple[Any, ...]


class Loader:
    """This rank's part of every global batch of a data set.

    ``for x, y in loader`` yields, for the rest of the current epoch, this rank's samples of each step: an array of
    shape (samples of this rank, ...) for each part of a sample. `batch` is the number of samples of all ranks together;
    the last batch of an epoch has the samples that are left, or is left out with `drop_last`. All ranks have the same
    number of steps, ``len(loader)``. In a step some ranks may have no samples: their arrays have length 0.

    `dataset` is one of:

    * a tuple or list of arrays with the same number of rows, labels last: NumPy's, memory maps, torch tensors, or other
      objects with ``shape`` and ``dtype`` whose rows an array of row numbers reads;
    * the path of a ``.npy`` file, which is memory-mapped, or of a ``.npz`` file, which is read; also in a tuple;
    * an object with ``len(dataset)`` and ``dataset[i]``, such as a torch data set of the map style. A sample is a
      number, an array, a torch tensor, or a tuple of these. If it has a tensor, batches are of tensors, else of arrays.

    `shard` says which rank uses which samples (p is the number of ranks):

    * ``"shuffled"`` (default): all samples are shuffled together every epoch. A global batch has the same samples for
      any number of ranks.
    * ``"strided"``: rank r keeps samples r, r + p, r + 2p, ... and shuffles these.
    * ``"sorted"``: the samples are sorted by label, and rank r keeps the r-th part, so that each rank has only some of
      the labels. Only for arrays; the labels are read into memory.

    Ranks' parts of a batch differ by at most one sample. The order of the samples depends on `seed` (default 0) and on
    the epoch; with ``"strided"`` and ``"sorted"`` also on the rank. It is computed as it is needed, and takes no
    memory.

    `placement`: with ``"shared"`` (default) every rank is given the same data set. With ``"local"`` every rank is given
    one of its own, whose samples it alone uses. Their lengths may differ and may be 0. The parts of a batch are in
    proportion to these lengths, and every rank shuffles its samples every epoch.

    `prefetch`: a thread makes up to so many batches in advance (default 0: no thread). It ends when the iterator is
    closed, as ``break`` does.

    `check_content`: whether samples are compared where data sets are (default: True): 16 rows of arrays, or 3 samples
    of an object. Those of an object are not compared if they differ when they are read again; an object whose samples
    differ only now and then needs False.

    `comm` needs ``rank`` and ``size`` only (default: the world). If it has ``allgather``, too, making a loader is
    collective, and all ranks raise the same error if one has other settings or another data set; ``placement="local"``
    needs it.

    **Position.** ``state_dict`` has the position as ``epoch`` and ``position``, the number of samples of the epoch that
    all ranks together have used. A batch counts as used as soon as it is yielded. In another run, with any number of
    ranks and any batch, ``load_state_dict`` goes on from there. Every sample of the epoch is used exactly once then:

    * ``"shuffled"``: the order is the same for any number of ranks.
    * ``"strided"``, ``"sorted"``: the samples that are left of the epoch are dealt anew, in the order of the ranks that
      had them. So a rank of ``"sorted"`` still has only some of the labels. The next epochs are as described above.
    * ``placement="local"``: a rank goes on with the data set it has. In the middle of an epoch this must be one of
      those that were saved; ranks may be fewer or in another order. The samples of a rank that is gone are gone with
      it. Between epochs there may be any number of ranks with any data sets.

    Attributes: ``epoch``, from 0; ``position``; ``samples``, of all ranks; ``batch``; ``rank`` and ``size``.

    Raises ValueError for a data set without samples or with arrays of different length, a batch below 1 or, with
    `drop_last`, above the number of samples, an unknown shard or placement, a negative seed or prefetch; TypeError for
    what is no data set; OSError for a file that cannot be read. A sample that cannot be read is a `SampleError`, which
    names the sample, in the loop and in the constructor.
    """

    def __init__(
        self,
        dataset: Any,
        batch: int,
        *,
        seed: int = 0,
        comm: Any = None,
        shard: str = "shuffled",
        placement: str = "shared",
        drop_last: bool = False,
        prefetch: int = 0,
        check_content: bool = True,
    ) -> None:
        self.batch, self.seed, self.shard, self.placement = batch, seed, shard, placement
        self.drop_last, self.prefetch, self._check_content = drop_last, prefetch, check_content
        self._epoch = self._position = 0
        self._turn = object()  # of the latest iterator
        self._moves = 0  # how often the position was set from outside
        self._content: str | None = None
        comm = communicator(comm)
        self.rank, self.size = int(comm.rank), int(comm.size)

        def prepared() -> ArraySource | SampleSource:
            self._check_arguments(comm)
            source = source_of(dataset)
            self._content = source.content() if check_content else None
            return source

        self._source, every = gathered(comm, prepared, self._described)
        same_everywhere([one["settings"] for one in every])
        self._source.fields = next((fields for one in every if (fields := one["settings"]["fields"])), None)
        parts = [Part(one["rows"], one["content"], rank, 0) for rank, one in enumerate(every)]
        self._deals = self._made_deals(self._source, parts)
        self._deals.begin(self.size)
        self._check_length()

    def _check_arguments(self, comm: Any) -> None:
        self.batch = count("batch", self.batch)
        self.seed, self.prefetch = count("seed", self.seed, 0), count("prefetch", self.prefetch, 0)
        if self.shard not in SHARDS:
            raise ValueError(f"unknown shard {self.shard!r}; there are {', '.join(SHARDS)}")
        if self.placement not in PLACEMENTS:
            raise ValueError(f"unknown placement {self.placement!r}; there are {', '.join(PLACEMENTS)}")
        if self.placement == "local" and self.shard != "shuffled":
            raise ValueError(f"shard {self.shard!r} is for placement 'shared', not for 'local'")
        if self.placement == "local" and not hasattr(comm, "allgather"):
            raise TypeError("placement='local' needs a communicator with allgather")

    def _described(self, source: Source) -> dict[str, Any]:
        """What other ranks need to know: settings, equal on all ranks; rows and content of this rank's data set."""
        settings = {name: getattr(self, name) for name in ("batch", "seed", "shard", "placement", "drop_last")}
        settings["fields"] = source.fields
        if self.placement == "shared":
            settings |= {"samples": len(source), "content": self._content}
        return {"settings": settings, "rows": len(source), "content": self._content}

    def _made_deals(self, source: ArraySource | SampleSource, parts: list[Part]) -> Deals:
        if self.placement == "local":
            return Local(parts, self.seed)
        if self.shard == "shuffled":
            return Shuffled(len(source), self.seed)
        if self.shard == "strided":
            return OwnShards(len(source), self.seed, None)
        if not isinstance(source, ArraySource):
            raise TypeError("shard 'sorted' needs arrays, of which the last one has the labels")
        return OwnShards(len(source), self.seed, source.labels())

    def _check_length(self) -> None:
        if not self.samples:
            raise ValueError("a data set needs at least 1 sample, this one has 0")
        if not len(self):
            raise ValueError(f"with drop_last, {self.samples} samples make no batch of {self.batch}")

    @property
    def samples(self) -> int:
        """Samples of the data set; with ``placement="local"``, of all ranks."""
        return self._deals.samples

    @property
    def epoch(self) -> int:
        """The current epoch, from 0. It ends when the loop over its last batch ends."""
        return self._epoch

    @property
    def position(self) -> int:
        """The number of samples of the current epoch that all ranks together have used."""
        return self._position

    @property
    def step(self) -> int:
        """Steps of the current epoch that were made. After a change of `batch`, `step` counts so that what is left of
        ``len(loader)`` is right."""
        return len(self) - self._steps(self.samples - self._position)

    def __len__(self) -> int:
        """Steps per epoch, the same on all ranks."""
        return self._steps(self.samples)

    def _steps(self, samples: int) -> int:
        return samples // self.batch if self.drop_last else math.ceil(samples / self.batch)

    def indices(self, epoch: int) -> Rows:
        """The row numbers of the samples that this rank uses in `epoch`, in order, if these ranks begin the epoch."""
        deals = copy.copy(self._deals)
        deals.begin(self.size)
        deal = deals.deal(epoch, self.rank, self.size)
        last = len(self) * self.batch if self.drop_last else self.samples
        return deal.pick(np.arange(deal.dealt(last)))

    def __iter__(self) -> Generator[Batch, None, None]:
        """The batches that are left of the current epoch. After the last one, the position is that of the next epoch.

        The position is that of the loader: if it changes meanwhile, the iterator goes on from there. Of several
        iterators of a loader only the latest goes on; the others raise RuntimeError.
        """
        self._turn = turn = object()
        return self._batches(turn)

    def _batches(self, turn: object) -> Generator[Batch, None, None]:
        made: Iterator[tuple[int, Batch]] | None = None
        moves = self._moves
        try:
            while True:
                if turn is not self._turn:
                    raise RuntimeError("a later iterator of this loader has begun; a loader has one position only")
                if made is None or moves != self._moves or (isinstance(made, Prefetch) and made.lost):
                    _close(made)
                    made, moves = self._from_here(), self._moves
                item = next(made, None)
                if item is None:
                    break
                self._position, batch = item
                yield batch
        finally:
            _close(made)
        self._epoch, self._position = self._epoch + 1, 0
        self._deals.begin(self.size)

    @property
    def serves_any(self) -> bool:
        """Whether any rank may use any sample, so that `on_demand` can deal them."""
        return self.placement == "shared" and self.shard == "shuffled"

    def on_demand(self, steps: float, take: Callable[[object], int]) -> Generator[Batch, None, None]:
        """Parts of the next `steps` batches, as many as this rank has time for; fewer steps at the end of the epoch.

        A part has a p-th of the samples of a batch, rounded up, p being the number of ranks. ``take(series)`` gives the
        number of this rank's next part, from 0; `series` is an object of this loop alone, which tells apart the numbers
        that are taken for such loops. No rank gets a number twice, and each number of a series goes to one rank. All
        ranks call this with the same `steps` at the same position, which counts parts that were taken meanwhile, and is
        the same for all at the end. There is no `prefetch`. ValueError unless ``serves_any``, and for less than 1 step.
        """
        if not self.serves_any:
            raise ValueError("samples that belong to ranks cannot be dealt on demand")
        if not steps >= 1:
            raise ValueError(f"steps: expected at least 1, not {steps}")
        start, part = self._position, math.ceil(self.batch / self.size)
        most = start + self._steps(self.samples - start) * self.batch if self.drop_last else self.samples
        stop = int(min(start + steps * self.batch, most))
        whole = self._deals.deal(self._epoch, 0, 1)
        series = object()
        while (low := start + part * take(series)) < stop:
            self._position = high = min(low + part, stop)
            yield self._source.read(whole.pick(np.arange(low, high)))
        self._position = stop
        if stop == most:
            self._epoch, self._position = self._epoch + 1, 0
            self._deals.begin(self.size)

    def meet(self, comm: Any) -> None:
        """Go on from the latest position of the ranks of `comm`, which left `on_demand` before its end. Collective.

        What lies before that position has been dealt.
        """
        self._epoch, self._position = max(comm.allgather((self._epoch, self._position)))

    def _from_here(self) -> Iterator[tuple[int, Batch]]:
        """The batches from the current position to the end of the epoch, each with the position after it."""
        deal = self._deals.deal(self._epoch, self.rank, self.size)
        stop = self._position + self._steps(self.samples - self._position) * self.batch
        items = _made(self._source, deal, self._position, min(stop, self.samples), self.batch)
        return Prefetch(items, self.prefetch) if self.prefetch else items

    def state_dict(self) -> dict[str, Any]:
        """The position, and for what data set and which settings it is valid; the same on all ranks, plain values."""
        return {"epoch": self._epoch, "position": self._position, **self._identity(), **self._deals.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. The number of ranks and `batch` may differ, see `Loader`.

        Raises ValueError, before anything is changed and on all ranks alike, for another seed, shard or placement, and
        for a data set that has changed in length, in type or shape of its samples, or in the content of a few of them.
        """
        check_saved(state, self.state_dict())
        position = state["position"]
        if self.placement == "shared" and position > self.samples:
            raise ValueError(f"the saved position {position} is beyond the {self.samples} samples")
        self._position = self._deals.load_state_dict(state, self.size, position)
        self._epoch = state["epoch"]
        self._moves += 1

    def redeal(self, comm: Any) -> None:
        """Go on from the same position with another communicator, as after the loss of ranks; see `Loader`.

        Collective over `comm`, if it has ``allgather``. If the ranks are at different positions then, all go to the
        earliest of them: in the step after it, not every rank had its batch. States of this loader from before, with
        the old ranks, can be loaded afterwards. After an error on some ranks it can be called again, with the same
        ranks or fewer. Raises TypeError for ``"local"`` without ``allgather``, ValueError if the samples that are left
        make no batch.
        """
        if self.placement == "local" and not hasattr(comm, "allgather"):
            raise TypeError("placement='local' needs a communicator with allgather")
        local = self._deals if isinstance(self._deals, Local) else None
        mine = (None if local is None else local.parts[self.rank], self.state_dict())
        every: list[Any] = comm.allgather(mine) if hasattr(comm, "allgather") else [mine]
        if local is not None:
            local.move([part for part, _ in every])
        self.rank, self.size = int(comm.rank), int(comm.size)
        # Of local samples, a position counts those of the ranks that the state has. The fewest had met last.
        self.load_state_dict(min((state for _, state in every), key=_progress))
        self._check_length()

    def _identity(self) -> dict[str, Any]:
        same = {"seed": self.seed, "shard": self.shard, "placement": self.placement, "fields": self._source.fields}
        if self.placement == "shared":
            same |= {"samples": self.samples, "content": self._content}
        return same


def _made(source: Source, deal: Deal, start: int, stop: int, batch: int) -> Iterator[tuple[int, Batch]]:
    """This rank's parts of the batches of samples `start` to `stop` of an epoch, each with the position after it."""
    reader = Reader(deal, stop)
    while start < stop:
        end = min(start + batch, stop)
        yield end, source.read(reader.rows(start, end))
        start = end


def _progress(state: Mapping[str, Any]) -> tuple[int, int, int]:
    """What is less in the state from which all ranks go on."""
    return len(state.get("parts", ())), state["epoch"], state["position"]


def _close(made: Iterator[Any] | None) -> None:
    if isinstance(made, Prefetch):
        made.close()


def left_to(comm: Any, data: Loader) -> None:
    """Deal the samples of `data` to the ranks of `comm`, if they are dealt to more ranks. Collective over `comm`.

    ValueError if the other ranks have samples of their own.
    """
    if data.size == comm.size:
        return
    samples = data.samples
    data.redeal(comm)
    if data.samples != samples:
        raise ValueError(f"{samples - data.samples} samples are on ranks that serve and do not train")
