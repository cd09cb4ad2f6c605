"""States of models on a mesh go to checkpoints that any other mesh loads, and training goes on as in one process."""

import numpy as np
import pytest
from mpi4py import MPI
from safetensors.numpy import load_file

from collectives import train
from collectives.train import checkpoint, threads
from collectives.train.tensor import ColumnParallelLinear, RowParallelLinear

NEAR = 1e-10
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((9, 6)), RNG.integers(0, 5, 9)
LOSS = train.CrossEntropyLoss()
SIZES = (6, 7, 5, 9, 5, 8, 5)  # pairs of layers between which activations are cut
EVERY = {"data": 2, "pipeline": 2, "tensor": 2}


def network(comm, seed=1):
    rng = np.random.default_rng(seed)
    layers = []
    for number, (inputs, outputs) in enumerate(zip(SIZES, SIZES[1:], strict=False)):
        whole = train.Linear(inputs, outputs, rng=rng, dtype=np.float64)
        whole.bias.data[:] = rng.standard_normal(outputs)
        layers += (
            [ColumnParallelLinear(whole, comm), train.ReLU()] if number % 2 == 0 else [RowParallelLinear(whole, comm)]
        )
    return train.Sequential(*layers)


class Training:
    """A mesh with a network, and what is saved of it."""

    def __init__(self, comm, shape, seed=1, kind=train.Adam, **options):
        self.mesh = train.Mesh(comm, **shape)
        net = network(self.mesh.tensor, seed)
        self.piped = self.mesh.pipeline.size > 1
        self.net = train.Pipeline(net, self.mesh.pipeline, micro_batches=3, **options) if self.piped else net
        self.opt = kind(self.net.parameters(), 0.05)
        strategy = train.AllReduce(clip_norm=0.5)
        self.net, self.opt = train.distribute(self.net, self.opt, strategy, mesh=self.mesh)
        self.states = {
            "net": train.WholeNet(self.net, self.mesh), "opt": train.WholeOptimizer(self.opt, self.net, self.mesh)
        }  # fmt: skip

    def steps(self, count):
        """Losses of the whole batch."""
        losses, data = [], self.mesh.data
        for _ in range(count):
            rows = train.tensor.Cut.even(0, len(X), data.size)
            x, y = (rows.part(part, data.rank) for part in (X, Y))
            self.opt.zero_grad()
            if self.piped:
                loss = self.net.step(x, y, LOSS)
            else:
                loss = LOSS(self.net(x), y)
                loss.backward()
            self.opt.step()
            losses.append(data.allreduce(float(loss) * len(x)) / len(X))
        return losses

    def save(self, folder):
        checkpoint.save(folder, {name: state.state_dict() for name, state in self.states.items()}, self.mesh.comm)

    def load(self, folder, names=("net", "opt")):
        found = checkpoint.load(folder, self.mesh.comm)
        for name in names:
            self.states[name].load_state_dict(found.state(name))


def saved(ranks, shape, folder, steps=2, **options):
    def work(comm):
        training = Training(comm, shape, **options)
        training.steps(steps)
        training.save(folder)

    threads.run(ranks, work)


def wholes(folder):
    """All arrays of a checkpoint, by name."""

    def read(comm):
        found = checkpoint.load(folder, comm)
        net, opt = found.state("net"), found.state("opt")
        return {"net": net, **{key: opt[key] for key in ("mean", "square")}}, opt["steps"]

    ((arrays, steps),) = threads.run(1, read)
    return {f"{key} {name}": np.asarray(array) for key, kept in arrays.items() for name, array in kept.items()}, steps


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=NEAR, err_msg=name)


OTHERS = [(4, {"pipeline": 4}), (1, {})]
OTHERS += [pytest.param(4, {"data": 4}, marks=pytest.mark.slow)]
OTHERS += [pytest.param(6, {"pipeline": 2, "tensor": 3}, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("ranks", "shape"), OTHERS, ids=str)
def test_a_checkpoint_goes_to_another_mesh_and_back(ranks, shape, tmp_path):
    (losses,) = threads.run(1, lambda comm: Training(comm, {}).steps(6))
    saved(1, {}, tmp_path / "alone", 4)
    saved(8, EVERY, tmp_path / "before")

    def elsewhere(comm):
        training = Training(comm, shape, seed=2)
        training.load(tmp_path / "before")
        found = training.steps(2)
        training.save(tmp_path / "between")
        return found

    def back(comm):
        training = Training(comm, EVERY, seed=3)
        training.load(tmp_path / "between")
        return training.steps(2)

    for found in threads.run(ranks, elsewhere):
        assert found == pytest.approx(losses[2:4], abs=NEAR)
    (between, steps), (alone, _) = wholes(tmp_path / "between"), wholes(tmp_path / "alone")
    assert steps == 4
    assert len(between) == 3 * 12  # weights, means and squares of six layers' weights and biases
    same(between, alone)
    for found in threads.run(8, back):
        assert found == pytest.approx(losses[4:], abs=NEAR)


def test_every_element_is_written_once_by_one_of_its_ranks(tmp_path):
    saved(8, EVERY, tmp_path / "one")
    alone = sum(a * b + b for a, b in zip(SIZES, SIZES[1:], strict=False))
    files = sorted((tmp_path / "one").glob("*.safetensors"))
    held = [sum(array.size for name, array in load_file(file).items() if name.startswith("net/")) for file in files]
    assert sum(held) == alone
    assert min(held) > 0  # all ranks write
    array = checkpoint.load(tmp_path / "one", MPI.COMM_SELF).state("net")["0.weight"]
    assert repr(array) == "StoredArray((7, 6), float64)"
    np.testing.assert_array_equal(array.read((2, 1), (6, 3)), np.asarray(array)[2:6, 1:3])
    with pytest.raises(ValueError, match=r"no part of a stored array of \(7, 6\)"):
        array.read((0, 0), (8, 6))


def test_a_whole_state_of_one_process_is_loaded(tmp_path):
    def alone(comm):
        training = Training(comm, {}, seed=5)
        training.steps(1)
        states = {"net": training.net.state_dict(), "opt": training.opt.state_dict()}
        checkpoint.save(tmp_path / "one", states, comm)
        return training.steps(2)

    (losses,) = threads.run(1, alone)

    def work(comm):
        training = Training(comm, EVERY)
        training.load(tmp_path / "one")
        return training.steps(2)

    for found in threads.run(8, work):
        assert found == pytest.approx(losses, abs=NEAR)


def raised(ranks, shape, folder, words, names=("net", "opt"), **options):
    """All ranks refuse the checkpoint, and nothing of them has changed."""

    def work(comm):
        training = Training(comm, shape, **options)
        before = training.net.state_dict()
        with pytest.raises(ValueError, match=words):
            training.load(folder, names)
        same(training.net.state_dict(), before)

    threads.run(ranks, work, timeout=20)


def test_a_checkpoint_that_lacks_a_part(tmp_path):
    saved(4, {"pipeline": 2, "tensor": 2}, tmp_path / "one")
    (tmp_path / "one" / "rank-00003.safetensors").unlink()
    raised(2, {"pipeline": 2}, tmp_path / "one", "rank-00003.safetensors is missing")


def test_a_checkpoint_of_another_model(tmp_path, monkeypatch):
    saved(2, {"tensor": 2}, tmp_path / "one")
    monkeypatch.setattr(f"{__name__}.SIZES", (6, 7, 5, 9, 5))
    raised(2, {"pipeline": 2}, tmp_path / "one", r"arrays missing: \[\], unexpected: \['6.bias', '6.weight'")
    monkeypatch.setattr(f"{__name__}.SIZES", (6, 7, 5, 9, 5, 8, 6, 4, 3))
    raised(2, {"pipeline": 2}, tmp_path / "one", r"arrays missing: \['11.bias', '11.weight'")
    monkeypatch.setattr(f"{__name__}.SIZES", (6, 7, 5, 9, 5, 12, 5))
    raised(2, {"pipeline": 2}, tmp_path / "one", r"6.weight has the shape \(12, 5\), in the state \(8, 5\)")
    monkeypatch.undo()
    raised(1, {}, tmp_path / "one", "the state has no velocity", ["opt"], kind=train.SGD)


def test_a_mesh_whose_cut_does_not_fit():
    def work(comm):
        with pytest.raises(ValueError, match="5 inputs over 6 ranks|each rank needs at least 1"):
            RowParallelLinear(train.Linear(5, 5, rng=np.random.default_rng(0)), comm)
        with pytest.raises(ValueError, match="3 blocks cannot be cut into 6 stages"):
            train.Pipeline(train.Sequential(*network(comm.Split(comm.rank)).layers[:3]), comm)

    threads.run(6, work)


def test_slices_in_memory_and_flat_optimizers_are_refused():
    def work(comm):
        training = Training(comm, {"pipeline": 2})
        with pytest.raises(ValueError, match="save it as a checkpoint"):
            training.states["net"].load_state_dict(training.states["net"].state_dict())
        mesh = train.Mesh(comm, data=2)
        net = network(mesh.tensor)
        net, opt = train.distribute(net, train.Adam(net.parameters(), 0.1), train.AllReduce(shard=1), mesh=mesh)
        with pytest.raises(ValueError, match="works on flat arrays"):
            train.WholeOptimizer(opt, net, mesh)

    threads.run(2, work)


@pytest.mark.parametrize(
    ("slices", "words"),
    [
        ([((0, 0), (2, 3)), ((0, 2), (2, 2))], "thing/x: ranks 0 and 1 have the same elements"),
        ([((0, 0), (2, 3)), ((0, 0), (0, 0))], "thing/x: nobody has 2 of the elements of"),
        ([((0, 0), (2, 3)), ((1, 3), (2, 1))], "no part of an array of"),
        ([((0,), (2, 4)), ((0, 0), (0, 0))], "no part of an array of"),
    ],
)
def test_slices_must_cover_their_array(slices, words, tmp_path):
    def work(comm):
        start, shape = slices[comm.rank]
        with pytest.raises(ValueError, match=words):
            checkpoint.save(tmp_path / "one", {"thing": {"x": checkpoint.Slice(np.ones(shape), start, (2, 4))}}, comm)

    threads.run(2, work)
    assert list(tmp_path.iterdir()) == []
