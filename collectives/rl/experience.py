"""Recorded experience: transitions in a file."""

from __future__ import annotations

import os

import numpy as np

from ..files import replacing
from .transitions import Form, Transitions


def write_experience(path: str | os.PathLike[str], transitions: Transitions) -> None:
    """Write transitions to `path`, in the format .npz with an array for each field. OSError if it cannot be."""
    with replacing(path, "wb") as file:
        np.savez(file, **transitions._asdict())


def read_experience(path: str | os.PathLike[str], form: Form, actions: int) -> Transitions:
    """The transitions in the file `path`. OSError if it cannot be read.

    ValueError if it has none of this form, or others than the actions 0 to `actions` - 1.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            found = Transitions(*(file[name] for name in Transitions._fields))
    except OSError:
        raise
    except Exception as error:  # of many kinds, by where a file is damaged
        raise ValueError(f"{path} is no file of recorded experience: {error}") from error
    wanted = form.empty(found.actions.shape[0] if found.actions.ndim else 0)
    for name, array, like in zip(Transitions._fields, found, wanted, strict=True):
        if array.shape != like.shape or array.dtype != like.dtype:
            raise ValueError(
                f"{path}: {name} are {array.dtype} of shape {array.shape}, of this environment {like.dtype} of shape "
                f"{like.shape}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{path}: {name} are not all finite")
    if not ((0 <= found.actions) & (found.actions < actions)).all():
        low, high = found.actions.min(), found.actions.max()
        raise ValueError(f"{path}: actions are {low} to {high}, of this environment 0 to {actions - 1}")
    return found


def joined(parts: list[Transitions]) -> Transitions:
    """All transitions of several parts, one part after the other."""
    return Transitions(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
