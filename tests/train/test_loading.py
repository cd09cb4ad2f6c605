"""What is no state is refused by name, by everything that has ``load_state_dict``; nothing has changed then."""

import numpy as np
import pytest
from pipeline_training import X, Y, chain, sgd

from collectives import train
from collectives.train import threads
from collectives.train.loading import check_array, fields
from collectives.train.tensor import load_whole_optimizer_state, load_whole_state

STRATEGIES = {
    "AllReduce": lambda: train.AllReduce(),
    "LocalSGD": lambda: train.LocalSGD(every=2),
    "DiLoCo": lambda: train.DiLoCo(every=2),
    "FedAvg": lambda: train.FedAvg(),
    "EASGD": lambda: train.EASGD(every=2),
}
OTHERS = ["Sequential", "SGD", "Loader", "Random", "Pipeline", "WholeNet", "WholeOptimizer"]


def made(name, comm):
    """An object with ``load_state_dict``."""
    mesh = train.Mesh(comm, data=comm.size)
    if name == "Loader":
        return train.Loader((X, Y), batch=4, seed=0, comm=comm)
    if name == "Random":
        return train.Random(1, "noise", 0)
    if name == "Pipeline":
        return train.Pipeline(chain(), mesh.pipeline)
    net = chain()
    opt = sgd(net.parameters())
    if name in STRATEGIES:
        return train.distribute(net, opt, STRATEGIES[name](), comm=comm)[1].strategy
    if name == "WholeNet":
        return train.WholeNet(net, mesh)
    if name == "WholeOptimizer":
        return train.WholeOptimizer(opt, net, mesh)
    return {"Sequential": net, "SGD": opt}[name]


@pytest.mark.parametrize("name", [*STRATEGIES, *OTHERS])
def test_what_is_no_mapping_is_refused(name):
    def work(comm):
        thing = made(name, comm)
        before = str(thing.state_dict())
        for nothing in (None, 3, "state", [("steps", 1)]):
            with pytest.raises(TypeError, match=rf"^{name}: a state is a dict that state_dict\(\) has returned, not "):
                thing.load_state_dict(nothing)
        with pytest.raises(ValueError, match="no |missing"):
            thing.load_state_dict({})
        assert str(thing.state_dict()) == before

    threads.run(1, work)


@pytest.mark.parametrize("name", ["AllReduce", "LocalSGD", "DiLoCo", "SGD"])
def test_impossible_numbers_are_named(name):
    def work(comm):
        thing = made(name, comm)
        before = str(thing.state_dict())
        key = "skipped" if name == "AllReduce" else "steps"
        with pytest.raises(ValueError, match=rf"^{name}: the state's {key} is impossible: None \(NoneType\)$"):
            thing.load_state_dict({**thing.state_dict(), key: None})
        assert str(thing.state_dict()) == before

    threads.run(1, work)


@pytest.mark.parametrize("name", ["Sequential", "Pipeline", "WholeNet"])
@pytest.mark.parametrize(
    ("array", "words"),
    [(np.ones(3), r"has the shape \(20, 8\), in the state \(3,\)"), (None, "no array of numbers, but None")],
)
def test_arrays_that_do_not_fit_change_nothing(name, array, words):
    def work(comm):
        thing = made(name, comm)
        state = {key: value * 2 for key, value in chain().state_dict().items()}
        before = chain().state_dict()
        state["0.weight"] = array
        with pytest.raises(ValueError, match=f"0.weight.*{words}"):
            thing.load_state_dict(state)
        now = thing.state_dict()
        for key, value in before.items():
            np.testing.assert_array_equal(now[key].array if name == "WholeNet" else now[key], value)

    threads.run(1, work)


def test_arrays_of_an_optimizer_must_fit():
    net = chain()
    opt = sgd(net.parameters())
    state = opt.state_dict()
    key = opt.arrays[0]
    state[key]["15.bias"] = np.ones(1)  # would be broadcast
    state[key]["0.weight"] = np.ones((20, 8))
    with pytest.raises(ValueError, match=rf"SGD: {key} of 15.bias has the shape \(3,\), in the state \(1,\)"):
        opt.load_state_dict(state)
    assert not opt.state_dict()[key]["0.weight"].any()


def test_whole_states_are_checked_on_all_ranks():
    def work(comm):
        net = chain()
        with pytest.raises(TypeError, match="load_whole_state: a state is a dict"):
            load_whole_state(net, None, comm)
        with pytest.raises(TypeError, match="load_whole_optimizer_state: a state is a dict"):
            load_whole_optimizer_state(sgd(net.parameters()), net, None, comm)

    threads.run(2, work)


def test_fields_are_made_or_named():
    assert fields("it", {"state": "3", "what": 1, "c": 0}, what=float, state=int) == [1.0, 3]
    with pytest.raises(ValueError, match="^it: the state has no b, c; has something else saved it"):
        fields("it", {"a": 1}, a=int, b=int, c=int)
    with pytest.raises(ValueError, match=r"^it: the state's a is impossible: inf \(float\)$"):
        fields("it", {"a": float("inf")}, a=int)


@pytest.mark.parametrize("array", ["a word", [[1], [1, 2]], ["a", "b"], np.array([None, 1])])
def test_what_is_no_array_of_numbers(array):
    with pytest.raises(ValueError, match="^x: the state has no array"):
        check_array("x", array, (2,))
    check_array("x", [1, 2], (2,))
