"""The same weights for any number of ranks, by exact sums of the samples' gradients."""

import numpy as np
import pytest
from jobs import mpiexec, torch_for
from mpi4py import MPI

import collectives
from collectives import train

PROGRAM = "tests/train/programs/reproducible.py"


def trained(kind, ranks, *args):
    """What the program prints: loss and hash of the weights."""
    done = mpiexec("openmpi", ranks, PROGRAM, kind, *args, env=torch_for("openmpi") if kind == "torch" else None)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long("2-torch")
@pytest.mark.quick("3-cnn", "2-mlp", "2-torch")
@pytest.mark.parametrize("kind", ["mlp", "mlp64", "cnn", "torch"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_same_bits_for_any_number_of_ranks(kind, ranks):
    assert trained(kind, ranks) == trained(kind, 1)


@pytest.mark.slow
def test_more_ranks_than_samples():
    assert trained("mlp", 18) == trained("mlp", 1)


def test_ordinary_sums_depend_on_the_number_of_ranks():
    """Without exact sums the losses are alike, the bits are not: the test above can fail."""
    one, three = trained("mlp", 1, "ordinary").split(), trained("mlp", 3, "ordinary").split()
    assert float(one[1]) == pytest.approx(float(three[1]), rel=1e-3)
    assert one[2] != three[2]


def test_the_gradient_is_the_mean():
    comm = collectives.Communicator(MPI.COMM_SELF)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((9, 6)), np.arange(9) % 3
    grads = []
    for how in (train.reproducible_backward, None):
        net = train.mlp((6,), 3, rng=np.random.default_rng(1), dtype=np.float64)
        loss_fn = train.CrossEntropyLoss()
        if how is None:
            loss = loss_fn(net(x), y)
            loss.backward()
        else:
            loss = how(net, loss_fn, x, y, comm=comm)
        grads.append([float(loss), *(p.grad.copy() for p in net.parameters())])
    for a, b in zip(*grads, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-15)


def test_ranks_that_are_threads_are_refused():
    net = train.mlp((6,), 3, rng=np.random.default_rng(1))
    with pytest.raises(TypeError, match="expected a collectives.Communicator, not ThreadComm"):
        train.threads.run(
            1,
            lambda comm: train.reproducible_backward(
                net, train.CrossEntropyLoss(), np.ones((1, 6)), np.zeros(1, int), comm=comm
            ),
        )
