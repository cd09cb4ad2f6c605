"""Tables of rows that are read and changed by key, such as the embedding of a large vocabulary.

A server has the rows whose keys leave the same remainder, so that keys in demand spread over all servers. Workers hold
only rows that they ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..checkpoint import Shard as Leaf
from ..counts import count, real
from ..flat.memory import is_narrow, own, squares
from ..loading import fields
from ..models.nn import Array, Parameter
from ..optim.base import Optimizer
from ..optim.sgd import SGD
from .messages import CHUNK

if TYPE_CHECKING:
    from .client import Client

Keys = NDArray[np.int64]
Maker = Callable[[list[Parameter]], Optimizer]

DRAWN = 1 << 14  # rows whose initial values come from one generator


class Table:
    """A table of `rows` rows of `width` elements on the servers of a strategy; a row's key is its number, from 0.

    * `optimizer`: makes an optimizer of this package for a list of parameters, for example ``functools.partial(
      train.Adam, lr=1e-3)``; default: SGD with a rate of 0.01. It changes only the rows that have a gradient, and its
      state of other rows stays as it is (lazily, as torch's SparseAdam).
    * `scale`: initial values are normally distributed with this standard deviation (default 0: zeros), the same for
      any number of servers. They depend on `seed`.

    A worker calls `pull` before and `push` after its backward pass; ``opt.step()`` then ends the clock for rows as for
    other parameters. With micro-batches it does so for each of them, and the gradient of the step is the mean over all
    their samples (see ``Strategy.no_sync``). ``opt.zero_grad()`` drops what was pushed and no step has used. In a
    ``Run`` the table may be one of the objects of ``state``: each worker then reads and saves its part of the rows, so
    that part must fit into its memory.

    Raises ValueError for a length below 1, a negative `seed`, a `scale` that is negative or infinite and a `dtype` of
    16 bits; TypeError for a `dtype` that is no floating type. `distribute` raises TypeError for an `optimizer` that
    makes another one.
    """

    def __init__(
        self, rows: int, width: int, *, dtype: DTypeLike = np.float32, optimizer: Maker | None = None,
        scale: float = 0.0, seed: int = 0,
    ) -> None:  # fmt: skip
        if not 0 <= real("scale", scale) < math.inf:
            raise ValueError(f"scale must be finite and not negative, not {scale}")
        self.rows, self.width, self.dtype = count("rows", rows), count("width", width), np.dtype(dtype)
        if self.dtype.kind != "f":
            raise TypeError(f"dtype must be a floating type, not {self.dtype}")
        if is_narrow(self.dtype):
            raise ValueError(f"dtype must have 32 bits or more, in which servers make their updates, not {self.dtype}")
        self.optimizer: Maker = optimizer or (lambda parameters: SGD(parameters, 0.01))
        self.scale, self.seed = scale, count("seed", seed, 0)
        self._client: Client | None = None
        self._number = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * self.dtype.itemsize

    def check(self, name: str) -> None:
        """Raise TypeError, which has the `name` of this table, unless its optimizer is one of this package."""
        made = self._trial()
        if not isinstance(made, Optimizer):
            raise TypeError(f"the optimizer of table {name!r} makes {made!r}, no optimizer of this package")

    def _trial(self) -> Optimizer:
        """The optimizer for a table of one row."""
        return self.optimizer([Parameter(np.zeros((1, self.width), self.dtype), "row")])

    def attach(self, client: Client, number: int) -> None:
        """Serve this worker, as table `number` of its servers."""
        self._client, self._number = client, number

    def describe(self) -> tuple[Any, ...]:
        """What must be equal on all ranks."""
        return self.rows, self.width, self.dtype.str, self.scale, self.seed

    def pull(self, keys: Any) -> Array:
        """The rows of `keys`, integers of any shape, as a new array of shape (*keys.shape, width).

        IndexError for a key that is no row, RuntimeError on a rank that does not train, and when the servers have left.
        """
        wanted = self._checked(keys)
        return self._read(wanted.reshape(-1), 0).reshape(*wanted.shape, self.width)

    def push(self, keys: Any, gradients: Any) -> None:
        """Push the gradients of the rows of `keys`, of shape (*keys.shape, width); those of equal keys are added up.

        They are of the mean loss over this worker's samples of the last backward pass, as those of the network. Raises
        as `pull`, ValueError for another shape, FloatingPointError for gradients that are not finite, and RuntimeError
        if there was no pass since the last step.
        """
        wanted, given = self._checked(keys), np.asarray(gradients, self.dtype)
        if given.shape != (*wanted.shape, self.width):
            raise ValueError(
                f"gradients of shape {given.shape} for keys of shape {wanted.shape} and rows of {self.width}"
            )
        client = self._connected
        if client.samples and not math.isfinite(squares(given.reshape(-1))):  # the mean over no samples may be NaN
            raise FloatingPointError(f"rank {client.place} pushes gradients of rows that are not finite")
        flat, given = wanted.reshape(-1), given.reshape(-1, self.width)
        for shard, at in self._cut(flat):
            client.push_rows(shard, self._number, flat[at], given[at])

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise RuntimeError(
                "this table is not on servers: give it to a strategy, and this rank must be one that trains"
            )
        return self._client

    def _checked(self, keys: Any) -> Keys:
        wanted = np.asarray(keys)
        if wanted.dtype.kind not in "iu":
            raise TypeError(f"keys are integers, not {wanted.dtype}")
        if wanted.size and not (0 <= wanted.min() and wanted.max() < self.rows):
            raise IndexError(f"keys from {wanted.min()} to {wanted.max()} of a table of {self.rows} rows")
        return wanted.astype(np.int64)

    def _cut(self, keys: Keys) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Servers, and the places in `keys` of keys for one message to them."""
        most = max(1, CHUNK // (8 + self.row_bytes))
        for shard in range(self._connected.servers):
            places = np.flatnonzero(keys % self._connected.servers == shard)
            for start in range(0, len(places), most):
                yield shard, places[start : start + most]

    def _read(self, keys: Keys, array: int) -> Array:
        found = np.empty((len(keys), self.width), self.dtype)
        for shard, at in self._cut(keys):
            data = self._connected.pull_rows(shard, self._number, array, keys[at])
            found[at] = data.view(self.dtype).reshape(len(at), self.width)
        return found

    def _mine(self) -> tuple[int, int]:
        """The rows that this worker saves, from and to."""
        return own(self.rows, self._connected.place, self._connected.workers)

    def state_dict(self) -> dict[str, Any]:
        """This worker's part of the rows, and of what the optimizer keeps of them. Collective over the workers."""
        self._connected.meet()
        start, stop = self._mine()
        keys = np.arange(start, stop)
        arrays = [self._read(keys, array).reshape(-1) for array in range(self._arrays())]
        steps = self._connected.row_steps(self._number)
        self._connected.meet()
        leaves = [Leaf(a, start * self.width, self.rows * self.width) for a in arrays]
        return {"steps": steps, "arrays": leaves, "width": self.width}

    def _arrays(self) -> int:
        """The number of arrays of a row: itself, and what the optimizer keeps."""
        return 1 + len(self._trial().arrays)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, of any number of workers and servers. Collective over the workers."""
        steps, arrays = fields("Table", state, steps=int, arrays=list)
        if len(arrays) != self._arrays():
            raise ValueError("the state of the table is for another optimizer")
        if state.get("width", self.width) != self.width:
            raise ValueError(f"the state is of rows of {state['width']} elements, the table of {self.width}")
        start, stop = self._mine()
        keys = np.arange(start, stop)
        try:
            found = [self._part_of(leaf, start * self.width, stop * self.width) for leaf in arrays]
        except Exception:
            self._connected.meet()  # the other workers wait there
            raise
        for array, data in enumerate(found):
            rows = data.reshape(-1, self.width)
            for shard, at in self._cut(keys):
                self._connected.put_rows(shard, self._number, array, steps, keys[at], rows[at])
        self._connected.meet()

    def _part_of(self, leaf: Any, start: int, stop: int) -> Array:
        """Elements of an array of a state; ValueError if it is of another number of rows, or of other elements."""
        total = self.rows * self.width
        if isinstance(leaf, Leaf):
            if (leaf.start, len(leaf.array), leaf.total) != (start, stop - start, total):
                raise ValueError("the state is of another table, or of another number of workers: save a checkpoint")
            return np.asarray(leaf.array, self.dtype)
        if tuple(np.shape(leaf)) != (total,):
            raise ValueError(f"the table has {total} elements, the state {np.shape(leaf)}")
        data = leaf.read(start, stop) if hasattr(leaf, "read") else np.asarray(leaf)[start:stop]
        return np.asarray(data, self.dtype)


class Rows:
    """The rows of `table` that server `index` of `servers` has."""

    def __init__(self, table: Table, index: int, servers: int) -> None:
        self._table, self._servers = table, servers
        self._data = np.zeros((len(range(index, table.rows, servers)), table.width), table.dtype)
        if table.scale:
            self._draw(index)
        self._optimizer = table.optimizer([Parameter(self._data, "rows")])

    def _draw(self, index: int) -> None:
        for block, start in enumerate(range(0, self._table.rows, DRAWN)):
            count = min(DRAWN, self._table.rows - start)
            values = np.random.default_rng([self._table.seed, block]).standard_normal((count, self._table.width))
            first = (index - start) % self._servers
            mine = values[first :: self._servers] * self._table.scale
            place = (start + first) // self._servers
            self._data[place : place + len(mine)] = mine

    @property
    def steps(self) -> int:
        """The number of updates."""
        return self._optimizer.steps

    def unpacked(self, count: int, data: Array) -> tuple[Keys, Array]:
        """The places of `count` rows, and the rows, of bytes of keys and rows."""
        keys = data[: 8 * count].copy().view(np.int64)
        rows = data[8 * count :].copy().view(self._table.dtype)
        return keys // self._servers, rows.reshape(count, self._table.width)

    def read(self, array: int, data: Array) -> Array:
        """Rows of the table (`array` 0), or of what the optimizer keeps (from 1 on), by the bytes of their keys."""
        found: Array = self._arrays()[array][data.copy().view(np.int64) // self._servers]
        return found

    def write(self, array: int, steps: int, count: int, data: Array) -> None:
        """Write rows, of bytes of keys and rows."""
        places, rows = self.unpacked(count, data)
        self._arrays()[array][places] = rows
        self._optimizer.steps = steps

    def _arrays(self) -> list[Array]:
        return [self._data, *self._optimizer.kept()]

    def update(self, parts: Sequence[tuple[Keys, Array, float]], factor: float) -> None:
        """Step by gradients (places, gradients, weight), with `factor` times the optimizer's learning rate."""
        if not parts:  # a step all the same: servers count alike, whatever rows they have
            self._optimizer.steps += 1
            return
        places, where = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
        weighted = [np.multiply(grads, weight, dtype=self._table.dtype) for _, grads, weight in parts]
        grads = np.zeros((len(places), self._table.width), self._table.dtype)
        np.add.at(grads, where, np.concatenate(weighted))
        rate = self._optimizer.lr
        self._optimizer.lr = factor * rate
        self._optimizer.step_rows(0, places, grads)
        self._optimizer.lr = rate
