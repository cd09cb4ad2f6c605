"""Training of networks on a GPU, without one: tensors of the CPU that are treated as if they were on a device.

Run on any number of ranks: ``mpiexec -n 3 python -m pytest tests/train/programs/on_device.py``.

Such a network keeps its own parameters and gradients, as one on a GPU does, and all results must have the bits of the
network that is treated as what it is. This cannot show that ``copy_`` between a GPU and the host does what torch says.
"""

import copy
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from mpi4py import MPI

import collectives
from collectives import train
from collectives.train.torch import on_device
from collectives.train.torch.on_device import DeviceSlot
from collectives.train.torch.tensor import ColumnParallelLinear

torch.set_num_threads(1)
COMM = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
GPU = torch.device("cuda", 0)
STEPS, BATCH, INPUTS, CLASSES = 6, 12, 16, 4
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
}
STRATEGIES = {
    "all_reduce": train.AllReduce,
    "sum": lambda: train.AllReduce(average=False),
    "clipped": lambda: train.AllReduce(clip_norm=0.1),
    "shard 1": lambda: train.AllReduce(shard=1, clip_norm=0.1),
    "shard 2": lambda: train.AllReduce(shard=2),
    "power_sgd": lambda: train.AllReduce(compression=train.PowerSGD(rank=2)),
    "top_k": lambda: train.AllReduce(compression=train.TopK(0.2)),
    "int8": lambda: train.AllReduce(compression=train.Int8()),
    "no_comm": train.NoComm,
    "local_sgd": lambda: train.LocalSGD(2),
    "merged": lambda: train.LocalSGD(2, start=1, stop=5, merge_optimizer=True),
    "master": lambda: train.LocalSGD(2, master=0),
    "diloco": lambda: train.DiLoCo(2),
    "fedavg": lambda: train.FedAvg(2, 0.6),
    "easgd": lambda: train.EASGD(2),
    "neighbor_averaging": train.NeighborAveraging,
    "overlap": lambda: train.NeighborAveraging(overlap=True),
    "push_sum": lambda: train.PushSum(lopsided()),
    "parameter_server": train.ParameterServer,
    "beside": lambda: train.ParameterServer(beside=True),
}
NARROW = {
    "bfloat16": (torch.bfloat16, train.AllReduce),
    "bfloat16, shard 1": (torch.bfloat16, lambda: train.AllReduce(shard=1)),
    "bfloat16, power_sgd": (torch.bfloat16, lambda: train.AllReduce(compression=train.PowerSGD(rank=2))),
    "float16, dynamic": (torch.float16, lambda: train.AllReduce(loss_scale="dynamic")),
    "float16, shard 2": (torch.float16, lambda: train.AllReduce(loss_scale="dynamic", shard=2)),
}
CASES = {name: (torch.float32, make) for name, make in STRATEGIES.items()} | NARROW
COPIES = [
    ("collect", "all_reduce"), ("deliver_grad", "all_reduce"), ("deliver_grad", "clipped"), ("fetch", "local_sgd"),
    ("deliver", "local_sgd"), ("deliver", "parameter_server"), ("deliver", "shard 1"), ("put_back", "merged"),
]  # fmt: skip


def lopsided():
    """A mixing matrix with which the weights of ranks differ; of one rank, the only one."""
    matrix = torch.eye(SIZE, dtype=torch.float64)
    for rank in range(SIZE if SIZE > 1 else 0):
        share = 0.5 if rank else 0.25
        matrix[rank, rank] -= share
        matrix[(rank + 1) % SIZE, rank] += share
    return matrix.numpy()


class Net(torch.nn.Module):
    """A transposed parameter, one that some steps leave out, a frozen one, a shared one, and statistics."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(INPUTS, 32), torch.nn.Linear(32, 32)
        self.third = torch.nn.Linear(32, 32)
        self.third.weight = self.second.weight
        self.last = torch.nn.Parameter(torch.randn(32, CLASSES))
        self.sometimes = torch.nn.Parameter(torch.zeros(CLASSES))
        self.frozen = torch.nn.Parameter(torch.randn(CLASSES), requires_grad=False)
        self.register_buffer("seen", torch.full((), float(RANK)))
        self.use = True

    def forward(self, x):
        self.seen += len(x)
        y = self.third(torch.tanh(self.second(torch.tanh(self.first(x))))) @ self.last + self.frozen
        return y + self.sometimes if self.use else y


@pytest.fixture
def treat(monkeypatch):
    """``treat(True)``: from now on, tensors are taken for such on a GPU."""

    def change(as_on_device):
        monkeypatch.setattr(on_device, "device_of", lambda t: GPU if as_on_device else t.device)

    return change


def begin(optimizer, strategy, dtype=torch.float32):
    torch.manual_seed(RANK)
    net = Net().to(dtype)
    return train.distribute(net, OPTIMIZERS[optimizer](net.parameters()), strategy, comm=COMM, unused="zero")


def batch(step, dtype):
    """This rank's samples of a step: of several ranks, the last one has none in some steps."""
    generator = torch.Generator().manual_seed(100 * step + RANK)
    count = 0 if RANK and RANK == SIZE - 1 and step % 3 == 1 else BATCH - RANK
    return torch.randn(count, INPUTS, generator=generator).to(dtype), torch.randint(
        CLASSES, (count,), generator=generator
    )


def backward(net, opt, x, y):
    loss = torch.nn.functional.cross_entropy(net(x), y)
    (opt.strategy.scale(loss) if hasattr(opt.strategy, "scale") else loss).backward()
    return loss.detach()


def steps(net, opt, first=0, last=STEPS, micro=False):
    """The losses of steps in which the program does what programs do with parameters and gradients."""
    losses = []
    dtype = net.last.dtype
    for step in range(first, last):
        net.use = step % 2 == 0
        if step % 4 != 3:  # else gradients add up to those of the step before
            opt.zero_grad()
        x, y = batch(step, dtype)
        if micro:
            with opt.strategy.no_sync():
                losses.append(backward(net, opt, x[:5], y[:5]))
            x, y = x[5:], y[5:]
        losses.append(backward(net, opt, x, y))
        opt.step()
        if step == 2 and not isinstance(opt.strategy, train.ParameterServer):  # which refuses that
            net.second.weight.data.clamp_(-0.15, 0.15)
        if step == 3:
            net.load_state_dict({key: value * 0.75 for key, value in net.state_dict().items()})
    return losses


def words(*tensors):
    """The bytes of tensors, which are equal for NaN, too."""
    return [None if t is None else t.detach().contiguous().view(-1).view(torch.uint8).tolist() for t in tensors]


def kept(opt):
    """What the optimizer keeps, as bytes."""
    values = [value for state in opt.state.values() for value in state.values()]
    return words(*[value for value in values if isinstance(value, torch.Tensor)])


def trained(optimizer, make, dtype=torch.float32, micro=False):
    """Losses, parameters, gradients, and the optimizer's arrays after some steps and at the end, as bytes."""
    net, opt = begin(optimizer, make(), dtype)
    if not opt.strategy.worker:
        opt.strategy.close()
        return words(*net.parameters())
    found = [words(*steps(net, opt, micro=micro)), words(*net.parameters()), kept(opt)]
    found += [words(*[p.grad for p in net.parameters()]), words(*net.buffers())]
    found.append(opt.strategy.consensus_distance())
    opt.strategy.finish()
    opt.strategy.close()
    return [*found, words(*net.parameters())]


@pytest.mark.parametrize(("optimizer", "micro"), [("sgd", True), ("adamw", False)])
@pytest.mark.parametrize("name", CASES)
def test_a_network_on_a_device_trains_to_the_same_bits(treat, name, optimizer, micro):
    if name == "parameter_server" and SIZE == 1:
        return
    dtype, make = CASES[name]
    expected = trained(optimizer, make, dtype, micro)
    treat(True)
    assert trained(optimizer, make, dtype, micro) == expected


@pytest.mark.parametrize(("what", "name"), COPIES)
def test_results_are_wrong_without_any_of_the_copies(treat, monkeypatch, what, name):
    if SIZE == 1:
        return
    expected = trained("sgd", STRATEGIES[name])
    treat(True)
    if what == "put_back":
        monkeypatch.setattr("collectives.train.torch.optimizer.TorchHandle.put_back", lambda *_: None)
    else:
        monkeypatch.setattr(DeviceSlot, what, DeviceSlot._note if what == "collect" else lambda slot: None)
    same = trained("sgd", STRATEGIES[name]) == expected
    assert not COMM.allreduce(same, MPI.LAND)


@pytest.mark.parametrize("name", ["all_reduce", "shard 2", "local_sgd"])
def test_the_backward_pass_may_run_in_a_thread_as_that_of_a_gpu_does(treat, monkeypatch, name):
    expected = trained("sgd", STRATEGIES[name])
    treat(True)
    plain = torch.Tensor.backward

    def elsewhere(loss):
        thread = threading.Thread(target=plain, args=(loss,))
        thread.start()
        thread.join()

    monkeypatch.setattr(torch.Tensor, "backward", elsewhere)
    assert trained("sgd", STRATEGIES[name]) == expected


def test_the_network_stays_where_it_is(treat):
    treat(True)
    net, opt = begin("sgd", train.AllReduce())
    places = {name: (id(p), p.data_ptr(), p.stride()) for name, p in net.named_parameters()}
    steps(net, opt)
    assert {name: (id(p), p.data_ptr(), p.stride()) for name, p in net.named_parameters()} == places
    net.double()
    backward(net, opt, *batch(0, torch.float64))
    with pytest.raises(RuntimeError, match="first.weight.* left the flat array"):
        opt.step()


def test_gradients_may_be_changed_after_wait_only(treat):
    def clipped():
        net, opt = begin("sgd", train.AllReduce())
        net.use = False
        for step in range(3):
            opt.zero_grad()
            backward(net, opt, *batch(step, torch.float32))
            opt.strategy.wait()
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            assert norm > 0.1
            opt.step()
        return net, opt, words(*net.parameters(), norm)

    expected = clipped()[2]
    treat(True)
    net, opt, found = clipped()
    assert found == expected
    backward(net, opt, *batch(3, torch.float32))
    if RANK == SIZE - 1:
        net.last.grad *= 2
    with pytest.raises(RuntimeError, match=r"the gradient of last was changed between backward\(\) and opt.step"):
        opt.step()


def test_a_step_that_is_skipped_changes_nothing(treat):
    treat(True)
    net, opt = begin("adamw", train.AllReduce(nonfinite="skip"))
    steps(net, opt)
    before = words(*net.parameters()), kept(opt)
    opt.zero_grad()
    x, y = batch(0, torch.float32)
    backward(net, opt, x * float("nan") if RANK == SIZE - 1 else x, y)
    opt.step()
    assert opt.strategy.skipped == 1
    assert (words(*net.parameters()), kept(opt)) == before


@pytest.mark.parametrize("name", ["shard 1", "merged", "easgd", "parameter_server"])
def test_a_saved_state_goes_on_with_the_same_bits(treat, name):
    """The state of a network on the CPU goes on on a device, too."""
    if name == "parameter_server" and SIZE == 1:
        return
    net, opt = begin("adamw", STRATEGIES[name]())
    if opt.strategy.worker:
        steps(net, opt, 0, 4)
        states = [copy.deepcopy(thing.state_dict()) for thing in (net, opt, opt.strategy)]
        expected = words(*steps(net, opt, 4, 8), *net.parameters())
    opt.strategy.close()
    treat(True)
    net, opt = begin("adamw", STRATEGIES[name]())
    if opt.strategy.worker:
        for thing, state in zip((net, opt, opt.strategy), states, strict=True):
            thing.load_state_dict(state)
        found = words(*steps(net, opt, 4, 8), *net.parameters())
    opt.strategy.close()
    if opt.strategy.worker:
        assert found == expected


@pytest.mark.parametrize("name", ["diloco", "easgd"])
def test_what_is_loaded_into_a_module_is_where_it_begins(treat, name):
    def trained():
        net, opt = begin("sgd", STRATEGIES[name]())
        steps(net, opt, 0, 3)
        net.first.load_state_dict({key: value * 0.5 for key, value in net.first.state_dict().items()})
        return words(*steps(net, opt, 4, 8), *net.parameters())

    expected = trained()
    treat(True)
    assert trained() == expected


@pytest.mark.parametrize("name", ["all_reduce", "shard 1", "shard 2", "merged", "overlap"])
def test_a_recovery_goes_back_to_the_same_bits(treat, name):
    """What an elastic run does after a loss of ranks."""

    def recovered():
        net, opt = begin("adamw", STRATEGIES[name]())
        steps(net, opt, 0, 2)
        states = [copy.deepcopy(thing.state_dict()) for thing in (net, opt, opt.strategy)]
        steps(net, opt, 2, 3)
        opt.strategy.resize(COMM)
        for thing, state in zip((net, opt, opt.strategy), states, strict=True):
            thing.load_state_dict(state)
        return words(*steps(net, opt, 4, 8), *net.parameters())

    expected = recovered()
    treat(True)
    assert recovered() == expected


def run(folder, make, epochs):
    """Epochs of a `Run`, which goes on from the checkpoint in `folder` if there is one."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, INPUTS, generator=generator), torch.randint(CLASSES, (60,), generator=generator)
    net, opt = begin("adamw", make())
    loader = train.Loader((x, y), 12, seed=1, comm=COMM)
    state = {"net": net, "opt": opt, "data": loader}
    check = 2 if opt.strategy.replicated else None
    going = train.Run(folder, comm=COMM, state=state, checkpoint_every=3, check_weights=check, progress="lines")
    for xs, ys in going.steps(loader, epochs=epochs):
        opt.zero_grad()
        going.log(loss=backward(net, opt, xs, ys))
        opt.step()
    return going.resumed, words(*net.parameters()), going.records[-1]["loss"]


@pytest.mark.parametrize("name", ["all_reduce", "shard 1", "merged"])
def test_runs_go_on_from_checkpoints(treat, name):
    treat(True)
    with tempfile.TemporaryDirectory() as mine:
        folder = Path(COMM.bcast(mine))
        run(folder / "device", STRATEGIES[name], 1)
        resumed, *found = run(folder / "device", STRATEGIES[name], 2)
        treat(False)
        run(folder / "host", STRATEGIES[name], 1)
        assert [resumed, *found] == [5, *run(folder / "host", STRATEGIES[name], 2)[1:]]
        COMM.Barrier()


@pytest.mark.parametrize(
    "make", [train.AsyncParameterServer, train.SSP, train.AsyncEASGD, train.ADPSGD, train.PeerAsync]
)
def test_a_strategy_that_cannot_is_an_error_on_all_ranks(treat, make):
    treat(RANK == SIZE - 1)
    strategy = make()
    with pytest.raises(ValueError, match=rf"{type(strategy).__name__} serves networks on the CPU only: call net.cpu"):
        begin("sgd", strategy)
    assert COMM.allreduce(1) == SIZE


@pytest.mark.parametrize("wrong", ["two devices", "half on the CPU", "meta", "buffer", "cut", "pipeline", "threads"])
def test_networks_that_cannot_be_on_a_device_are_errors_on_all_ranks(monkeypatch, wrong):
    net, error = Net(), None
    places = {id(t): GPU for t in [*net.parameters(), *net.buffers()]}
    if wrong == "two devices":
        places[id(net.last)] = torch.device("cuda", 1)
        error = r"last is on cuda:0, .* on cuda:1|last is on cuda:1, .* on cuda:0"
    elif wrong == "half on the CPU":
        places[id(net.frozen)] = torch.device("cpu")
        error = r"last is on cuda:0, frozen on cpu; .* on one CUDA device: net.to\('cuda:0'\)"
    elif wrong == "meta":
        places[id(net.seen)] = torch.device("meta")
        error = "seen is on meta; distribute takes networks on the CPU or on one CUDA device: net.cpu"
    elif wrong == "buffer":
        places[id(net.seen)] = torch.device("cuda", 1)
    elif wrong == "cut":
        layer = ColumnParallelLinear(torch.nn.Linear(INPUTS, INPUTS), COMM)
        net, error = torch.nn.Sequential(layer), "networks with cut layers on the CPU only"
    elif wrong == "pipeline":
        net, error = torch.nn.Sequential(torch.nn.Linear(4, 4)), "pipelines on the CPU only"
    else:
        monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_FUNNELED)
        error = "a network on a GPU needs MPI.THREAD_SERIALIZED"
    if RANK == SIZE - 1:
        monkeypatch.setattr(on_device, "device_of", lambda t: places.get(id(t), GPU))
    if wrong == "pipeline":
        net = train.Pipeline(net, comm=collectives.Communicator(MPI.COMM_SELF))
    opt = OPTIMIZERS["sgd"](net.parameters())
    if error is None:
        train.distribute(net, opt, comm=COMM)
    else:
        with pytest.raises(ValueError, match=error):
            train.distribute(net, opt, comm=COMM)
    assert COMM.allreduce(1) == SIZE
