"""What programs do by hand to parameters and gradients of a network on a GPU counts as on the CPU.

Run on any number of ranks: ``mpiexec -n 2 python -m pytest tests/train/programs/on_device_by_hand.py``. Tensors of the
CPU are treated as if they were on a device, as in on_device.py.
"""

import pytest
import torch
from mpi4py import MPI

import collectives
from collectives import train
from collectives.train.tensors import as_bytes
from collectives.train.torch import on_device

torch.set_num_threads(1)
COMM = collectives.Communicator(MPI.COMM_WORLD)
GPU = torch.device("cuda", 0)


class Two(torch.nn.Module):
    """Two parameters, of which a pass may use one."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.a = torch.nn.Parameter(torch.full((3,), 1.0, dtype=dtype))
        self.b = torch.nn.Parameter(torch.full((3,), 0.5))


@pytest.fixture
def both(monkeypatch):
    """``both(run)``: what a program returns with a network on the CPU, and with one on a device."""

    def twice(run):
        monkeypatch.setattr(on_device, "device_of", lambda t: t.device)
        on_cpu = run()
        monkeypatch.setattr(on_device, "device_of", lambda t: GPU)
        return on_cpu, run()

    return twice


def begin(strategy, dtype=torch.float32, unused="error"):
    net = Two(dtype)
    return train.distribute(net, torch.optim.SGD(net.parameters(), 1.0), strategy, comm=COMM, unused=unused)


@pytest.mark.parametrize("options", [{}, {"loss_scale": "dynamic"}, {"shard": 1}, {"shard": 2}])
def test_parameters_changed_between_steps_beside_others_of_16_bits(both, options):
    def run():
        net, opt = begin(train.AllReduce(**options), torch.bfloat16)
        for _ in range(2):
            opt.zero_grad()
            opt.strategy.scale((net.a.float() * net.b).sum() / 8).backward()
            opt.step()
            net.b.data.clamp_(-0.1, 0.1)
        return net.a.tolist(), net.b.tolist()

    on_cpu, found = both(run)
    assert found == on_cpu
    assert max(on_cpu[1]) < 0.1


def test_gradients_changed_after_wait_of_what_the_last_pass_did_not_use(both):
    def run():
        net, opt = begin(train.AllReduce())
        with opt.strategy.no_sync():
            (net.a * net.b).sum().backward()
        net.a.sum().backward()
        opt.strategy.wait()
        for p in net.parameters():
            p.grad.mul_(0.5)
        opt.step()
        return net.a.tolist(), net.b.tolist()

    on_cpu, found = both(run)
    assert found == on_cpu
    assert on_cpu[1] == [0.25] * 3


def test_gradients_added_after_wait_where_there_were_none(both):
    def run():
        net, opt = begin(train.AllReduce(), unused="zero")
        net.a.sum().backward()
        opt.strategy.wait()
        net.b.grad = torch.ones(3)
        opt.step()
        return net.b.tolist()

    on_cpu, found = both(run)
    assert found == on_cpu == [-0.5] * 3


def test_hooks_of_the_program_on_gradients_of_micro_batches(both):
    def run():
        net, opt = begin(train.AllReduce())

        def halve(p):
            p.grad.mul_(0.5)

        hook = net.b.register_post_accumulate_grad_hook(halve)
        with opt.strategy.no_sync():
            (net.a * net.b).sum().backward()
        hook.remove()
        (net.a * net.b).sum().backward()
        opt.step()
        return net.a.tolist(), net.b.tolist()

    on_cpu, found = both(run)
    assert found == on_cpu
    assert on_cpu[1] == [-0.25] * 3


def test_gradients_of_a_refused_step_can_be_looked_at(both):
    def run():
        net, opt = begin(train.AllReduce())
        factor = float("inf") if COMM.rank == COMM.size - 1 else 1.0
        (net.a * net.b * factor).sum().backward()
        with pytest.raises(FloatingPointError):
            opt.step()
        return net.a.grad.tolist()

    on_cpu, found = both(run)
    assert found == on_cpu == [float("inf")] * 3


@pytest.mark.parametrize("options", [{}, {"shard": 2}])
def test_gradients_that_the_program_drops_are_freed(monkeypatch, options):
    monkeypatch.setattr(on_device, "device_of", lambda t: GPU)
    net, opt = begin(train.AllReduce(**options))
    (net.a * net.b).sum().backward()
    opt.step()
    opt.zero_grad()
    assert [slot._seen for slot in opt.strategy.model.slots] == [None, None]


def test_bytes_of_single_elements_with_a_stride():
    strided = torch.tensor([1.0, 2.0])[::2]
    assert as_bytes(strided).tobytes() == as_bytes(torch.tensor([1.0])).tobytes()
