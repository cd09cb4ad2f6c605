"""Whether ranks, and runs, have the same data set and the same settings; one error for all ranks where not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..agree import error_of, failure_of
from ..loading import check_mapping

T = TypeVar("T")
Description = dict[str, Any]

SETTINGS = ("placement", "shard", "seed")


def gathered(comm: Any, make: Callable[[], T], describe: Callable[[T], Description]) -> tuple[T, list[Description]]:
    """What ``make()`` makes here, and the descriptions of what it made on each rank. Collective if `comm` can gather.

    If ``make()`` raises an exception on some ranks, these raise it, and the others raise that of the lowest of them,
    as the same builtin type or as ValueError.
    """
    mine: list[T] = []
    failure: Exception | None = None
    description: Description = {}
    try:
        mine.append(make())
        description = describe(mine[0])
    except Exception as error:
        failure = error
    told = None if failure is None else failure_of(failure)
    every = comm.allgather((description, told)) if hasattr(comm, "allgather") else [(description, told)]
    if failure is not None:
        raise failure
    for rank, (_, other) in enumerate(every):
        if other is not None:
            raise error_of(rank, other)
    return mine[0], [description for description, _ in every]


def same_everywhere(every: list[Description]) -> None:
    """Raise ValueError if the descriptions differ; it names the lowest rank that differs from one before, and in what.

    None stands for what a rank cannot tell.
    """
    known: dict[str, tuple[int, Any]] = {}
    for rank, mine in enumerate(every):
        for key, value in mine.items():
            if value is None:
                continue
            first, wanted = known.setdefault(key, (rank, value))
            if value != wanted:
                raise ValueError(
                    f"the ranks' loaders differ: {key} is {value} on rank {rank}, {wanted} on rank {first}"
                )


def check_saved(state: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Raise ValueError unless a saved position is for the data set and the settings of `mine`, another position.

    TypeError for what is no mapping.
    """
    check_mapping("Loader", state)
    for key in (*SETTINGS, *mine):
        if key not in state:
            raise ValueError(f"the saved position of the data is incomplete: it has no {key}")
        if key in SETTINGS and state[key] != mine[key]:
            raise ValueError(f"the saved position is for {key} = {state[key]!r}, this loader has {mine[key]!r}")
    changed = "the data set has changed since the position was saved:"
    fields, own = state["fields"], mine["fields"]
    if len(fields) != len(own):
        raise ValueError(f"{changed} a sample had {len(fields)} parts, now {len(own)}")
    for i, ((dtype, shape), (own_dtype, own_shape)) in enumerate(zip(fields, own, strict=True)):
        if dtype != own_dtype:
            raise ValueError(f"{changed} part {i} of a sample had the dtype {dtype}, now {own_dtype}")
        if list(shape) != list(own_shape):
            raise ValueError(f"{changed} part {i} of a sample had the shape {tuple(shape)}, now {tuple(own_shape)}")
    if "samples" in mine and state["samples"] != mine["samples"]:
        raise ValueError(f"{changed} it had {state['samples']} samples, now {mine['samples']}")
    if None not in (state.get("content"), mine.get("content")) and state["content"] != mine["content"]:
        raise ValueError(f"{changed} some of its samples have other values")
    if not (_counts(state["epoch"]) and _counts(state["position"])):
        raise ValueError(f"the saved position is impossible: epoch {state['epoch']}, position {state['position']}")


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
