"""Programs for torch that do what a library would rather not have, on all ranks: each is right, or an error on all.

Run on any number of ranks: ``mpiexec -n 3 python -m pytest tests/train/programs/torch_hostile.py``.
"""

import copy
import io
import threading
import time

import numpy as np
import pytest
import torch
from torch_training import (
    CLASSES,
    COMM,
    INPUTS,
    NEAR,
    OPTIMIZERS,
    RANK,
    SIZE,
    X,
    Y,
    alone,
    backward,
    flat,
    mine,
    mlp,
    steps,
    together,
)

from collectives import train


def clip(net):
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)


def halve(net):
    for p in net.parameters():
        p.grad = p.grad / 2


def replaced(net):
    net[0].weight.grad = None


@pytest.mark.parametrize("change", [clip, halve, replaced])
@pytest.mark.parametrize("rank", sorted({0, SIZE - 1}))
def test_gradients_that_are_changed_on_their_way_are_an_error_on_all_ranks(change, rank):
    net, opt = together("sgd", 1)
    before = flat(net)
    backward(net, *mine())
    if rank == RANK:
        change(net)
    with pytest.raises(RuntimeError, match=r"gradient of 0.weight was changed between backward\(\) and opt.step\(\)"):
        opt.step()
    assert torch.equal(flat(net), before)
    net, opt = together("sgd", 6)
    assert (flat(net) - alone("sgd")).abs().max() < NEAR


@pytest.mark.parametrize("change", [clip, halve])
def test_after_a_wait_gradients_may_be_changed(change):
    net, opt = together("sgd", 0)
    plain = mlp()
    other = OPTIMIZERS["sgd"](plain.parameters())
    for _ in range(4):
        opt.zero_grad()
        backward(net, *mine())
        opt.strategy.wait()
        other.zero_grad()
        backward(plain, X, Y)
        for p, q in zip(net.parameters(), plain.parameters(), strict=True):
            assert (p.grad - q.grad).abs().max() < NEAR
        for one in (net, plain):
            change(one)
        opt.step()
        other.step()
    assert (flat(net) - flat(plain)).abs().max() < NEAR


def test_where_no_parameter_has_the_mean_gradient_a_wait_is_an_error():
    _, opt = together("sgd", 1, shard=1)
    with pytest.raises(RuntimeError, match="not in p.grad"):
        opt.strategy.wait()
    _, opt = together("sgd", 1, dtype=torch.bfloat16, compression=train.Int8())
    with pytest.raises(RuntimeError, match="not in p.grad"):
        opt.strategy.wait()


def adversaries(share, comm=None):
    """The parameters of a generator and a discriminator after some steps: one `backward` goes through both of them, and
    only one makes a step then. With `comm` all ranks train them."""
    torch.manual_seed(3)
    generator, discriminator = torch.nn.Linear(4, INPUTS).double(), torch.nn.Linear(INPUTS, 1).double()
    opt_g, opt_d = (torch.optim.SGD(net.parameters(), 0.05) for net in (generator, discriminator))
    if comm is not None:
        for net, opt in ((generator, opt_g), (discriminator, opt_d)):
            train.distribute(net, opt, train.AllReduce(bucket_bytes=64), comm=comm)
    real, noise = X[share], Y[share, None].double().expand(-1, 4)
    for _ in range(5):
        opt_d.zero_grad()
        (discriminator(generator(noise).detach()) - discriminator(real)).mean().backward()
        opt_d.step()
        opt_g.zero_grad()
        discriminator(generator(noise)).square().mean().backward()  # the discriminator gets gradients, too
        opt_g.step()
    return torch.cat([flat(generator), flat(discriminator)])


def test_gradients_that_no_step_uses_are_dropped_by_zero_grad():
    apart = adversaries(slice(None))
    assert (adversaries(slice(RANK, None, SIZE), COMM) - apart).abs().max() < NEAR


@pytest.mark.parametrize("rank", sorted({0, SIZE - 1}))
@pytest.mark.parametrize("shard", [0, 2])
def test_a_step_that_one_rank_leaves_out_is_an_error_on_all(rank, shard):
    if SIZE == 1:
        return
    net, opt = together("sgd", 1, shard=shard)
    before = flat(net)
    backward(net, *mine())
    with pytest.raises(RuntimeError, match=r"ranks called opt.step\(\), the others opt.zero_grad\(\)"):
        opt.zero_grad() if rank == RANK else opt.step()
    assert torch.equal(flat(net), before)
    opt.zero_grad()
    steps(net, opt, 5)
    assert (flat(net) - alone("sgd")).abs().max() < NEAR


class Fails(torch.autograd.Function):
    """The identity, whose derivative raises."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("here")


def test_a_backward_pass_that_fails_on_one_rank_and_is_caught_is_an_error_on_all():
    net, opt = together("sgd", 1)
    before = flat(net)
    hidden = net[1](net[0](mine()[0]))
    loss = net[2](Fails.apply(hidden) if RANK == 0 else hidden).square().sum()
    if RANK == 0:
        with pytest.raises(ArithmeticError, match="here"):
            loss.backward()
    else:
        loss.backward()
    with pytest.raises(RuntimeError, match=r"without a backward\(\) through 0.weight, 0.bias"):
        opt.step()
    assert torch.equal(flat(net), before)
    opt.zero_grad()
    steps(net, opt, 5)
    assert (flat(net) - alone("sgd")).abs().max() < NEAR


def test_a_parameter_that_is_no_longer_frozen_is_an_error_on_all_ranks():
    net = mlp()
    net[0].requires_grad_(False)
    net, opt = train.distribute(net, OPTIMIZERS["sgd"](net.parameters()), comm=COMM)
    steps(net, opt, 1)
    net[0].requires_grad_(RANK == 0)
    backward(net, *mine())
    with pytest.raises(RuntimeError, match="0.weight, 0.bias required no gradient when distribute was called"):
        opt.step()


def test_a_parameter_may_be_frozen_for_some_steps():
    net, opt = together("sgd", 0)
    net[0].requires_grad_(False)
    backward(net, *mine())
    with pytest.raises(RuntimeError, match=r"without a backward\(\) through 0.weight, 0.bias"):
        opt.step()
    net[0].requires_grad_(True)
    opt.zero_grad()
    steps(net, opt, 6)
    assert (flat(net) - alone("sgd")).abs().max() < NEAR


def test_groups_cannot_be_added_later():
    net, opt = together("sgd", 1)
    with pytest.raises(RuntimeError, match="add all groups before distribute"):
        opt.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    assert len(opt.param_groups) == 1


class Odd(torch.nn.Module):
    """A scalar, an empty parameter, one on read-only memory, one with gaps, one that is frozen, and a network's own."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.nothing = torch.nn.Linear(0, CLASSES).double()
        values = np.random.default_rng(0).standard_normal((INPUTS, CLASSES))
        values.flags.writeable = False
        self.read_only = torch.nn.Parameter(torch.from_numpy(values))
        self.gaps = torch.nn.Parameter(torch.linspace(-1, 1, 3 * CLASSES, dtype=torch.float64)[::3])
        self.frozen = torch.nn.Parameter(torch.ones(CLASSES, dtype=torch.float64), requires_grad=False)

    def forward(self, x):
        return self.scale * (x @ self.read_only) + self.gaps + self.frozen + self.nothing(x[:, :0])


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable", "ignore:Initializing zero-element")
@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("bucket_bytes", [1, None])
def test_odd_parameters(shard, bucket_bytes):
    torch.manual_seed(0)
    net, plain = Odd(), Odd()
    plain.load_state_dict(net.state_dict())
    opt, other = (torch.optim.SGD(one.parameters(), 0.1, momentum=0.9) for one in (net, plain))
    strategy = train.AllReduce(shard=shard, bucket_bytes=bucket_bytes)
    net, opt = train.distribute(net, opt, strategy, comm=COMM)
    for _ in range(4):
        for one, optimizer, (x, y) in ((net, opt, mine()), (plain, other, (X, Y))):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(one(x), y).backward()
            optimizer.step()
    assert (flat(net) - flat(plain)).abs().max() < NEAR
    assert net.scale.shape == ()


def test_networks_without_trainable_parameters_are_errors_on_all_ranks():
    net = mlp()
    for p in net.parameters():
        p.requires_grad_(RANK < SIZE - 1)
    with pytest.raises(ValueError, match="no parameter of this network requires a gradient"):
        train.distribute(net, OPTIMIZERS["sgd"](net.parameters()), comm=COMM)


def test_training_in_another_thread():
    found = []

    def run():
        found.append(flat(together("adamw", 6)[0]))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert (found[0] - alone("adamw")).abs().max() < NEAR


class Samples(torch.utils.data.Dataset):
    """This rank's samples."""

    def __len__(self):
        return len(mine()[0])

    def __getitem__(self, i):
        return mine()[0][i], mine()[1][i]


def test_batches_of_forked_workers():
    """The workers are forked after the buckets were made in shared memory."""
    net, opt = together("sgd", 0)
    for _ in range(6):
        x, y = mine()
        if len(x):
            workers = torch.utils.data.DataLoader(Samples(), len(x), num_workers=1, multiprocessing_context="fork")
            ((x, y),) = workers
        opt.zero_grad()
        backward(net, x, y)
        opt.step()
    assert (flat(net) - alone("sgd")).abs().max() < NEAR


def test_late_ranks():
    net, opt = together("sgd", 0)
    for step in range(6):
        time.sleep(0.1 * (RANK == step % SIZE))
        opt.zero_grad()
        backward(net, *mine())
        time.sleep(0.1 * (RANK == (step + 1) % SIZE))
        opt.step()
    assert (flat(net) - alone("sgd")).abs().max() < NEAR


def test_a_copy_of_the_network_is_a_network_of_its_own():
    """As for an average of the weights of several steps."""
    net, opt = together("sgd", 3)
    copied = copy.deepcopy(net)
    before = flat(copied)
    steps(net, opt, 3)
    assert torch.equal(flat(copied), before)
    backward(copied, X, Y)
    assert all(p.grad is not None for p in copied.parameters())
    steps(net, opt, 0)
    assert (flat(net) - alone("sgd")).abs().max() < NEAR


def test_the_state_of_the_network_is_one_of_plain_torch():
    net, _ = together("sgd", 3)
    plain = mlp(seed=9)
    plain.load_state_dict(net.state_dict())
    assert torch.equal(flat(plain), flat(net))


@pytest.mark.filterwarnings("error")
def test_two_runs_and_two_strategies_in_turns(tmp_path):
    """On one communicator; the loops are entered and left alternately."""

    def run(name):
        net, opt = together("sgd", 0)
        data = train.Loader((X, Y), 8, comm=COMM)
        run = train.Run(COMM.bcast(str(tmp_path)), comm=COMM, state={"net": net, "opt": opt, "data": data}, name=name)
        for x, y in run.steps(data, epochs=3):
            opt.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            run.log(loss=loss)
            yield
        yield flat(net)

    one, two, three = run("one"), run("two"), run("three")
    a, b = list(zip(one, two, strict=True))[-1]
    assert torch.equal(a, b)
    assert torch.equal(a, list(three)[-1])


def test_a_loop_that_is_left_by_break_can_be_entered_again():
    net, opt = together("sgd", 0)
    data = train.Loader((X, Y), 8, seed=1, comm=COMM)
    run = train.Run(comm=COMM, state={"net": net, "opt": opt, "data": data}, progress="lines")
    seen = turns = 0
    while data.epoch < 2:
        for x, y in run.steps(data, epochs=2):
            opt.zero_grad()
            backward(net, x, y)
            opt.step()
            seen += COMM.allreduce(len(x))
            turns += 1
            if turns % 3 == 0:
                break
    assert train.same_bits(net, COMM)
    assert seen == 2 * len(X)


def test_a_batch_of_one_sample_for_all_ranks():
    net, opt = together("sgd", 0)
    plain = mlp()
    other = OPTIMIZERS["sgd"](plain.parameters())
    for x, y in train.Loader((X[:5], Y[:5]), 1, comm=COMM):
        opt.zero_grad()
        backward(net, x, y)
        opt.step()
    for x, y in train.Loader((X[:5], Y[:5]), 1, comm=train.communicator(COMM.Split(RANK))):
        other.zero_grad()
        backward(plain, x, y)
        other.step()
    assert (flat(net) - flat(plain)).abs().max() < NEAR


def test_a_network_is_distributed_once_and_its_copies_are_free():
    net = mlp()
    net, opt = train.distribute(net, torch.optim.SGD(net.parameters(), 0.1), comm=COMM)
    with pytest.raises(ValueError, match="distributed already"):
        train.distribute(net, torch.optim.SGD(net.parameters(), 0.1), comm=COMM)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    for made in (copy.deepcopy(net), torch.load(file, weights_only=False)):
        made(X[:2]).sum().backward()  # which the strategy does not notice
        train.distribute(made, torch.optim.SGD(made.parameters(), 0.1), comm=COMM)
        assert all(p.data_ptr() != q.data_ptr() for p, q in zip(made.parameters(), net.parameters(), strict=True))
    backward(net, *mine())
    opt.step()


def test_parameters_that_share_memory_are_refused():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    net[1].weight.data = net[0].weight.data
    with pytest.raises(ValueError, match="0.weight and 1.weight share memory"):
        train.distribute(net, torch.optim.SGD(net.parameters(), 0.1), comm=COMM)


def test_optimizers_that_need_whole_parameters_are_not_sharded():
    for options, net in (({"shard": 1}, mlp()), ({}, mlp().bfloat16())):
        with pytest.raises(ValueError, match="Adafactor needs whole parameters"):
            train.distribute(net, torch.optim.Adafactor(net.parameters()), train.AllReduce(**options), comm=COMM)
