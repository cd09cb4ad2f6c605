"""Predicted memory beside what the library holds, for every configuration of benchmarks/advise.py, on ranks as threads.

Bytes of weights, gradients, states and activations do not depend on how the ranks talk.
"""

import sys

import pytest
from jobs import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from _advise_setup import BLOCKS, HIDDEN, ROWS, WIDTH, of  # noqa: E402
from _advise_worker import Training  # noqa: E402

from collectives.advise.memory import memories  # noqa: E402
from collectives.advise.model import Precision, perceptron  # noqa: E402
from collectives.train import threads  # noqa: E402


@pytest.mark.parametrize("name", ROWS)
def test_memory_is_predicted(name):
    def on_rank(comm):
        training = Training(comm, of(name), row=0.0)
        training.step()
        return training.counted()

    (counted,) = set(threads.run(8, on_rank))
    model = perceptron(BLOCKS, WIDTH, HIDDEN, Precision(4, 4, 4))
    predicted = max(one.total - one.buffers for one in memories(model, of(name)))
    assert predicted == pytest.approx(counted, rel=0.01)
