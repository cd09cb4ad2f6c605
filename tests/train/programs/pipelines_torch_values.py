"""Pipelines of torch modules on real ranks: values, gradients and losses of all kinds, as in one process."""

import pytest
import torch
from torch_pipeline_training import COMM, LOSS, X, Y

from collectives import PeerFailure, train
from collectives.train.pipeline.pipedream_2bw import PipeDream2BW


class Calls(torch.nn.Module):
    """A function of its inputs, and of modules that are given."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.inner = function, torch.nn.ModuleList(modules)

    def forward(self, *inputs):
        return self.function(*inputs, *self.inner)


def chain(*modules):
    return torch.nn.Sequential(*modules).double()


def linear(outputs=8):
    return torch.nn.Linear(8, outputs)


def through(made, cut=None, schedule="1f1b", recompute=False):
    """Compare the gradients of a pipeline, made by `made` after a seed, to those of one process."""
    torch.manual_seed(3)
    alone = made()
    for x, y in zip(X.tensor_split(4), Y.tensor_split(4), strict=True):
        (LOSS(alone(x), y) * len(x) / len(X)).backward()
    torch.manual_seed(3)
    pipe = train.Pipeline(
        made(), COMM, micro_batches=4, schedule=schedule, cut=cut or "parameters", recompute=recompute
    )
    pipe.step(X, Y, LOSS)
    known = dict(alone.named_parameters())
    for name, parameter in pipe.named_parameters():
        expected, found = known[name].grad, parameter.grad
        zeros = torch.zeros_like(parameter)
        torch.testing.assert_close(
            zeros if found is None else found.to_dense(), zeros if expected is None else expected.to_dense(),
            atol=1e-10, rtol=0,
        )  # fmt: skip
    pipe.free()


def whole_numbers():
    same, largest = Calls(lambda x: x), Calls(lambda x: x.argmax(1))
    return chain(*(linear() for _ in range(COMM.size)), same, largest, torch.nn.Embedding(8, 8), linear(3))


def complex_numbers():
    joined = Calls(lambda x, one, other: torch.complex(one(x), other(x)).conj(), linear(), linear())
    square, back = Calls(lambda z: z * z.conj() + z * z), Calls(lambda z: z.real + z.imag)
    return chain(*(linear() for _ in range(COMM.size - 1)), joined, square, back, linear(3))


@pytest.mark.parametrize(("schedule", "recompute"), [("1f1b", False), ("1f1b", True), ("zero_bubble", False)])
@pytest.mark.parametrize("made", [whole_numbers, complex_numbers])
def test_values_without_a_gradient_and_complex_ones_between_blocks(made, schedule, recompute):
    """Integers have none, nor has what they are made of. They are cut off from the blocks before at each place."""
    for first in range(COMM.size - 1, COMM.size + 3):
        through(made, [*range(1, COMM.size - 1), first], schedule, recompute)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_sparse_gradients(schedule):
    def made():
        inner = [linear() for _ in range(COMM.size - 1)]
        return chain(Calls(lambda x: x.argmax(1)), torch.nn.Embedding(8, 8, sparse=True), *inner, linear(3))

    through(made, [*range(2, COMM.size + 1)], schedule)


@pytest.mark.parametrize("schedule", ["gpipe", "zero_bubble"])
@pytest.mark.parametrize("recompute", [False, True])
def test_what_a_backward_pass_needs_must_not_change(schedule, recompute):
    """As in one process, where torch raises an error."""
    wrong = Calls(lambda x, layer: torch.sigmoid(layer(x)).mul_(2), linear())
    net = chain(*(linear() for _ in range(COMM.size - 1)), wrong, linear(3))
    with pytest.raises(RuntimeError, match="inplace"):
        LOSS(net(X), Y).backward()
    pipe = train.Pipeline(net, COMM, schedule=schedule, micro_batches=2, recompute=recompute)
    with pytest.raises((RuntimeError, PeerFailure), match="Calls needs for its backward pass was changed in place"):
        pipe.step(X, Y, LOSS)


def test_a_first_block_may_change_its_part_of_the_batch():
    """The other parts are not changed by that."""

    def made():
        return chain(Calls(lambda x: x.mul_(1)), *(linear() for _ in range(COMM.size)), linear(3))

    through(made, schedule="gpipe")


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble", "stream"])
def test_parameters_may_be_frozen_between_steps(schedule):
    net = chain(*(linear() for _ in range(COMM.size)), linear(3))
    stream = schedule == "stream"
    kind = PipeDream2BW(accumulate=COMM.size) if stream else schedule
    pipe = train.Pipeline(net, COMM, schedule=kind, micro_batches=COMM.size)
    before = pipe.state_dict()
    for layer in net:
        layer.bias.requires_grad_(False)
    opt = torch.optim.SGD(pipe.parameters(), 0.1)
    if stream:
        pipe.stream([(X, Y)] * 4, LOSS, opt)
    else:
        pipe.step(X, Y, LOSS)
        opt.step()
    for name, value in pipe.state_dict().items():
        assert (value == before[name]).all() == name.endswith("bias"), name
    pipe.free()


def test_a_distributed_pipeline_says_which_parameters_are_frozen():
    """As a network that is not cut: with gradients of zeros, momentum would go on moving them."""
    mesh = train.Mesh(COMM, pipeline=COMM.size)
    pipe = train.Pipeline(chain(*(linear() for _ in range(COMM.size - 1)), linear(3)), mesh.pipeline, micro_batches=2)
    pipe, opt = train.distribute(pipe, torch.optim.SGD(pipe.parameters(), 0.1, momentum=0.9), mesh=mesh)
    pipe.step(X, Y, LOSS)
    opt.step()
    opt.zero_grad()
    for name, parameter in pipe.named_parameters():
        parameter.requires_grad_(not name.endswith("bias"))
    pipe.step(X, Y, LOSS)
    with pytest.raises(RuntimeError, match="bias"):
        opt.step()
    pipe.free()


@pytest.mark.parametrize(
    ("loss_fn", "told"),
    [
        (lambda output, y: 1.0, "not float"),
        (lambda output, y: torch.ones(()), "without a gradient"),
        (lambda output, y: (output > 0).sum(), "int64 without a gradient"),
        (lambda output, y: LOSS(output, y, reduction="none"), r"not one of shape \(11,\)"),
    ],
)
def test_what_is_no_loss_is_named(loss_fn, told):
    pipe = train.Pipeline(chain(*(linear() for _ in range(COMM.size)), linear(3)), COMM, micro_batches=2)
    with pytest.raises((TypeError, PeerFailure), match=f"a loss function returns one number .*{told}"):
        pipe.step(X, Y, loss_fn)
