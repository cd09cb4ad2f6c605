"""Network and optimizer of a mesh as objects of a checkpoint, which any other mesh can load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .agree import communicator, together
from .checkpoint import Slice, StoredArray
from .checkpoint.arrays import type_name, type_of
from .flat.adapt import Adaptable, is_torch
from .loading import check_array, check_mapping, fields
from .mesh import Mesh
from .models.nn import Array
from .optim.base import Optimizer
from .tensor import Cut, cuts_of
from .tensors import as_numpy, as_tensor, is_tensor

__all__ = ["WholeNet", "WholeOptimizer"]


class WholeNet:
    """A network on a mesh, whose state is that of the whole model.

    `net` is this rank's part: a `Pipeline`, a network with cut layers, or one that is whole. ``state_dict()`` has a
    `checkpoint.Slice` for each array of the whole model, by its name there: its shape and this rank's part. Of ranks
    that hold the same part, one gives it. ``load_state_dict`` takes this rank's parts of what a checkpoint has of such
    a state; the mesh may be another one::

        states = {"net": train.WholeNet(net, mesh), "opt": train.WholeOptimizer(opt, net, mesh)}
        train.checkpoint.save("here", {name: state.state_dict() for name, state in states.items()}, mesh.comm)
        ...
        found = train.checkpoint.load("here", mesh.comm)
        for name, state in states.items():
            state.load_state_dict(found.state(name))

    It takes states of whole arrays, too, as one process saves them. Arrays that are no parameters, such as statistics
    of norms, are those of one of the data ranks.

    The constructor is collective over ``mesh.comm``; it raises ValueError on all ranks if they differ about the shape
    of an array. The methods send nothing.
    """

    def __init__(self, net: Any, mesh: Mesh) -> None:
        self._net, self._torch = net, is_torch(net)
        self._names = _names(net)
        self._parts = _Parts(self._arrays(), cuts_of(net), mesh)

    def _arrays(self) -> dict[str, Array]:
        return {self._names.get(key, key): _array(value) for key, value in self._net.state_dict().items()}

    def state_dict(self) -> dict[str, Slice]:
        """Slices of all arrays by name. They are copied when a checkpoint is saved."""
        return self._parts.state(self._arrays())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take this rank's parts. If that raises an error, nothing has changed.

        TypeError for what is no mapping, ValueError, on all ranks alike, if names or shapes differ; what reading a file
        raises.
        """
        check_mapping("WholeNet", state)
        own = self._parts.read(state)
        if self._torch:
            keys = self._net.state_dict()
            self._net.load_state_dict({key: as_tensor(own[self._names.get(key, key)]) for key in keys})
        else:
            self._net.load_state_dict(own)


class WholeOptimizer:
    """The optimizer of a network on a mesh: what `WholeNet` is of the network.

    The arrays that it keeps for each parameter have the parameter's name and shape. For torch's, `state_dict` is
    collective over ``mesh.comm``. Raises ValueError on all ranks if the optimizer works on flat arrays (`shard`, or
    parameters of 16 bits), if it keeps arrays of other shapes than the parameters', or if the ranks' optimizers have
    different numbers of groups.
    """

    def __init__(self, opt: Any, net: Any, mesh: Mesh) -> None:
        self._opt, self._comm, self._order = opt, communicator(mesh.comm), list[str]()
        arrays = together(self._comm, self._arrays if isinstance(opt, Optimizer) else lambda: self._of_torch(net))
        self._parts = _Parts(arrays, cuts_of(net), mesh)
        if len(set(self._comm.allgather(len(getattr(opt, "param_groups", []))))) > 1:
            raise ValueError("the optimizers of the ranks have different numbers of groups")

    def _arrays(self) -> dict[str, Array]:
        _refuse_flat(self._opt)
        return {parameter.name: parameter.data for parameter in self._opt.parameters}

    def _of_torch(self, net: Any) -> dict[str, Array]:
        _refuse_flat(self._opt)
        names = {parameter: name for name, parameter in net.named_parameters()}
        self._order = [names[p] for group in self._opt.param_groups for p in group["params"]]
        return {names[p]: as_numpy(p) for group in self._opt.param_groups for p in group["params"]}

    def state_dict(self) -> dict[str, Any]:
        """The state, with slices in place of arrays. Those of torch are by the parameters' names."""
        state = self._opt.state_dict()
        if isinstance(self._opt, Optimizer):
            return {key: self._parts.state(kept) if isinstance(kept, dict) else kept for key, kept in state.items()}
        # parameters without a state, such as frozen ones, are there by name: who loads it knows that none is missing
        own = {name: state["state"].get(number, {}) for number, name in enumerate(self._order)}
        told = together(self._comm, lambda: {name: self._told(name, values) for name, values in own.items()})
        known: dict[str, Any] = {}
        for of_rank in self._comm.allgather(told):
            for name, values in of_rank.items():
                known[name] = known.get(name) or values
        slices = {
            name: {
                key: self._parts.slice(name, _array(own[name][key]) if own.get(name) else None, value.dtype)
                if isinstance(value, _Kept) else value
                for key, value in values.items()
            }
            for name, values in known.items()
        }  # fmt: skip
        groups = [{key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]]
        return {"state": slices, "param_groups": groups}

    def _told(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """What other ranks need to know of what is kept for a parameter: types of arrays, and numbers themselves."""
        found = {}
        for key, value in values.items():
            if not is_tensor(value) or not value.dim():
                found[key] = as_numpy(value).copy() if is_tensor(value) else value
            elif self._parts.fits(name, tuple(value.shape)):
                found[key] = _Kept(type_name(as_numpy(value).dtype))
            else:
                raise ValueError(f"{key} of {name} has the shape {tuple(value.shape)}, not that of the parameter")
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take this rank's parts. Errors are those of `WholeNet.load_state_dict`, and of the optimizer's own method."""
        check_mapping("WholeOptimizer", state)
        if isinstance(self._opt, Optimizer):
            read = {key: self._parts.read(kept) if isinstance(kept, dict) else kept for key, kept in state.items()}
            self._opt.load_state_dict(read)
            return
        kept, given_groups = fields("WholeOptimizer", state, state=dict, param_groups=list)
        own, known = self._opt.state_dict()["param_groups"], self._named(kept, given_groups)
        if len(own) != len(given_groups):
            raise ValueError(f"the state has {len(given_groups)} groups, the optimizer {len(own)}")
        if known:
            self._parts.check(known)
        per_parameter = {
            number: {key: self._restored(name, value) for key, value in known[name].items()}
            for number, name in enumerate(self._order) if known.get(name)
        }  # fmt: skip
        groups = [{**given, "params": mine["params"]} for given, mine in zip(given_groups, own, strict=True)]
        self._opt.load_state_dict({"state": per_parameter, "param_groups": groups})

    def _named(self, known: Mapping[Any, Any], groups: list[Any]) -> Mapping[str, Any]:
        """What is kept, by name. The state of torch's own optimizer has numbers instead, of which a rank with stages
        knows too few. ValueError for these."""
        if not known or not all(isinstance(key, int) for key in known):
            return known
        count = len({number for group in groups for number in group.get("params", known)})
        if count != len(self._order):
            raise ValueError(
                f"the state has {count} parameters by number, of which this rank has {len(self._order)} and does "
                "not know which: a WholeOptimizer saves them by name"
            )
        return {name: known.get(number, {}) for number, name in enumerate(self._order)}

    def _restored(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return as_tensor(self._parts.part(name, value) if np.shape(value) else _array(value))


class _Kept(NamedTuple):
    """An array that an optimizer keeps for a parameter, by the name of its type."""

    dtype: str


class _Place(NamedTuple):
    """A part of an array: the type and the shape of the whole, and where the part begins and ends."""

    dtype: str
    shape: tuple[int, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]


class _Parts:
    """Which part of each array this rank has, and whether it gives it. Collective over ``mesh.comm``.

    With servers of parameters, collective over the ranks that train.
    """

    def __init__(self, arrays: Mapping[str, Array], cuts: Mapping[str, Cut], mesh: Mesh) -> None:
        comm = communicator(mesh.comm)
        self._mine = {name: _place(array, cuts.get(name), mesh.tensor.rank) for name, array in arrays.items()}
        self._whole: dict[str, _Place] = {}
        holders: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for rank, places in enumerate(comm.allgather(self._mine)):
            for name, place in places.items():
                known = self._whole.setdefault(name, place)
                if known[:2] != place[:2]:
                    raise ValueError(f"{name} is {known[:2]} on one rank, {place[:2]} on rank {rank} of the mesh")
                holders.setdefault((name, place.start), []).append(rank)
        self._gives = set()
        for number, name in enumerate(self._whole):  # in turn, so that all ranks write
            same = holders.get((name, self._mine[name].start), []) if name in self._mine else []
            if same and same[number % len(same)] == comm.rank:
                self._gives.add(name)

    def state(self, arrays: Mapping[str, Array]) -> dict[str, Slice]:
        """Slices of all arrays, of those by name that this rank has."""
        return {name: self.slice(name, arrays.get(name), place.dtype) for name, place in self._whole.items()}

    def slice(self, name: str, array: Array | None, dtype: str) -> Slice:
        """This rank's part of an array, without elements if it has none or if another rank gives it."""
        shape = self._whole[name].shape
        if array is None or name not in self._gives:
            return Slice(np.empty(0, type_of(dtype)), (0,) * len(shape), shape)
        return Slice(array, self._mine[name].start, shape)

    def fits(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether an array of this rank has the shape of its part of the parameter `name`."""
        place = self._mine[name]
        return shape == tuple(b - a for a, b in zip(place.start, place.stop, strict=True))

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless `state` has the names of the whole model."""
        if set(state) != set(self._whole):
            lacking, more = sorted(set(self._whole) - set(state)), sorted(set(state) - set(self._whole))
            raise ValueError(f"the state is of another model; arrays missing: {lacking}, unexpected: {more}")

    def read(self, state: Mapping[str, Any]) -> dict[str, Array]:
        """This rank's parts of a state. ValueError unless it has all arrays of the whole model, in their shapes."""
        self.check(state)
        for name, place in self._whole.items():
            _check(name, state[name], place.shape)
        return {name: self.part(name, state[name]) for name in self._mine}

    def part(self, name: str, leaf: Any) -> Array:
        """This rank's part of a leaf of a state. ValueError for another shape, and for a slice in memory."""
        _, shape, start, stop = self._mine[name]
        _check(name, leaf, shape)
        if isinstance(leaf, StoredArray):
            return leaf.read(start, stop)
        return np.array(_array(leaf)[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))], order="C")


def _check(name: str, leaf: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a leaf of a state is an array of this shape, and for a slice in memory."""
    if isinstance(leaf, Slice):
        raise ValueError(f"{name}: the state is in the memory of many ranks; save it as a checkpoint and load that")
    check_array(name, leaf, shape)


def _place(array: Array, cut: Cut | None, rank: int) -> _Place:
    """Where this rank's part of an array is."""
    start, stop, shape = [0] * array.ndim, list(array.shape), list(array.shape)
    if cut is not None:
        axis = cut.axis % array.ndim
        start[axis], shape[axis] = cut.start(rank), cut.total
        stop[axis] += start[axis]
    return _Place(type_name(array.dtype), tuple(shape), tuple(start), tuple(stop))


def _names(net: Any) -> dict[str, str]:
    """The name in the whole model for each key of a torch module's state: a shared parameter has that of the first."""
    if isinstance(net, Adaptable) or not is_torch(net):
        return {}
    first: dict[int, str] = {}
    return {key: first.setdefault(id(tensor), key) for key, tensor in net.state_dict(keep_vars=True).items()}


def _array(value: Any) -> Array:
    return as_numpy(value) if is_tensor(value) else np.asarray(value)


def _refuse_flat(opt: Any) -> None:
    if "buckets" in opt.state_dict():
        raise ValueError("this optimizer works on flat arrays (shard, or parameters of 16 bits), which cannot be cut")
