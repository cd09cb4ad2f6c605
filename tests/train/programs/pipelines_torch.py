"""Pipelines of torch modules on real ranks: the weights of one process."""

import contextlib
import tempfile

import pytest
import torch
from torch_pipeline_training import COMM, LOSS, X, Y

from collectives import PeerFailure, train
from collectives.train.pipeline.pipedream_2bw import PipeDream2BW


class Block(torch.nn.Module):
    """Several operations with a skip inside, and dropout."""

    def __init__(self, width, dropout):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(torch.tanh(self.up(x))))


class Sum(torch.nn.Module):
    def forward(self, *inputs):
        return sum(inputs)


def blocks(dropout=0.0):
    torch.manual_seed(1)
    inner = [Block(8, dropout if number == 1 else 0.0) for number in range(6)]
    return [module.double() for module in (*inner, torch.nn.ReLU(), torch.nn.Linear(8, 3))]


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


def alone(forward, parameters, micro_batches=1, clip=None):
    opt = sgd(parameters)
    torch.manual_seed(7)
    for _ in range(3):
        opt.zero_grad()
        for x, y in zip(X.tensor_split(micro_batches), Y.tensor_split(micro_batches), strict=True):
            (LOSS(forward(x), y) * len(x) / len(X)).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        opt.step()


def together(net, shape, clip=None, **options):
    mesh = train.Mesh(COMM, **shape)
    pipe = train.Pipeline(net, mesh.pipeline, micro_batches=4, **options)
    pipe, opt = train.distribute(pipe, sgd(pipe.parameters()), train.AllReduce(clip_norm=clip), mesh=mesh)
    rows = torch.arange(len(X)).tensor_split(mesh.data.size)[mesh.data.rank]
    torch.manual_seed(7)
    for _ in range(3):
        opt.zero_grad()
        pipe.step(X[rows], Y[rows], LOSS)
        opt.step()
    state = pipe.state_dict()
    pipe.free()
    mesh.free()
    return state


def assert_same(state, net):
    expected = dict(net.named_parameters())
    assert state
    for name, value in state.items():
        torch.testing.assert_close(torch.from_numpy(value), expected[name].detach(), atol=1e-10, rtol=0)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"])
def test_every_schedule_trains_as_one_process(schedule):
    net = torch.nn.Sequential(*blocks())
    alone(net, list(net.parameters()), clip=0.5)
    data = 2 if COMM.size == 4 else 1
    shape = {"pipeline": COMM.size // data, "data": data}
    cut = [1, 3, 5] if schedule == "interleaved_1f1b" else [4]
    if shape["pipeline"] == 2:
        assert_same(together(torch.nn.Sequential(*blocks()), shape, clip=0.5, schedule=schedule, cut=cut), net)
    else:
        assert_same(together(torch.nn.Sequential(*blocks()), shape, clip=0.5, schedule="1f1b"), net)


@pytest.mark.parametrize("recompute", [False, True])
def test_dropout_with_recomputation(recompute):
    """Only the first stage draws, micro-batch by micro-batch, as one process does."""
    net = torch.nn.Sequential(*blocks(0.5))
    alone(net, list(net.parameters()), micro_batches=4)
    shape = {"pipeline": 2, "tasks": COMM.size // 2} if COMM.size % 2 == 0 else {"pipeline": COMM.size}
    state = together(torch.nn.Sequential(*blocks(0.5)), shape, recompute=recompute)
    assert_same(state, net)


def layers_with_buffers():
    """BatchNorm has statistics, spectral_norm has vectors that make its weight: a forward pass changes both."""
    torch.manual_seed(1)
    made = []
    for _ in range(COMM.size):
        made += [torch.nn.utils.spectral_norm(torch.nn.Linear(8, 8)), torch.nn.BatchNorm1d(8), torch.nn.Tanh()]
    return [module.double() for module in (*made, torch.nn.Linear(8, 3))]


@pytest.mark.parametrize("recompute", [False, True])
def test_a_forward_pass_changes_buffers_once(recompute):
    """Also if it is repeated, and not at all if it is measured."""
    net = torch.nn.Sequential(*layers_with_buffers())
    alone(net, list(net.parameters()), micro_batches=4)
    options = {"recompute": recompute, "cut": "time", "sample": X}
    state = together(torch.nn.Sequential(*layers_with_buffers()), {"pipeline": COMM.size}, **options)
    assert any("running_mean" in name for of_rank in COMM.allgather(list(state)) for name in of_rank)
    for name, value in state.items():
        torch.testing.assert_close(torch.from_numpy(value), net.state_dict()[name], atol=1e-10, rtol=0)


@pytest.mark.parametrize("recompute", [False, True])
def test_modules_that_work_in_place(recompute):
    def made():
        torch.manual_seed(1)
        inner = [m for _ in range(COMM.size) for m in (torch.nn.Linear(8, 8), torch.nn.ReLU(inplace=True))]
        return torch.nn.Sequential(*inner, torch.nn.Linear(8, 3)).double()

    net = made()
    alone(net, list(net.parameters()))
    cut = list(range(1, 2 * COMM.size - 1, 2))  # each stage but the first one begins with a module that works in place
    assert_same(together(made(), {"pipeline": COMM.size}, recompute=recompute, cut=cut), net)


class Odd(torch.nn.Module):
    """A layer that changes its input, or returns a pair."""

    def __init__(self, pair):
        super().__init__()
        self.layer, self.pair = torch.nn.Linear(8, 8), pair

    def forward(self, x):
        if self.pair:
            return self.layer(x), x
        return self.layer(x.add_(1))


@pytest.mark.parametrize("pair", [False, True])
def test_modules_that_are_no_blocks_are_named(pair):
    net = torch.nn.Sequential(*(Odd(pair) for _ in range(COMM.size)), torch.nn.Linear(8, 3)).double()
    pipe = train.Pipeline(net, COMM, recompute=True)
    kind = (TypeError if pair else RuntimeError) if COMM.rank == 0 else PeerFailure
    text = "returns one tensor; Odd has returned tuple" if pair else "Odd changes its input in place"
    with pytest.raises(kind, match=text):
        pipe.step(X.clone(), Y, LOSS)


@pytest.mark.parametrize("route", ["relay", "direct"])
def test_a_graph_with_skips(route):
    def graph():
        modules, made = blocks(), train.Graph()
        first = made.add(modules[0])
        second = made.add(modules[1], first)
        third = made.add(modules[2], second)
        made.add(Sum(), third, first)
        made.add(modules[7])
        return made

    one, two, three, _, last = graph().blocks
    net = torch.nn.ModuleList([one, two, three, Sum(), last])

    def forward(x):
        first = one(x)
        return last(three(two(first)) + first)

    alone(forward, list(net.parameters()))
    shape = {"pipeline": min(COMM.size, 3), "tasks": COMM.size // min(COMM.size, 3)} if COMM.size != 4 else {
        "pipeline": 2, "data": 2}  # fmt: skip
    assert_same(together(graph(), shape, route=route), net)


def one_step_late(batches):
    """The weights of one process whose gradients are those of the weights before the last step."""
    net = torch.nn.Sequential(*blocks())
    opt = sgd(net.parameters())
    now = before = [p.detach().clone() for p in net.parameters()]
    for x, y in batches:
        for p, weight in zip(net.parameters(), before, strict=True):
            p.data.copy_(weight)
        opt.zero_grad()
        LOSS(net(x), y).backward()
        for p, weight in zip(net.parameters(), now, strict=True):
            p.data.copy_(weight)
        opt.step()
        before, now = now, [p.detach().clone() for p in net.parameters()]
    return net


def test_a_stream_without_a_flush():
    """Micro-batches that began with old weights are differentiated with them, which torch would refuse otherwise."""
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 14)] * 2
    schedule = PipeDream2BW(accumulate=COMM.size)
    pipe = train.Pipeline(torch.nn.Sequential(*blocks()), COMM, schedule=schedule, micro_batches=COMM.size)
    losses = pipe.stream(batches, LOSS, sgd(pipe.parameters()))
    assert len(losses) == len(batches)
    assert_same(pipe.state_dict(), one_step_late(batches))
    pipe.free()


def test_a_branch_that_is_not_taken_has_a_gradient_of_zeros():
    """Not that of the step before."""

    class Branches(torch.nn.Module):
        """Takes both branches in the first step, one in the second."""

        def __init__(self):
            super().__init__()
            self.one, self.other, self.step = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), 0

        def forward(self, x):
            return self.one(x) if self.step else self.one(x) + self.other(x)

    def made():
        torch.manual_seed(2)
        return torch.nn.Sequential(*(Branches().double() for _ in range(COMM.size)), torch.nn.Linear(8, 3).double())

    def train_steps(net, opt, step):
        for number in range(2):
            for block in net:
                block.step = number
            opt.zero_grad()
            step()
            opt.step()

    alone, net = made(), made()
    train_steps(alone, torch.optim.SGD(alone.parameters(), 0.1), lambda: LOSS(alone(X), Y).backward())
    mesh = train.Mesh(COMM, pipeline=COMM.size)
    pipe = train.Pipeline(net, mesh.pipeline, micro_batches=1)
    strategy = train.AllReduce(average=False)
    pipe, opt = train.distribute(pipe, torch.optim.SGD(pipe.parameters(), 0.1), strategy, mesh=mesh)
    train_steps(net, opt, lambda: pipe.step(X, Y, LOSS))
    assert_same(pipe.state_dict(), alone)


@pytest.mark.parametrize("into", ["the pipeline", "its blocks"])
def test_what_is_loaded_stays(into):
    """DiLoCo took what was loaded into a block for the steps of a round, and moved on from there."""
    mesh = train.Mesh(COMM, data=COMM.size)
    net = torch.nn.Sequential(*blocks())
    pipe = train.Pipeline(net, mesh.pipeline, micro_batches=2)
    pipe, opt = train.distribute(pipe, torch.optim.SGD(pipe.parameters(), 0.0), train.DiLoCo(every=2), mesh=mesh)
    if into == "the pipeline":
        pipe.load_state_dict({name: array * 0 + 2 for name, array in pipe.state_dict().items()})
    else:
        for block in net:
            block.load_state_dict({name: torch.full_like(array, 2.0) for name, array in block.state_dict().items()})
    for _ in range(2):
        opt.zero_grad()
        pipe.step(X, Y, LOSS)
        opt.step()
    assert all((array == 2).all() for array in pipe.state_dict().values())


@pytest.mark.parametrize("kind", [sgd, lambda parameters: torch.optim.Adam(parameters, 0.01)])
def test_a_run_goes_on_on_another_mesh(kind):
    """With the optimizer's state, from stages to whole models and back."""

    def trained(shape, epochs, out=None):
        mesh = train.Mesh(COMM, **shape)
        pipe = train.Pipeline(torch.nn.Sequential(*blocks()), mesh.pipeline, micro_batches=2)
        pipe, opt = train.distribute(pipe, kind(pipe.parameters()), mesh=mesh)
        data = train.Loader((X, Y), batch=6, seed=0, comm=mesh.data)
        state = {"net": pipe, "opt": opt, "data": data}
        run = train.Run(out, mesh=mesh, state=state, checkpoint_every=3 if out else None)
        for x, y in run.steps(data, epochs=epochs):
            opt.zero_grad()
            pipe.step(x, y, LOSS)
            opt.step()
        return pipe.state_dict(), run.resumed

    stages, whole = {"pipeline": COMM.size}, {"data": COMM.size}
    expected, _ = trained(whole, 3)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory()) if COMM.rank == 0 else None
        out = COMM.bcast(folder)
        assert trained(stages, 1, out)[1] is None
        assert trained(whole, 2, out)[1] == 4
        found, resumed = trained(stages, 3, out)
        COMM.Barrier()
    assert resumed == 8
    for name, array in found.items():
        assert abs(array - expected[name]).max() < 1e-10
