"""Networks whose dense layers are cut apart as a whole, also in pipelines."""

import numpy as np
import pytest
from mpi4py import MPI

from collectives import train
from collectives.train.tensor import ColumnParallelLinear, RowParallelLinear, cut_linear, cuts_of, whole_state

NEAR = 1e-12
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((8, 1, 4, 4)), RNG.integers(0, 5, 8)
LOSS = train.CrossEntropyLoss()


def network(model=train.mlp):
    return model((1, 4, 4), 5, rng=np.random.default_rng(1), dtype=np.float64)


def sgd(parameters):
    return train.SGD(parameters, 0.1, momentum=0.9)


def alone(model=train.mlp):
    net = network(model)
    opt = sgd(net.parameters())
    for _ in range(3):
        opt.zero_grad()
        LOSS(net(X), Y).backward()
        opt.step()
    return net.state_dict()


def assert_same(state, expected):
    assert set(state) == set(expected)
    for name, value in state.items():
        np.testing.assert_allclose(value, expected[name], atol=NEAR, rtol=0, err_msg=name)


@pytest.mark.parametrize("model", [train.mlp, train.cnn])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_linear_layer_is_cut_and_the_network_trains_as_the_whole_one(model, ranks):
    expected = alone(model)

    def on_rank(comm):
        net = cut_linear(network(model), comm)
        kinds = [type(layer) for layer in net.layers if isinstance(layer, train.Linear)]
        opt = sgd(net.parameters())
        for _ in range(3):
            opt.zero_grad()
            LOSS(net(X), Y).backward()
            opt.step()
        return kinds, set(cuts_of(net)), whole_state(net, comm)

    for kinds, cut, state in train.threads.run(ranks, on_rank):
        pair = [ColumnParallelLinear, RowParallelLinear]
        assert kinds == (pair if model is train.cnn else [*pair, ColumnParallelLinear])
        dense = [name for name, array in expected.items() if array.ndim < 4 and name.endswith("weight")]
        assert {name for name in cut if name.endswith("weight")} == {n for n in dense if expected[n].ndim == 2}
        assert_same(state, expected)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"])
def test_stages_of_cut_layers_train_as_the_whole_network(schedule):
    """Also where a backward pass has two halves, and where a pair of layers is on two stages."""
    expected = alone()

    def on_rank(comm):
        mesh = train.Mesh(comm, pipeline=2, tensor=2)
        cut = [2, 3, 5] if schedule == "interleaved_1f1b" else [3]
        net = cut_linear(network(), mesh.tensor)
        pipe = train.Pipeline(net, mesh.pipeline, schedule=schedule, micro_batches=4, cut=cut)
        pipe, opt = train.distribute(pipe, sgd(pipe.parameters()), train.AllReduce(), mesh=mesh)
        for _ in range(3):
            opt.zero_grad()
            pipe.step(X, Y, LOSS)
            opt.step()
        state = whole_state(pipe.net, mesh.tensor)
        return {name: array for part in mesh.pipeline.allgather(state) for name, array in part.items()}

    for state in train.threads.run(4, on_rank):
        assert_same(state, expected)


def test_a_layer_with_too_few_outputs_is_an_error_on_all_ranks():
    def on_rank(comm):
        net = train.Sequential(train.Linear(8, 2, rng=np.random.default_rng(0)))
        with pytest.raises(ValueError, match="2 outputs over 3 ranks"):
            cut_linear(net, comm)

    train.threads.run(3, on_rank)


class Doubled(train.Linear):
    """A layer that a cut one could not replace."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_only_plain_linear_layers_are_cut():
    cut = cut_linear(network(), MPI.COMM_SELF)
    with pytest.raises(ValueError, match=r"layer 1 is a ColumnParallelLinear, and only a Linear can be cut"):
        cut_linear(cut, MPI.COMM_SELF)
    with pytest.raises(ValueError, match="layer 0 is a Doubled"):
        cut_linear(train.Sequential(Doubled(4, 3, rng=RNG)), MPI.COMM_SELF)
