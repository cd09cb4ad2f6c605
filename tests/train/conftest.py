"""Fixtures of the tests of training."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """scikit-learn's digits in a file, for environments without scikit-learn."""
    from sklearn.datasets import load_digits

    data = load_digits()
    file = tmp_path_factory.mktemp("data") / "digits.npz"
    np.savez(file, x=data.images / 16, y=data.target)
    return str(file)
