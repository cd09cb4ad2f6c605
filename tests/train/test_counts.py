"""Arguments of a wrong type: an error that names the argument, when an object is made and before anything is sent."""

import math

import numpy as np
import pytest

from collectives import train
from collectives.train.counts import real
from collectives.train.strategies.graphs import Mixing

NUMBERS = [
    (train.AllReduce, "clip_norm"),
    (train.AllReduce, "loss_scale"),
    (train.AsyncEASGD, "attraction"),
    (train.AsyncParameterServer, "compensation"),
    (train.AsyncParameterServer, "oldest"),
    (train.DiLoCo, "outer_lr"),
    (train.DiLoCo, "outer_momentum"),
    (train.EASGD, "alpha"),
    (train.EASGD, "rho"),
    (train.FedAvg, "fraction"),
    (train.PowerSGD, "rank"),
    (train.PowerSGD, "seed"),
    (train.PowerSGD, "start_after"),
    (train.TopK, "density"),
    (lambda **given: train.Adam(parameters(), **given), "betas"),
    (lambda **given: train.Adam(parameters(), **given), "eps"),
    (lambda **given: train.SGD(parameters(), **{"lr": 0.1, **given}), "lr"),
    (lambda **given: train.SGD(parameters(), 0.1, **given), "momentum"),
    (lambda **given: train.SGD(parameters(), 0.1, **given), "weight_decay"),
    (lambda **given: train.Table(3, 2, **given), "scale"),
    (lambda **given: train.Loader((np.zeros(4), np.zeros(4)), **{"batch": 2, **given}), "batch"),
    (lambda **given: train.Loader((np.zeros(4), np.zeros(4)), 2, **given), "seed"),
    (lambda **given: train.Loader((np.zeros(4), np.zeros(4)), 2, **given), "prefetch"),
]
OTHERS = [
    (lambda: train.AllReduce(algorithm=2), "algorithm must be a name, not 2"),
    (lambda: train.AllReduce(compression="powersgd"), "compression must be an object .* not 'powersgd'"),
    (lambda: train.ParameterServer(tables=[3]), r"tables must be a dict of train.Table by name, not \[3\]"),
    (lambda: train.SGD([1.0], 0.1), r"parameters must be .* net.parameters\(\), not float"),
    (lambda: train.SGD(None, 0.1), r"parameters must be .* net.parameters\(\), not NoneType"),
    (lambda: train.MaxPool2d(1.5), "MaxPool2d: size must be an integer, not 1.5"),
    (lambda: Mixing({"ring": 1}, 3), "graph must be a name, a function of the ranks or matrices"),
]


def parameters():
    return [train.Parameter(np.zeros(3), "weight")]


@pytest.mark.parametrize("value", ["3", [1, 2], {}, 1j, np.zeros(2)], ids=str)
@pytest.mark.parametrize(("make", "name"), NUMBERS)
def test_what_is_no_number_is_named(make, name, value):
    if name == "loss_scale" and isinstance(value, str):
        pytest.raises(ValueError, make, loss_scale=value).match("loss_scale must be a number or 'dynamic'")
        return
    if name == "betas":
        value = (0.9, value)
    with pytest.raises(TypeError, match=f"^{name} must be"):
        make(**{name: value})


@pytest.mark.parametrize(("make", "text"), OTHERS)
def test_what_is_of_another_type_is_named(make, text):
    with pytest.raises(TypeError, match=text):
        make()


def test_numbers_of_numpy_are_numbers():
    assert real("lr", np.float32(0.5)) == real("lr", np.array(0.5)) == 0.5
    assert math.isnan(real("lr", math.nan))
