"""Every layer's derivative against finite differences, and its forward pass against the definition."""

import numpy as np
import pytest

from collectives import train


def rng():
    return np.random.default_rng(7)


def conv(*args, **kwargs):
    return train.Conv2d(*args, **kwargs, rng=rng(), dtype=np.float64)


def linear(*args):
    return train.Linear(*args, rng=rng(), dtype=np.float64)


CASES = {
    "linear": (linear(5, 3), (4, 5)),
    "conv": (conv(2, 3, 3), (2, 2, 5, 6)),
    "conv padded": (conv(2, 3, 3, padding=1), (2, 2, 4, 5)),
    "conv strided": (conv(1, 2, 3, stride=2, padding=2), (2, 1, 6, 7)),
    "conv 1x1": (conv(3, 2, 1), (2, 3, 3, 2)),
    "pool": (train.MaxPool2d(2), (2, 3, 4, 6)),
    "pool with rest": (train.MaxPool2d(3), (2, 1, 7, 8)),
    "relu": (train.ReLU(), (3, 7)),
    "flatten": (train.Flatten(), (3, 2, 4)),
}


def numeric_gradient(function, array, h=1e-6):
    """Central differences of a scalar function, one element at a time."""
    grad = np.zeros_like(array)
    for i in np.ndindex(array.shape):
        kept = array[i]
        array[i] = kept + h
        above = function()
        array[i] = kept - h
        grad[i] = (above - function()) / (2 * h)
        array[i] = kept
    return grad


@pytest.mark.parametrize("name", CASES)
def test_derivative(name):
    layer, shape = CASES[name]
    x = rng().standard_normal(shape)
    y, saved = layer.forward(x)
    direction = rng().standard_normal(y.shape)

    def value():
        return float((layer.forward(x)[0] * direction).sum())

    for parameter in layer.parameters().values():
        parameter.zero_grad()
    below = layer.backward(saved, direction, True)
    np.testing.assert_allclose(below, numeric_gradient(value, x), atol=1e-7)
    for parameter in layer.parameters().values():
        np.testing.assert_allclose(parameter.grad, numeric_gradient(value, parameter.data), atol=1e-7)


def test_conv_is_the_cross_correlation():
    layer = conv(2, 3, 3, stride=2, padding=1)
    x = rng().standard_normal((2, 2, 5, 7))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = layer.forward(x)[0]
    assert y.shape == (2, 3, 3, 4)
    for i in range(3):
        for j in range(4):
            window = padded[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            expected = np.einsum("nchw,ochw->no", window, layer.weight.data) + layer.bias.data
            np.testing.assert_allclose(y[:, :, i, j], expected, atol=1e-12)


def test_pool_gives_ties_to_the_first():
    layer = train.MaxPool2d(2)
    y, saved = layer.forward(np.ones((1, 1, 2, 2)))
    np.testing.assert_array_equal(layer.backward(saved, np.full_like(y, 5.0), True), [[[[5, 0], [0, 0]]]])


def test_whole_network_and_loss():
    """The gradient of the loss with respect to every parameter of a convolutional network, by finite differences."""
    net = train.Sequential(conv(1, 2, 3, padding=1), train.ReLU(), train.MaxPool2d(2), train.Flatten(), linear(8, 3))
    x, y = rng().standard_normal((5, 1, 4, 4)), np.array([0, 2, 1, 1, 0])
    loss_fn = train.CrossEntropyLoss()
    loss_fn(net(x), y).backward()
    for p in net.parameters():
        numeric = numeric_gradient(lambda: float(loss_fn(net(x), y)), p.data)
        np.testing.assert_allclose(p.grad, numeric, atol=1e-8, err_msg=p.name)


def test_gradients_accumulate_until_zeroed():
    net = train.Sequential(linear(4, 3), train.ReLU(), linear(3, 2))
    x, y = rng().standard_normal((6, 4)), np.array([0, 1, 0, 1, 1, 0])
    loss_fn = train.CrossEntropyLoss()
    loss_fn(net(x), y).backward()
    once = [p.grad.copy() for p in net.parameters()]
    loss_fn(net(x), y).backward()
    for p, g in zip(net.parameters(), once, strict=True):
        np.testing.assert_allclose(p.grad, 2 * g)
        p.zero_grad()
        assert not p.grad.any()


def test_loss_of_large_logits_and_of_nothing():
    net = train.mlp((4,), 3, rng=rng())
    loss_fn = train.CrossEntropyLoss()
    out = net(np.zeros((2, 4)))
    out.data[:] = [[1e4, -1e4, 0], [0, 0, 0]]
    assert float(loss_fn(out, np.array([0, 1]))) == pytest.approx(np.log(3) / 2)
    empty = loss_fn(net(np.zeros((0, 4))), np.zeros(0, int))
    empty.backward()
    assert float(empty) == 0.0
    assert empty.samples == 0
    assert not any(p.grad.any() for p in net.parameters())


@pytest.mark.parametrize("batch", [0, 1, 5])
def test_cnn_takes_any_number_of_samples(batch):
    net = train.cnn((1, 8, 8), 10, rng=rng())
    loss = train.CrossEntropyLoss()(net(np.ones((batch, 1, 8, 8))), np.zeros(batch, int))
    loss.backward()
    assert net.samples == batch
    assert all(np.isfinite(p.grad).all() for p in net.parameters())


def test_hooks_run_last_layer_first():
    net = train.mlp((4,), 3, rng=rng())
    order = []
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda q: order.append(q.name))
    train.CrossEntropyLoss()(net(np.ones((2, 4))), np.array([0, 1])).backward()
    assert order == [p.name for p in reversed(net.parameters())]


def test_evaluation_between_forward_and_backward():
    net, loss_fn = train.mlp((4,), 3, rng=rng()), train.CrossEntropyLoss()
    x, y = rng().standard_normal((6, 4)), np.array([0, 1, 2, 1, 1, 0])
    loss_fn(net(x), y).backward()
    expected = [p.grad.copy() for p in net.parameters()]
    for p in net.parameters():
        p.zero_grad()
    loss = loss_fn(net(x), y)
    net(np.ones((9, 4)))
    loss.backward()
    for p, g in zip(net.parameters(), expected, strict=True):
        np.testing.assert_array_equal(p.grad, g)


def test_state_dict_round_trip():
    net, other = train.mlp((4,), 3, rng=rng()), train.mlp((4,), 3, rng=np.random.default_rng(8))
    other.load_state_dict(net.state_dict())
    x = rng().standard_normal((3, 4))
    np.testing.assert_array_equal(net(x).data, other(x).data)
    with pytest.raises(ValueError, match="missing"):
        net.load_state_dict({})
    with pytest.raises(ValueError, match="shape"):
        net.load_state_dict(train.mlp((5,), 3, rng=rng()).state_dict())


def test_errors_name_the_shapes():
    net, loss_fn = train.mlp((4,), 3, rng=rng()), train.CrossEntropyLoss()
    with pytest.raises(ValueError, match=r"takes \(samples, 4\), got \(2, 5\)"):
        net(np.ones((2, 5)))
    with pytest.raises(ValueError, match="Conv2d"):
        train.cnn((1, 8, 8), 10, rng=rng())(np.ones((2, 3, 8, 8)))
    with pytest.raises(ValueError, match="MaxPool2d"):
        train.MaxPool2d(3).forward(np.ones((1, 1, 2, 2)))
    with pytest.raises(ValueError, match="at least 4 x 4"):
        train.cnn((64,), 10, rng=rng())
    with pytest.raises(ValueError, match="outputs must be at least 1"):
        linear(3, 0)
    with pytest.raises(ValueError, match="at least one layer"):
        train.Sequential(train.ReLU())
    shared = linear(4, 4)
    with pytest.raises(ValueError, match="1.weight is also 0.weight: layers cannot share parameters"):
        train.Sequential(shared, shared)
    with pytest.raises(ValueError, match="labels run from 0 to 3"):
        loss_fn(net(np.ones((2, 4))), np.array([0, 3]))
    with pytest.raises(ValueError, match="integer labels"):
        loss_fn(net(np.ones((2, 4))), np.array([0.0, 1.0]))
    out = net(np.ones((2, 4)))
    with pytest.raises(ValueError, match="gradient of shape"):
        out.backward(np.ones((2, 4)))
    out.backward(np.ones((2, 3)))
    with pytest.raises(RuntimeError, match="twice"):
        out.backward(np.ones((2, 3)))
