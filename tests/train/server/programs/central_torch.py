"""torch's networks and optimizers with parameter servers, on real ranks: the same as with AllReduce."""

import numpy as np
import pytest
import torch
from mpi4py import MPI

import collectives
from collectives import train

COMM = collectives.Communicator(MPI.COMM_WORLD)
OPTIMIZERS = {
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01),
}


def trained(comm, strategy, optimizer, folder=None, epochs=3):
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3)).double()
    first, *others = net.parameters()
    opt = OPTIMIZERS[optimizer]([{"params": [first], "lr": 0.02}, {"params": others}])
    rng = np.random.default_rng(3)
    x = torch.as_tensor(rng.standard_normal((50, 6)))
    data = train.Loader((x, (x[:, 0] > x[:, 1]).long()), 12, seed=1, comm=comm)
    net, opt = train.distribute(net, opt, strategy, comm=comm)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    state = {"net": net, "opt": opt, "data": data, "schedule": schedule}
    run = train.Run(folder, comm=comm, state=state, checkpoint_every=None if folder is None else 4, progress="lines")
    for a, b in run.steps(data, epochs=epochs):
        opt.zero_grad()
        torch.nn.functional.cross_entropy(net(a), b, reduction="sum" if not len(b) else "mean").backward()
        opt.step()
        schedule.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()]).numpy().copy()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("how", [{"servers": 1}, {"servers": 2, "beside": True}])
def test_a_synchronous_server_does_what_all_reduce_does(optimizer, how):
    workers = COMM.size if how.get("beside") else COMM.size - 1
    among = COMM.Split(int(COMM.rank < workers), COMM.rank)
    expected = COMM.bcast(trained(among, train.AllReduce(), optimizer), root=0)
    found = trained(COMM, train.ParameterServer(bucket_bytes=300, **how), optimizer)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_checkpoint_goes_on_with_another_number_of_servers(optimizer, tmp_path_factory):
    folder = COMM.bcast(str(tmp_path_factory.mktemp("run")), root=0)
    whole = trained(COMM, train.ParameterServer(1, bucket_bytes=300), optimizer, epochs=4)
    trained(COMM, train.ParameterServer(2, bucket_bytes=300), optimizer, folder, epochs=2)
    found = trained(COMM, train.ParameterServer(1, bucket_bytes=300), optimizer, folder, epochs=4)
    np.testing.assert_allclose(found, whole, atol=1e-12)


def test_a_learning_rate_that_is_a_tensor_is_not_the_servers():
    """Which set their own one to a share of it, in place."""
    net = torch.nn.Linear(2, 1).double()
    torch.nn.init.zeros_(net.weight)
    strategy = train.SSP(1, beside=True)
    net, opt = train.distribute(net, torch.optim.SGD(net.parameters(), lr=torch.tensor(0.5)), strategy, comm=COMM)
    for _ in range(4):
        opt.zero_grad()
        net(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        opt.step()
    strategy.close()
    assert float(opt.param_groups[0]["lr"]) == 0.5
    np.testing.assert_allclose(net.weight.detach().numpy(), -0.5 * 4, rtol=1e-6)


def test_an_optimizer_that_needs_whole_parameters():
    net = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match="Adafactor needs whole parameters"):
        train.distribute(net, torch.optim.Adafactor(net.parameters()), train.SSP(), comm=COMM)


def test_options_that_come_back_from_a_file_are_the_same():
    net = torch.nn.Linear(2, 1)
    opt = torch.optim.Adam(net.parameters(), lr=0.1)
    net, opt = train.distribute(net, opt, train.ParameterServer(), comm=COMM)
    if opt.strategy.worker:
        opt.param_groups[0]["betas"] = list(opt.param_groups[0]["betas"])
        net(torch.ones(1, 2)).sum().backward()
        opt.step()
    opt.strategy.close()


@pytest.mark.parametrize("cycled", [False, True])
def test_a_schedule_that_changes_the_momentum_too(cycled):
    net = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net, opt = train.distribute(net, opt, train.ParameterServer(), comm=COMM)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=9, cycle_momentum=cycled)

    def step():
        opt.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        opt.step()
        schedule.step()

    if opt.strategy.worker and cycled:
        with pytest.raises(ValueError, match="momentum of group 0 of the optimizer was 0.9 and is 0.95"):
            step()
    elif opt.strategy.worker:
        for _ in range(4):
            step()
    opt.strategy.close()


def test_a_worker_without_samples_spoils_nothing():
    """Its mean loss is NaN, and so are its gradients."""
    torch.manual_seed(7)
    net = torch.nn.Linear(6, 3)
    strategy = train.AsyncEASGD(1)
    net, opt = train.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1), strategy, comm=COMM)
    x, y = torch.ones(4, 6), torch.ones(4, dtype=torch.long)
    count = 0 if COMM.rank == 0 else 4
    for _ in range(5 if strategy.worker else 0):
        opt.zero_grad()
        torch.nn.functional.cross_entropy(net(x[:count]), y[:count]).backward()
        opt.step()
    strategy.close()
    assert all(torch.isfinite(p).all() for p in net.parameters())
    assert net(x).argmax(1).tolist() == [1] * 4


def step(net, opt, x):
    opt.zero_grad()
    net(x).square().mean().backward()
    opt.step()


def test_a_state_that_is_loaded_into_a_module_goes_to_the_servers():
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 3))
    net, opt = train.distribute(net, torch.optim.SGD(net.parameters(), lr=0.0), train.ParameterServer(), comm=COMM)
    if opt.strategy.worker:
        step(net, opt, torch.ones(4, 6))
        net[1].load_state_dict({name: torch.full_like(value, 2.0) for name, value in net[1].state_dict().items()})
        step(net, opt, torch.ones(4, 6))
    opt.strategy.close()
    assert all((p == 2).all() for p in net[1].parameters())
    assert not any((p == 2).any() for p in net[0].parameters())


def test_buffers_of_the_first_worker_are_those_of_ranks_that_have_served():
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    net, opt = train.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1), train.ParameterServer(), comm=COMM)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(COMM.rank))
    for _ in range(3 if opt.strategy.worker else 0):
        step(net, opt, x)
    own = net[1].running_mean.numpy().copy()
    opt.strategy.close()
    found = COMM.allgather((net[1].running_mean.numpy(), int(net[1].num_batches_tracked)))
    np.testing.assert_array_equal(found[-1][0], found[0][0])
    assert found[-1][1] == 3
    if opt.strategy.worker:
        np.testing.assert_array_equal(net[1].running_mean.numpy(), own)  # workers keep their own
