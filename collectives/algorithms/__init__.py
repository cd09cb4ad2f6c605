"""Every algorithm, one short file each; importing a file registers what is in it."""

from . import (  # noqa: F401
    binomial,
    bruck,
    chain,
    circulant,
    dissemination,
    double_tree,
    linear,
    naive,
    natives,
    pairwise,
    recursive_doubling,
    recursive_halving,
    recursive_multiplying,
    ring,
    scan,
    scatter_allgather,
    tree,
)
