"""Optimizers against their formulas, worked by hand; beside torch's: programs/synchronous_torch.py."""

import numpy as np
import pytest

from collectives import train


def parameter(values=(1.0, -2.0)):
    return train.Parameter(np.array(values), "w")


def test_two_steps_by_hand():
    p = parameter([1.0])
    opt = train.SGD([p], lr=0.1, momentum=0.5, weight_decay=0.01)
    p.grad[:] = 2.0
    opt.step()  # v = 2 + 0.01 = 2.01
    assert p.data[0] == pytest.approx(1 - 0.201, abs=1e-15)
    p.grad[:] = -1.0
    opt.step()  # v = 1.005 + (-1 + 0.00799) = 0.01299
    assert p.data[0] == pytest.approx(0.799 - 0.001299, abs=1e-15)


def test_plain_step_is_gradient_descent():
    p = parameter()
    opt = train.SGD([p], lr=0.25)
    p.grad[:] = [4.0, 8.0]
    opt.step()
    np.testing.assert_array_equal(p.data, [0.0, -4.0])
    opt.zero_grad()
    assert not p.grad.any()


def test_float32_stays_float32():
    p = train.Parameter(np.ones(3, np.float32), "w")
    opt = train.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.1)
    p.grad[:] = 1
    opt.step()
    assert p.data.dtype == np.float32
    assert opt.state_dict()["velocity"]["w"].dtype == np.float32


def test_hooks_surround_the_step():
    p = parameter([1.0])
    opt = train.SGD([p], lr=1.0)
    seen = []
    opt.register_step_pre_hook(lambda o, args, kwargs: seen.append(float(p.data[0])))
    opt.register_step_post_hook(lambda o, args, kwargs: seen.append(float(p.data[0])))
    p.grad[:] = 1
    opt.step()
    assert seen == [1.0, 0.0]


def test_state_round_trip_goes_on_with_the_same_bits():
    def steps(p, opt, count):
        for i in range(count):
            p.grad[:] = np.sin(p.data + i)
            opt.step()

    p = parameter()
    opt = train.SGD([p], 0.1, momentum=0.9)
    steps(p, opt, 3)
    q = train.Parameter(p.data.copy(), "w")
    other = train.SGD([q], 0.3, momentum=0.9)
    other.load_state_dict(opt.state_dict())
    steps(p, opt, 3)
    steps(q, other, 3)
    np.testing.assert_array_equal(p.data, q.data)
    with pytest.raises(ValueError, match="this optimizer for"):
        other.load_state_dict({"steps": 0, "velocity": {"v": 0}})


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"lr": -1.0}, "lr must not be negative"),
        ({"lr": float("nan")}, "lr must not be negative"),
        ({"lr": 1.0, "momentum": 1.0}, "momentum"),
        ({"lr": 1.0, "momentum": -0.1}, "momentum"),
        ({"lr": 1.0, "weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_numbers_out_of_range(kwargs, message):
    with pytest.raises(ValueError, match=message):
        train.SGD([parameter()], **kwargs)


def test_two_steps_of_adam_by_hand():
    """Corrected means are 1 and 1 after the first step, so that the weight moves by lr."""
    p = parameter([1.0])
    opt = train.Adam([p], lr=0.1, betas=(0.5, 0.5), eps=0.0)
    p.grad[:] = 1.0
    opt.step()
    assert p.data[0] == pytest.approx(0.9, abs=1e-15)
    p.grad[:] = -2.0  # means (0.25 - 1) / 0.75 = -1 and (0.25 + 2) / 0.75 = 3
    opt.step()
    assert p.data[0] == pytest.approx(0.9 + 0.1 / np.sqrt(3), abs=1e-15)


def test_decoupled_weight_decay_shrinks_weights_without_a_gradient():
    p = parameter([1.0])
    train.AdamW([p], lr=0.1, weight_decay=0.5).step()
    assert p.data[0] == pytest.approx(0.95, abs=1e-15)
    with pytest.raises(ValueError, match="betas"):
        train.Adam([p], betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="eps"):
        train.Adam([p], eps=-1.0)


def test_a_state_of_another_optimizer_is_refused():
    state = train.SGD([parameter()], lr=0.1).state_dict()
    with pytest.raises(ValueError, match="the state has no mean; it is not one of Adam"):
        train.Adam([parameter()]).load_state_dict(state)


def test_no_parameters():
    with pytest.raises(ValueError, match="no parameters"):
        train.SGD([], lr=0.1)
