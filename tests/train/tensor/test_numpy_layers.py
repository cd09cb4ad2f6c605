"""NumPy's cut layers train as whole ones do."""

import numpy as np
import pytest

from collectives import train
from collectives.train.tensor import ColumnParallelLinear, RowParallelLinear

NEAR = 1e-12
INPUTS, HIDDEN, CLASSES, SAMPLES = 6, 9, 5, 8
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((SAMPLES, INPUTS)), RNG.integers(0, CLASSES, SAMPLES)
UNEVEN = {1: (9,), 2: (7, 2), 3: (1, 6, 2), 4: (2, 1, 5, 1)}


def linear(inputs, outputs, rng):
    return train.Linear(inputs, outputs, rng=rng, dtype=np.float64)


def whole():
    rng = np.random.default_rng(1)
    layers = linear(INPUTS, HIDDEN, rng), train.ReLU(), linear(HIDDEN, CLASSES, rng)
    for layer in (layers[0], layers[2]):
        layer.bias.data[:] = rng.standard_normal(len(layer.bias.data))
    return train.Sequential(*layers)


def column_row(comm, sizes):
    """Between the layers, activations are cut."""
    first, _, second = whole().layers
    first = ColumnParallelLinear(first, comm, sizes=sizes)
    return train.Sequential(first, train.ReLU(), RowParallelLinear(second, comm, sizes=sizes))


def column_column(comm, sizes):
    """Between the layers, activations are whole."""
    first, _, second = whole().layers
    first = ColumnParallelLinear(first, comm, sizes=sizes, gather_output=True)
    return train.Sequential(first, train.ReLU(), ColumnParallelLinear(second, comm, gather_output=True))


def row_row(comm, sizes):
    first, _, second = whole().layers
    first = RowParallelLinear(first, comm, split_input=True)
    return train.Sequential(first, train.ReLU(), RowParallelLinear(second, comm, sizes=sizes, split_input=True))


def trained(net, steps=4):
    """Output of the first step, gradients of the first step, and weights after some."""
    opt = train.SGD(net.parameters(), 0.2, momentum=0.9, weight_decay=0.01)
    for step in range(steps):
        opt.zero_grad()
        out = net(X)
        train.CrossEntropyLoss()(out, Y).backward()
        if step == 0:
            first = out.data.copy(), {p.name: p.grad.copy() for p in net.parameters()}
        opt.step()
    return *first, net.state_dict()


@pytest.mark.parametrize("make", [column_row, column_column, row_row])
@pytest.mark.parametrize(("ranks", "sizes"), [*((r, None) for r in UNEVEN), *UNEVEN.items()])
def test_cut_networks_train_as_whole_ones(make, ranks, sizes):
    output, grads, weights = trained(whole())

    def work(comm):
        net = make(comm, sizes)
        mine, my_grads, my_weights = trained(net)
        np.testing.assert_allclose(mine, output, atol=NEAR)
        cuts = train.tensor.cuts_of(net)
        assert len(cuts) >= 2
        for name in grads:
            for cut_one, one in ((my_grads, grads), (my_weights, weights)):
                expected = cuts[name].part(one[name], comm.rank) if name in cuts else one[name]
                np.testing.assert_allclose(cut_one[name], expected, atol=NEAR, err_msg=name)
        return {name: my_weights[name].tobytes() for name in my_weights if name not in cuts}

    replicas = train.threads.run(ranks, work)
    assert all(one == replicas[0] for one in replicas)  # the same bits
    assert max(np.abs(weights[name] - whole().state_dict()[name]).max() for name in weights) > 0.01


def errors(ranks, make):
    """What `make(comm)` raises on each rank."""

    def work(comm):
        with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is tested by the caller
            make(comm)
        assert comm.allreduce(1) == ranks  # the ranks are not left in different calls
        return str(caught.value)

    return train.threads.run(ranks, work)


def test_bad_layers_are_errors_on_all_ranks():
    rng = np.random.default_rng(0)
    for cls in (ColumnParallelLinear, RowParallelLinear):
        found = errors(4, lambda comm, cls=cls: cls(linear(3, 3, rng), comm))
        assert all("over 4 ranks, [1, 1, 1, 0]: each rank needs at least 1" in text for text in found)
        found = errors(2, lambda comm, cls=cls: cls(linear(6, 6, rng), comm, sizes=(4, 3)))
        assert all("sizes [4, 3] are no cut of 6" in text for text in found)
        found = errors(2, lambda comm, cls=cls: cls(linear(6 + comm.rank, 6 + comm.rank, rng), comm))
        assert ("1 of 2 ranks differ" in found[0], "is 7 on rank 1, 6 on rank 0" in found[1]) == (True, True)


def test_wrong_inputs():
    def work(comm):
        rng = np.random.default_rng(0)
        with pytest.raises(ValueError, match=r"takes \(samples, 3\) here, got \(2, 6\)"):
            RowParallelLinear(linear(6, 4, rng), comm).forward(np.ones((2, 6)))
        with pytest.raises(ValueError, match=r"takes \(samples, 6\), got \(2, 3\)"):
            ColumnParallelLinear(linear(6, 4, rng), comm).forward(np.ones((2, 3)))

    train.threads.run(2, work)
