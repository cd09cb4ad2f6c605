"""Strategies that exchange parameters: torch's networks end where NumPy's do.

Run on any number of ranks: ``mpiexec -n 3 python -m pytest tests/train/programs/averaging_torch.py``.
"""

import copy
import functools

import numpy as np
import pytest
import torch
from local_training import batch, begin, even, flat, momentum, network, steps, uneven
from mpi4py import MPI

import collectives
from collectives import train

torch.set_num_threads(1)
COMM = collectives.Communicator(MPI.COMM_WORLD)
NEAR = 1e-12
STRATEGIES = {
    "local_sgd": lambda: train.LocalSGD(3),
    "merged": lambda: train.LocalSGD(3, start=2, stop=8, merge_optimizer=True),
    "diloco": lambda: train.DiLoCo(3),
    "fedavg": lambda: train.FedAvg(3, 0.6),
    "easgd": lambda: train.EASGD(3),
    "easgd by rho": lambda: train.EASGD(3, rho=0.5),
    "neighbor_averaging": train.NeighborAveraging,
    "push_sum": train.PushSum,
}
OPTIMIZERS = {
    "momentum": (momentum, lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01)),
    "adam": (lambda p: train.Adam(p, 0.01), lambda p: torch.optim.Adam(p, 0.01)),
}


def torch_network(dtype=torch.float64):
    """The same network with the same parameters as NumPy's."""
    sizes = [8, 128, 64, 3]
    layers = [torch.nn.Flatten()]
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers[:-1]).to(torch.float64)
    net.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in network().state_dict().items()})
    return net.to(dtype)


def torch_flat(net):
    return np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])


def torch_steps(net, opt, first, last):
    for step in range(first, last):
        x, y = (torch.from_numpy(part) for part in batch(step, COMM.rank, uneven(COMM.size)))
        opt.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        opt.step()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_torchs_networks_end_where_numpys_do(name, optimizer):
    """One of several ranks has no samples: its loss is not a number, and its gradient counts as zeros."""
    numpys, torchs = OPTIMIZERS[optimizer]
    net, opt = begin(COMM, STRATEGIES[name](), numpys)
    steps(net, opt, COMM, 0, 10, uneven)
    other = torch_network()
    other, torch_opt = train.distribute(other, torchs(other.parameters()), STRATEGIES[name](), comm=COMM)
    torch_steps(other, torch_opt, 0, 10)
    assert np.abs(flat(net) - torch_flat(other)).max() < NEAR
    opt.strategy.finish()
    torch_opt.strategy.finish()
    assert np.abs(flat(net) - torch_flat(other)).max() < NEAR


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_saved_state_goes_on_with_the_same_bits(name):
    net = torch_network()
    net, opt = train.distribute(net, OPTIMIZERS["adam"][1](net.parameters()), STRATEGIES[name](), comm=COMM)
    torch_steps(net, opt, 0, 5)
    again = torch_network()
    again, other = train.distribute(again, OPTIMIZERS["adam"][1](again.parameters()), STRATEGIES[name](), comm=COMM)
    for thing, saved in ((again, net), (other, opt), (other.strategy, opt.strategy)):
        thing.load_state_dict(copy.deepcopy(saved.state_dict()))
    torch_steps(net, opt, 5, 11)
    torch_steps(again, other, 5, 11)
    assert (torch_flat(net) == torch_flat(again)).all()


class Scaled(torch.nn.Module):
    """A linear layer with a factor, a parameter without dimensions."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
        self.layer = torch.nn.Linear(8, 3, dtype=torch.float64)

    def forward(self, x):
        return self.scale * self.layer(x)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.NAdam, torch.optim.ASGD, torch.optim.Rprop])
def test_what_is_kept_of_a_scalar_is_merged_and_counters_are_not(kind):
    torch.manual_seed(1)
    net = Scaled()
    strategy = train.LocalSGD(2, merge_optimizer=True)
    net, opt = train.distribute(net, kind(net.parameters(), lr=0.01), strategy, comm=COMM)
    torch_steps(net, opt, 0, 2)
    kept = {key: float(value) for key, value in opt.state[net.scale].items()}
    assert all(other == kept for other in COMM.allgather(kept))
    assert kept["step"] == 2
    arrays = {"Adam": 2, "NAdam": 2, "ASGD": 1, "Rprop": 2}[kind.__name__]
    assert len(opt.strategy.handle.kept()) == 3 * arrays


def test_asynchronous_pairs_preserve_the_mean():
    net = torch_network()
    opt = torch.optim.SGD(net.parameters(), 0.0)
    net, opt = train.distribute(net, opt, train.ADPSGD(final_average=False), comm=COMM)
    for data in opt.strategy.parameters:
        data += np.random.default_rng(COMM.rank).standard_normal(len(data))
    before = COMM.allreduce(torch_flat(net)) / COMM.size
    torch_steps(net, opt, 0, 20)
    opt.strategy.finish()
    assert np.abs(COMM.allreduce(torch_flat(net)) / COMM.size - before).max() < NEAR
    assert opt.strategy.exchanges > 0 or COMM.size == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [*STRATEGIES, "ad_psgd"])
def test_parameters_of_16_bits_are_refused(name, dtype):
    net = torch_network(dtype)
    strategy = train.ADPSGD() if name == "ad_psgd" else STRATEGIES[name]()
    with pytest.raises(ValueError, match=r"parameter 1\.weight has 16 bits"):
        train.distribute(net, torch.optim.SGD(net.parameters(), 0.1), strategy, comm=COMM)


def drop(net):
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.0)


def replace(net):
    for p in net.parameters():
        p.grad = p.grad * 0


@pytest.mark.parametrize("change", [drop, replace])
@pytest.mark.parametrize("strategy", [*STRATEGIES.values(), train.NoComm, train.ADPSGD, train.PeerAsync])
def test_gradients_of_a_ranks_own_may_be_changed_before_the_step(strategy, change):
    net = torch_network()
    if strategy is STRATEGIES["merged"]:
        strategy = functools.partial(train.LocalSGD, 3, stop=8)
    net, opt = train.distribute(net, torch.optim.SGD(net.parameters(), 0.1), strategy(), comm=COMM)
    for step in range(3):
        x, y = (torch.from_numpy(part) for part in batch(step, COMM.rank, uneven(COMM.size)))
        opt.zero_grad()
        with opt.strategy.no_sync():
            torch.nn.functional.cross_entropy(net(x), y).backward()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        change(net)
        opt.step()
    opt.strategy.close()
    assert np.abs(torch_flat(net) - torch_flat(torch_network())).max() < NEAR


@pytest.mark.parametrize("name", ["diloco", "easgd"])
def test_what_is_loaded_into_a_module_stays(name):
    """It was taken for a step of this round, or drawn to the centre before it."""
    net = torch_network()
    net, opt = train.distribute(net, torch.optim.SGD(net.parameters(), 0.0), STRATEGIES[name](), comm=COMM)
    before = torch_flat(net[3])
    net[1].load_state_dict({key: torch.full_like(value, 2.0) for key, value in net[1].state_dict().items()})
    torch_steps(net, opt, 0, 8)
    opt.strategy.finish()
    assert np.abs(torch_flat(net[1]) - 2).max() < NEAR
    assert np.abs(torch_flat(net[3]) - before).max() < NEAR


class Weighted(torch.nn.Module):
    """A network with the logarithm of a weight of its loss, whose gradient is no number where there are no samples."""

    def __init__(self):
        super().__init__()
        self.net, self.weight = torch_network(), torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize("micro", [False, True])
@pytest.mark.parametrize("name", ["no_comm", "local_sgd", "easgd"])
def test_a_rank_without_samples_goes_on_with_numbers(name, micro):
    net = Weighted()
    strategy = train.NoComm() if name == "no_comm" else STRATEGIES[name]()
    net, opt = train.distribute(net, torch.optim.SGD(net.parameters(), 0.1), strategy, comm=COMM)

    def backward(x, y):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        (torch.exp(-net.weight) * loss + net.weight).backward()

    for step in range(4):
        x, y = (torch.from_numpy(part) for part in batch(step, COMM.rank, uneven(COMM.size)))
        opt.zero_grad()
        if micro:
            with opt.strategy.no_sync():
                backward(x, y)
        backward(x, y)
        opt.step()
    assert all(torch.isfinite(p).all() for p in net.parameters())
    if name == "no_comm" and COMM.size > 1 and COMM.rank == COMM.size - 1:
        assert (torch_flat(net.net) == torch_flat(torch_network())).all()


def test_a_gradient_is_not_changed_before_all_of_it_is_there():
    """The first layers have a gradient in the first micro-batch only. So their bucket is handed over by the step."""
    net = torch_network()
    net, opt = train.distribute(net, torch.optim.SGD(net.parameters(), 0.1), train.NoComm(), comm=COMM, unused="zero")
    x, y = (torch.from_numpy(part) for part in batch(0, COMM.rank, even(COMM.size)))
    with opt.strategy.no_sync():
        torch.nn.functional.cross_entropy(net(x), y).backward()
    torch.nn.functional.cross_entropy(net[-1](net[:-1](x).detach()), y).backward()
    drop(net)
    with pytest.raises(RuntimeError, match=r"gradient of 5\.weight was changed before that of all micro-batches"):
        opt.step()


@pytest.mark.parametrize(
    "strategy", [lambda: train.LocalSGD(3, start=2), lambda: train.ParameterServer(1, beside=True)]
)
def test_what_to_do_instead_is_said_where_gradients_are_sent(strategy):
    net = torch_network()
    net, opt = train.distribute(net, torch.optim.SGD(net.parameters(), 0.1), strategy(), comm=COMM)
    x, y = (torch.from_numpy(part) for part in batch(0, COMM.rank, even(COMM.size)))
    torch.nn.functional.cross_entropy(net(x), y).backward()
    drop(net)
    with pytest.raises(RuntimeError, match=r"on its way; change it in a hook of the parameter \(register_hook\)"):
        opt.step()
    opt.zero_grad()
    opt.strategy.close()
