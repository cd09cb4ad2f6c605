"""States of cut networks, gathered to those of whole networks, and cut again for any number of ranks.

Networks and optimizers may be those of this package or torch's. Whole states have the form of ``state_dict`` of a
network that is not cut, so such a network can load them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..agree import together
from ..flat.adapt import Adaptable
from ..loading import check_mapping
from ..models.nn import Array
from ..tensors import as_numpy, as_tensor, is_tensor
from .cuts import Cut, place
from .pairs import all_gather


def cuts_of(net: Any) -> dict[str, Cut]:
    """The `Cut` of each parameter of `net` that is cut, by the parameter's name.

    A parameter that several modules share has an entry for each of its names. `net` may be a `Pipeline`, of which these
    are the parameters of this rank's stages.
    """
    found = {}
    inner = net.net if isinstance(net, Adaptable) else net
    if hasattr(inner, "named_modules"):
        names = {parameter: name for name, parameter in net.named_parameters()}
        for path, module in inner.named_modules(remove_duplicate=False):
            for key, cut in _cuts(module).items():
                own = f"{path}.{key}" if path else key
                found[own] = found[names.get(getattr(module, key), own)] = cut
    else:
        found = {parameter.name: cut for parameter, cut, _ in cut_parameters(inner.layers)}
    return found


def cut_parameters(layers: Iterable[Any]) -> Iterator[tuple[Any, Cut, int]]:
    """The cut parameters of NumPy's layers or torch's modules, with their cuts and this rank's place in each."""
    for layer in layers:
        of_torch = hasattr(layer, "named_modules")
        for part in layer.modules() if of_torch else [layer]:
            for key, cut in _cuts(part).items():
                own = getattr(part, key) if of_torch else part.parameters()[key]
                yield own, cut, place(getattr(part, "comm", None))[0]


def _cuts(layer: Any) -> dict[str, Cut]:
    """The cuts of a layer's parameters. A layer of a program may have an attribute of this name for something else."""
    found = getattr(layer, "cuts", None)
    return {key: cut for key, cut in found.items() if isinstance(cut, Cut)} if isinstance(found, dict) else {}


def whole_state(net: Any, comm: Any) -> dict[str, Any]:
    """``net.state_dict()`` with whole parameters, as copies, on all ranks of the tensor axis `comm`. Collective."""
    change = _gathering(cuts_of(net), comm)
    return {name: change(name, value) for name, value in net.state_dict().items()}


def load_whole_state(net: Any, state: Mapping[str, Any], comm: Any) -> None:
    """Load this rank's parts of a whole state, equal on all ranks, which any number of ranks has saved. Collective.

    Raises on all ranks of `comm`: TypeError for what is no mapping, ValueError if a length differs, and what
    ``net.load_state_dict`` raises (RuntimeError of torch's counts as ValueError).
    """
    change = _cutting(cuts_of(net), comm)

    def load() -> None:
        check_mapping("load_whole_state", state)
        try:
            net.load_state_dict({name: change(name, value) for name, value in state.items()})
        except RuntimeError as error:
            raise ValueError(str(error)) from error

    together(comm, load)


def whole_optimizer_state(opt: Any, net: Any, comm: Any) -> dict[str, Any]:
    """``opt.state_dict()`` with whole arrays (momentum, for example), as copies. Collective over the tensor axis.

    Raises ValueError if the optimizer works on flat arrays: with `shard`, or for parameters of 16 bits.
    """
    return _each(opt, net, opt.state_dict(), _gathering(cuts_of(net), comm))


def load_whole_optimizer_state(opt: Any, net: Any, state: Mapping[str, Any], comm: Any) -> None:
    """Load this rank's parts of a whole state, equal on all ranks. Collective. Errors are those of `load_whole_state`,
    and of `whole_optimizer_state`."""
    change = _cutting(cuts_of(net), comm)

    def load() -> None:
        check_mapping("load_whole_optimizer_state", state)
        opt.load_state_dict(_each(opt, net, state, change))

    together(comm, load)


Change = Callable[[str, Any], Any]


def _gathering(cuts: Mapping[str, Cut], comm: Any) -> Change:
    return _on_arrays(cuts, lambda array, cut: all_gather(array, comm, cut))


def _cutting(cuts: Mapping[str, Cut], comm: Any) -> Change:
    return _on_arrays(cuts, lambda array, cut: cut.part(array, comm.rank))


def _on_arrays(cuts: Mapping[str, Cut], function: Callable[[Array, Cut], Array]) -> Change:
    """A function of a name and its array or tensor: a copy, of those that are cut after `function`."""

    def change(name: str, value: Any) -> Any:
        array = as_numpy(value) if is_tensor(value) else np.asarray(value)
        try:
            made = np.array(function(array, cuts[name]) if name in cuts else array, order="C")
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        return as_tensor(made) if is_tensor(value) else made

    return change


def _each(opt: Any, net: Any, state: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """The state of an optimizer after ``change(name, array)`` of each array that belongs to a parameter."""
    if "buckets" in state:
        raise ValueError("this optimizer works on flat arrays (shard, or parameters of 16 bits), which cannot be cut")
    if not hasattr(opt, "param_groups"):  # NumPy's, by name; torch's is by number
        return {
            key: {name: change(name, array) for name, array in value.items()} if isinstance(value, dict) else value
            for key, value in state.items()
        }
    names = {p: name for name, p in net.named_parameters()}
    order = [names[p] for group in opt.param_groups for p in group["params"]]
    per_parameter = {
        number: {
            key: change(order[number], value) if is_tensor(value) and value.dim() else copy.deepcopy(value)
            for key, value in values.items()
        }
        for number, values in state["state"].items()
    }
    return {**state, "state": per_parameter}
