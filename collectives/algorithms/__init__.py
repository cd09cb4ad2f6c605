"""Every algorithm, one short file each; importing a file registers what is in it."""

from . import (  # noqa: F401
    circulant,
    dissemination,
    double_tree,
    naive,
    natives,
    recursive_doubling,
    recursive_halving,
    recursive_multiplying,
    ring,
    tree,
)
