"""How often actors act at random."""

from __future__ import annotations

from collections.abc import Callable


def apex_epsilon(actor: int, actors: int, *, base: float = 0.4, alpha: float = 7.0) -> float:
    """The probability of a random action of one of `actors` actors: ``base^(1 + actor alpha / (actors - 1))``.

    It does not change in time (Horgan et al. 2018, section 4, whose `base` and `alpha` are the defaults). A single
    actor has `base`. ValueError unless 0 <= actor < actors, and 0 <= base <= 1.
    """
    if not 0 <= actor < actors:
        raise ValueError(f"actor {actor} is not one of {actors}")
    if not 0 <= base <= 1:
        raise ValueError(f"base must be in [0, 1], not {base}")
    return float(base ** (1 + (actor * alpha / (actors - 1) if actors > 1 else 0.0)))


def annealed(first: float, last: float, steps: int) -> Callable[[int], float]:
    """A function of the steps taken: from `first` in a line to `last` after `steps` steps (Mnih et al. 2015).

    ValueError for probabilities outside of [0, 1] and for `steps` below 1.
    """
    if not (0 <= first <= 1 and 0 <= last <= 1):
        raise ValueError(f"probabilities are in [0, 1], not {first} and {last}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    return lambda taken: first + (last - first) * min(1.0, taken / steps)
