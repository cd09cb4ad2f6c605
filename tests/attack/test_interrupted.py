"""Exceptions of signals' handlers at any moment of a blocking call."""

import pytest


@pytest.mark.parametrize("where", ["finish", "wait", "anywhere"])
def test_the_others_are_told(attack, mpi, where):
    attack(mpi, 2, "interrupted", where, code=None)
