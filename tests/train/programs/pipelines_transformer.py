"""A character model in stages whose layers are cut, on every kind of mesh: the losses, the norms and the weights of one
process, step for step, in float64.

``mpiexec -n 8 python -m pytest tests/train/programs/pipelines_transformer.py``
"""

import math
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from mpi4py import MPI
from torch.nn import functional

import collectives
from collectives import train
from collectives.train import checkpoint
from collectives.train.torch.tensor import ParallelCrossEntropy
from collectives.train.torch.transformer import transformer

torch.set_num_threads(1)
COMM = collectives.Communicator(MPI.COMM_WORLD)
NEAR = 1e-10
CONTEXT, BATCH, STEPS = 9, 7, 4  # on two data ranks 4 and 3 samples, in 3 micro-batches
TEXT = train.characters(CONTEXT, limit=4000)
VOCABULARY = len(TEXT.alphabet)
X, Y = torch.from_numpy(TEXT.x), torch.from_numpy(TEXT.y)
MESHES = {
    4: [{"pipeline": 4}, {"pipeline": 2, "tensor": 2}],
    8: [{"pipeline": 4, "data": 2}, {"data": 2, "pipeline": 2, "tensor": 2}, {"pipeline": 4, "tensor": 2}],
}[COMM.size]


def model(comm=None, **options):
    return transformer(VOCABULARY, CONTEXT, width=12, heads=3, layers=3, comm=comm, dtype=torch.float64, **options)


def adam(parameters):
    return torch.optim.AdamW(parameters, 0.01)


def batch(step):
    return X[step * BATCH : (step + 1) * BATCH], Y[step * BATCH : (step + 1) * BATCH]


def alone(clip=None, **options):
    """Losses, norms and the network of one process."""
    net = model(**options)
    opt = adam(net.parameters())
    losses, norms = [], []
    for step in range(STEPS):
        opt.zero_grad()
        x, y = batch(step)
        loss = functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(net.parameters(), clip or math.inf)))
        opt.step()
        losses.append(loss.item())
    return losses, norms, net


class Training:
    """A model on a mesh: in stages if the mesh has some."""

    def __init__(self, shape, clip=None, sequence_parallel=False, schedule="1f1b", recompute=False, **options):
        self.mesh = mesh = train.Mesh(COMM, **shape)
        self.net = model(mesh.tensor, sequence_parallel=sequence_parallel, **options)
        self.loss_fn = ParallelCrossEntropy(VOCABULARY, mesh.tensor)
        if mesh.pipeline.size > 1:
            stages = {"schedule": schedule, "micro_batches": 3, "recompute": recompute}
            self.net = train.Pipeline(self.net, mesh.pipeline, **stages)
        self.strategy = train.AllReduce(clip_norm=clip)
        self.net, self.opt = train.distribute(self.net, adam(self.net.parameters()), self.strategy, mesh=mesh)
        self.states = {"net": train.WholeNet(self.net, mesh), "opt": train.WholeOptimizer(self.opt, self.net, mesh)}
        torch.manual_seed(7)

    def steps(self, first=0, last=STEPS):
        """Losses of the whole batch, and norms."""
        losses, norms, data = [], [], self.mesh.data
        rows = train.tensor.Cut.even(0, BATCH, data.size)
        for step in range(first, last):
            self.opt.zero_grad()
            x, y = (rows.part(part, data.rank) for part in batch(step))
            if isinstance(self.net, train.Pipeline):
                loss = self.net.step(x, y, self.loss_fn)
            else:
                loss = self.loss_fn(self.net(x), y)
                loss.backward()
            self.opt.step()
            losses.append(data.allreduce(loss.item() * len(x)) / BATCH)
            norms.append(self.strategy.norm)
        return losses, norms

    def save(self, folder):
        found = {name: state.state_dict() for name, state in self.states.items()}
        checkpoint.save(f"{folder}-{self.mesh.place['tasks']}", found, self.mesh.comm)

    def load(self, folder):
        found = checkpoint.load(f"{folder}-0", self.mesh.comm)
        for name, state in self.states.items():
            state.load_state_dict(found.state(name))


@pytest.mark.parametrize("shape", MESHES, ids=str)
@pytest.mark.parametrize(("schedule", "tied"), [("gpipe", False), ("1f1b", True), ("zero_bubble", True)])
def test_every_step_is_that_of_one_process(shape, schedule, tied):
    losses, norms, whole = alone(clip=0.5, tied=tied)
    assert min(norms) > 0.5  # so that clipping did something
    assert losses[-1] < losses[0] - 0.1
    training = Training(shape, clip=0.5, tied=tied, schedule=schedule, sequence_parallel=schedule == "1f1b")
    found = training.steps()
    assert found[0] == pytest.approx(losses, abs=NEAR)
    assert found[1] == pytest.approx(norms, abs=NEAR)
    state, expected = train.tensor.whole_state(training.net, training.mesh.tensor), dict(whole.state_dict())
    for name, value in state.items():
        assert (torch.as_tensor(value) - expected[name]).abs().max() < NEAR, name
    names = dict(whole.named_parameters())
    assert set().union(*training.mesh.comm.allgather(set(state))) >= set(names)


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_recomputation_draws_the_same_masks_in_cut_layers(shape):
    once, _ = Training(shape, dropout=0.3).steps()
    again, _ = Training(shape, dropout=0.3, recompute=True, sequence_parallel=True).steps()
    assert again == pytest.approx(once, abs=NEAR)
    without, _ = Training(shape).steps()
    assert abs(without[-1] - once[-1]) > 1e-3


OTHERS = [{"pipeline": 4}, {"data": 4}, {}]


@pytest.mark.parametrize("shape", OTHERS, ids=str)
def test_a_checkpoint_goes_to_another_mesh_and_back(shape):
    """With the optimizer's state. Several copies of a smaller mesh train side by side; the first one saves."""
    folder = Path(COMM.bcast(tempfile.mkdtemp() if COMM.rank == 0 else None))
    losses, _, _ = alone(clip=0.5, tied=True)
    before = Training(MESHES[1], clip=0.5, tied=True)
    assert before.steps(0, 2)[0] == pytest.approx(losses[:2], abs=NEAR)
    before.save(folder / "before")
    ranks = math.prod(shape.values())
    between = Training(shape | {"tasks": COMM.size // ranks}, clip=0.5, tied=True, seed=2)
    between.load(folder / "before")
    assert between.steps(2, 3)[0] == pytest.approx(losses[2:3], abs=NEAR)
    between.save(folder / "between")
    COMM.Barrier()
    after = Training(before.mesh.shape, clip=0.5, tied=True, seed=3)
    after.load(folder / "between")
    assert after.steps(3)[0] == pytest.approx(losses[3:], abs=NEAR)
    COMM.Barrier()
    if COMM.rank == 0:
        shutil.rmtree(folder)
