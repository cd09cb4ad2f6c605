"""Networks of action values: gradients against differences, torch's against NumPy's, alone and in algorithms."""

import subprocess

import numpy as np
import pytest
from corridor import PIXELS, pictured, small
from jobs import ROOT, variables

from collectives import rl
from collectives.rl.networks import NumpyValues
from collectives.rl.targets import huber


def loss_of(values, given):
    return huber(values(given[0]), *given[1:]).loss


def given(shape, actions, count=5):
    rng = np.random.default_rng(1)
    observations = rng.standard_normal((count, *shape))
    return observations, rng.integers(actions, size=count), 2 * rng.standard_normal(count), rng.random(count)


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("convolutional", [True, False])
def test_gradients(dueling, convolutional):
    rng = np.random.default_rng(0)
    if convolutional:
        net, shape = rl.convolutional((2, 36, 40), 3, rng=rng, hidden=4, dueling=dueling), (2, 36, 40)
    else:
        net, shape = rl.perceptron((4,), 3, rng=rng, hidden=(6, 5), dueling=dueling), (4,)
    for p in net.parameters():
        p.data, p.grad = p.data.astype(np.float64), p.grad.astype(np.float64)
    net.dtype = np.dtype(np.float64)
    values, sample = NumpyValues(net), given(shape, 3)
    if convolutional:
        sample[0][...] *= 255
    errors, accepted = values.backward(*sample)
    assert accepted
    np.testing.assert_allclose(errors, values(sample[0])[np.arange(5), sample[1]] - sample[2])
    for p in net.parameters():
        for place in rng.integers(p.data.size, size=3):
            kept, found = p.data.flat[place], []
            for move in (-1e-6, 1e-6):
                p.data.flat[place] = kept + move
                found.append(loss_of(values, sample))
            p.data.flat[place] = kept
            np.testing.assert_allclose(p.grad.flat[place], (found[1] - found[0]) / 2e-6, rtol=1e-4, atol=1e-8)


def test_dueling_by_hand():
    """Equation 9 of Wang et al. 2016: the advantages count by their distance from their mean."""
    layer = rl.Dueling(4, 3, rng=np.random.default_rng(0), dtype=np.float64)
    layer.value.data[:] = [[1, 2]]
    layer.advantage.data[:] = [[1, 0], [0, 1], [1, 1]]
    layer.bias.data[:] = [10, 1, 2, 3]
    found, _ = layer.forward(np.array([[3.0, 4.0, 5.0, 6.0]]))
    advantages = np.array([5 + 1, 6 + 2, 11 + 3])
    np.testing.assert_allclose(found, [21 + advantages - advantages.mean()])
    assert found.mean() == pytest.approx(21)


def test_a_loss_that_is_not_accepted_leaves_the_gradients():
    values = NumpyValues(rl.perceptron((4,), 2, rng=np.random.default_rng(0)))
    sample = given((4,), 2)
    _, accepted = values.backward(*sample, accept=lambda loss: loss != loss_of(values, sample))
    assert not accepted
    assert not any(p.grad.any() for p in values.net.parameters())


def test_flat_and_clip():
    values, other = (NumpyValues(rl.perceptron((4,), 2, rng=np.random.default_rng(seed))) for seed in (0, 1))
    other.put(values.flat())
    np.testing.assert_array_equal(other.flat(), values.flat())
    assert len(values.flat()) == values.size
    values.backward(*given((4,), 2))
    norm = np.sqrt(sum((p.grad.astype(float) ** 2).sum() for p in values.net.parameters()))
    before = values.net.parameters()[0].grad.copy()
    values.clip(2 * norm)
    np.testing.assert_array_equal(values.net.parameters()[0].grad, before)
    values.clip(norm / 4)
    np.testing.assert_allclose(values.net.parameters()[0].grad, before / 4, rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: rl.Dueling(3, 2, rng=rng),
        lambda rng: rl.Dueling(4, 0, rng=rng),
        lambda rng: rl.convolutional((4, 20, 20), 2, rng=rng),
        lambda rng: rl.convolutional((4,), 2, rng=rng),
        lambda rng: rl.convolutional((4, 40, 20), 2, rng=rng, convolutions=(8, 4, 2, 8, 10, 1)),
    ],
)
def test_bad_input(make):
    with pytest.raises(ValueError, match=r"must be|must fit|takes frames"):
        make(np.random.default_rng(0))


def test_only_pixels_are_scaled():
    """Frames of other numbers are taken as they are; an environment may have scaled them."""
    x = np.random.default_rng(0).integers(0, 256, (3, 2, 5, 8)).astype(np.uint8)
    found = []
    for dtype, seen in (("|u1", x), ("<f4", (x / 255).astype(np.float32))):
        task = pictured()._replace(form=rl.Form((2, 5, 8), dtype))
        found.append(small(**PIXELS).makers(task, 0)[0]()(seen))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)


TORCH = """
import copy
import numpy as np, torch
from collectives import rl, train
from corridor import PIXELS, corridor, pictured, small
from collectives.rl import torch as of_torch
from collectives.rl.networks import NumpyValues

torch.set_num_threads(1)
rng = np.random.default_rng(0)
for dueling in (True, False):
    mine = NumpyValues(rl.perceptron((4,), 3, rng=rng, hidden=(6, 5), dueling=dueling))
    state = torch.random.get_rng_state()
    theirs = of_torch.TorchValues(of_torch.perceptron((4,), 3, seed=1, hidden=(6, 5), dueling=dueling))
    assert torch.equal(state, torch.random.get_rng_state())
    order = [p.data for p in mine.net.parameters()]
    if dueling:  # NumPy: value, advantage, biases of both; torch: value with its bias, advantage with its bias
        value, advantage, bias = order[-3:]
        order = [*order[:-3], value, bias[:1], advantage, bias[1:]]
    theirs.put(np.concatenate([data.reshape(-1) for data in order]))
    assert theirs.size == mine.size
    x = rng.standard_normal((7, 4)).astype(np.float32)
    np.testing.assert_allclose(theirs(x), mine(x), rtol=1e-5, atol=1e-6)
    sample = x, rng.integers(3, size=7), 2 * rng.standard_normal(7), rng.random(7)
    errors, accepted = theirs.backward(*sample)
    assert accepted
    np.testing.assert_allclose(errors, mine.backward(*sample)[0], rtol=1e-5, atol=1e-6)
    grads = [p.grad.numpy().reshape(-1) for p in theirs.net.parameters()]
    np.testing.assert_allclose(grads[0], mine.net.parameters()[0].grad.reshape(-1), rtol=1e-4, atol=1e-6)
    theirs.clip(1e-3)
    norm = np.sqrt(sum((p.grad.numpy() ** 2).sum() for p in theirs.net.parameters()))
    np.testing.assert_allclose(norm, 1e-3, rtol=1e-3)

chosen = (5, 4, 2, 6, 3, 1)
for dueling in (True, False):
    mine = NumpyValues(rl.convolutional((2, 20, 24), 3, rng=rng, convolutions=chosen, hidden=7, dueling=dueling))
    net = of_torch.convolutional((2, 20, 24), 3, seed=1, convolutions=chosen, hidden=7, dueling=dueling)
    theirs = of_torch.TorchValues(net)
    order = [p.data for p in mine.net.parameters()]
    if dueling:
        value, advantage, bias = order[-3:]
        order = [*order[:-3], value, bias[:1], advantage, bias[1:]]
    theirs.put(np.concatenate([data.reshape(-1) for data in order]))
    assert theirs.size == mine.size
    x = rng.integers(0, 256, (5, 2, 20, 24)).astype(np.uint8)
    np.testing.assert_allclose(theirs(x), mine(x), rtol=1e-4, atol=1e-5)
    sample = x, rng.integers(3, size=5), 2 * rng.standard_normal(5), rng.random(5)
    np.testing.assert_allclose(theirs.backward(*sample)[0], mine.backward(*sample)[0], rtol=1e-4, atol=1e-5)
    for one, other in list(zip(theirs.net.parameters(), mine.net.parameters(), strict=False))[:6]:
        np.testing.assert_allclose(one.grad.numpy(), other.grad, rtol=1e-3, atol=1e-6)

x, found = rng.integers(0, 256, (3, 2, 5, 8)).astype(np.uint8), []
for dtype, seen in (("|u1", x), ("<f4", (x / 255).astype(np.float32))):
    frames = pictured()._replace(form=rl.Form((2, 5, 8), dtype))
    found.append(small(library="torch", **PIXELS).makers(frames, 0)[0]()(seen))
np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)
memory = corridor()._replace(form=rl.Form((2,), "|u1"))  # bytes that are no frames
values = small(library="torch").makers(memory, 0)[0]()
np.testing.assert_array_equal(values(x[0, 0, :, :2]), values(x[0, 0, :, :2].astype(np.float32)))

task = rl.Task("game", rl.Form((4, 40, 40), "|u1"), 3, None, None, float)
numbers = [rl.settings("apex", "ALE/Pong-v5", convolutions=(8, 4, 2), library=name) for name in ("numpy", "torch")]
made = [chosen.makers(task, 0)[0]() for chosen in numbers]
assert made[0].size == made[1].size and isinstance(made[1], of_torch.TorchValues)

player = rl.DQN(corridor(), small(library="torch"), 0)
before = player.values.flat()
player.advance(120)
assert player.updates == 48
assert not np.array_equal(before, player.values.flat())
again = rl.DQN(corridor(), small(library="torch"), 0)
again.load_state_dict(copy.deepcopy(player.state_dict()))  # torch's optimizer shares what it loads
player.advance(200)
again.advance(200)
assert np.array_equal(player.values.flat(), again.values.flat())


def on_rank(comm):
    player = rl.Gorila(corridor(), small(library="torch"), 0, comm, lockstep=True)
    if player.trains:
        player.advance(120)
    player.close()
    return player.values.flat()


one, other, server = train.threads.run(3, on_rank, timeout=60)
assert np.array_equal(one, other) and np.array_equal(one, server) and not np.array_equal(one, before)
print("alike")
"""


def test_torch_is_like_numpy():
    python, env = ROOT / ".venvs/torch/bin/python", variables({"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}"})
    done = subprocess.run([python, "-c", TORCH], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "alike\n", done.stderr
