"""Checkpoints of several ranks: ``mpiexec -n P python checkpoints.py MODE PATH`` prints one line if all is right."""

import resource
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives
from collectives import train
from collectives.train import checkpoint
from collectives.train.checkpoint import Shard, Stored

COMM = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
VECTOR = np.arange(1003, dtype=np.float32) ** 2


def cut(rank, size):
    return len(VECTOR) * rank // size, len(VECTOR) * (rank + 1) // size


def save(path):
    low, high = cut(SIZE - 1 - RANK, SIZE)  # in another order than that of the ranks
    shared = {"x": np.full(5, 7.0) if RANK == 0 else np.zeros(5), "part": [Shard(VECTOR[low:high], low, len(VECTOR))]}
    own = {"rank": RANK, "x": np.full(RANK, RANK)}
    checkpoint.save(path, {"shared": shared, "own": own}, COMM, step=5, per_rank=["own"])
    files = sorted(f.name for f in path.glob("*.safetensors"))
    assert files == [f"rank-{r:05d}.safetensors" for r in range(SIZE)]


def load(path):
    loaded = checkpoint.load(path, COMM)
    shared = loaded.state("shared")
    assert shared["x"].tolist() == [7.0] * 5  # rank 0's
    (part,) = shared["part"]
    assert isinstance(part, Stored)
    assert (part.shape, part.dtype, len(part)) == (VECTOR.shape, VECTOR.dtype, len(VECTOR))
    low, high = cut(RANK, SIZE)
    assert (part.read(low, high) == VECTOR[low:high]).all()
    assert (np.asarray(part) == VECTOR).all()
    assert np.asarray(part, np.float64).dtype == np.float64
    assert part.read(3, 3).size == 0
    for bad in ((-1, 2), (2, 1), (0, len(VECTOR) + 1)):
        assert "elements" in str(raises(ValueError, part.read, *bad))
    for rank in range(loaded.ranks):
        own = loaded.state("own", rank)
        assert own["rank"] == rank
        assert own["x"].tolist() == [rank] * rank
    assert "not of rank" in str(raises(ValueError, loaded.state, "own", loaded.ranks))


def raises(error, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except error as raised:
        return raised
    raise AssertionError(f"no {error.__name__}")


def errors(path):
    """What one rank cannot save, or finds in a file, all ranks raise; nothing is left."""
    last = RANK == SIZE - 1
    error = raises(TypeError, checkpoint.save, path / "a", {"x": {"y": {1} if last else 1}}, COMM)
    assert ("" if last else f"rank {SIZE - 1}: ") + "x/y: a set" in str(error)
    error = raises(ValueError, checkpoint.save, path / "a", {"x": {"y": Shard(np.zeros(2), RANK, SIZE + 1)}}, COMM)
    assert "two ranks have elements 1 to 2" in str(error)
    error = raises(ValueError, checkpoint.save, path / "a", {"x": {"y": Shard(np.zeros(1), RANK, SIZE + 1)}}, COMM)
    assert f"nobody has elements {SIZE} to {SIZE + 1}" in str(error)
    assert list(path.iterdir()) == []
    COMM.Barrier()
    save(path / "a")
    COMM.Barrier()
    if RANK == 0:
        file = path / "a" / f"rank-{SIZE - 1:05d}.safetensors"
        data = file.read_bytes()
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    COMM.Barrier()
    assert "is corrupt" in str(raises(checkpoint.Corrupt, checkpoint.load, path / "a", COMM))
    assert "is not a checkpoint" in str(raises(ValueError, checkpoint.load, path, COMM))
    COMM.Barrier()


def limit_files():
    """Let no file of the last rank grow beyond 2000 bytes, as on a disk that is full."""
    if RANK == SIZE - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))


def full(path):
    """A full disk on one rank: OSError on all, and the old checkpoint stays."""
    save(path / "old")
    limit_files()
    big = {"x": {"y": Shard(np.zeros(1000), 1000 * RANK, 1000 * SIZE)}}
    error = raises(OSError, checkpoint.save, path / "new", big, COMM)
    assert "File too large" in str(error)
    assert [f.name for f in path.iterdir()] == ["old"]
    COMM.Barrier()
    load(path / "old")


class Big:
    """State of which every rank has much."""

    per_rank = True

    def state_dict(self):
        return {"x": np.full(5000, float(RANK))}

    def load_state_dict(self, state):
        assert (state["x"] == RANK).all()


def background(path):
    """A disk that fills up while a run goes on: all ranks raise at one step; a later process goes on from the old."""

    def run():
        data = train.Loader((np.arange(60),), 6, comm=COMM)
        return data, train.Run(
            path, comm=COMM, state={"data": data, "big": Big()}, checkpoint_every=3, progress="lines"
        )

    data, first = run()
    at, error = -1, None
    try:
        for _ in first.steps(data, epochs=100):
            if first.step == 50:
                limit_files()
            at = first.step
    except OSError as raised:
        error = raised
    assert error is not None
    assert "File too large" in str(error), error
    assert len(set(COMM.allgather(at))) == 1
    assert 50 < at < 999
    folder = path / "checkpoints" / "train"
    assert not [f for f in folder.iterdir() if f.name.startswith(".")]
    data, second = run()
    assert second.resumed is not None
    assert 20 < second.resumed <= at
    assert data.epoch * 10 + data.step == second.step == second.resumed


def torch(path):
    """Tensors of all types come back as NumPy arrays, and torch's own objects get them as tensors."""
    import torch

    state = {
        "bfloat16": torch.arange(5).to(torch.bfloat16), "half": torch.ones(2, 2, dtype=torch.half),
        "0-d": torch.tensor(3),
        "transposed": torch.arange(6.0).reshape(2, 3).t(), "parameter": torch.nn.Parameter(torch.ones(2)),
        "float8": torch.ones(3).to(torch.float8_e4m3fn), "empty": torch.empty(0, 2), "bool": torch.tensor([True]),
        "part": Shard(torch.arange(2) + 2 * RANK, 2 * RANK, 2 * SIZE), "complex": torch.tensor([1 + 2j]).conj(),
    }  # fmt: skip
    checkpoint.save(path, {"x": state}, COMM)
    loaded = checkpoint.load(path, COMM).state("x")
    tensors = checkpoint.load(path, COMM).state("x", tensors=True)
    assert np.asarray(loaded.pop("part")).tolist() == list(range(2 * SIZE))
    for key, array in loaded.items():
        assert isinstance(array, np.ndarray)
        tensor = tensors[key]
        assert tensor.dtype == state[key].dtype, key
        assert tensor.shape == state[key].shape == array.shape, key
        assert (tensor.to(torch.complex64) == state[key].detach().to(torch.complex64)).all(), key
    from safetensors.torch import load_file

    theirs = load_file(path / "rank-00000.safetensors")
    assert theirs["x/bfloat16"].tolist() == list(range(5))
    error = raises(TypeError, checkpoint.save, path.with_name("two"), {"x": {"y": torch.eye(2).to_sparse()}}, COMM)
    assert "sparse" in str(error)

    def parts():
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2).to(torch.bfloat16)
        return net, torch.optim.Adam(net.parameters(), lr=0.1)

    def steps(net, opt, data, epochs):
        run = train.Run(path.with_name("run"), comm=COMM, state={"net": net, "opt": opt, "data": data},
                        checkpoint_every=4, progress="lines", lr=lambda samples: 0.1 / (1 + samples))  # fmt: skip
        for (x,) in run.steps(data, epochs=epochs):
            opt.zero_grad()
            net(torch.from_numpy(x).to(torch.bfloat16)).square().sum().backward()
            opt.step()
        return run, torch.cat([p.detach().flatten() for p in net.parameters()])

    rows = np.random.default_rng(0).standard_normal((30, 3)).astype(np.float32)
    alone = train.Loader((rows,), 6, comm=MPI.COMM_SELF)  # every rank has all samples, so that nets stay alike
    _, expected = steps(*parts(), alone, 2)
    checkpoints = path.with_name("run") / "checkpoints" / "train"
    COMM.Barrier()
    if RANK == 0:
        newest = max(checkpoints.iterdir())
        newest.rename(path.with_name("away"))
    COMM.Barrier()
    run, got = steps(*parts(), train.Loader((rows,), 6, comm=MPI.COMM_SELF), 2)
    assert run.resumed == 8
    assert (got.view(torch.int16) == expected.view(torch.int16)).all()
    assert run.records[-1]["lr"] == 0.1 / 61


def wrapped(path):
    """Tensors in the state of an object of the program come back as tensors, arrays as arrays."""
    import torch

    class Average:
        def __init__(self):
            self.mean, self.counts = torch.zeros(3, dtype=torch.bfloat16), np.zeros(3)

        def state_dict(self):
            return {"mean": self.mean, "counts": self.counts}

        def load_state_dict(self, state):
            self.mean, self.counts = state["mean"], state["counts"]

    def trained(epochs):
        data, average = train.Loader((np.arange(12),), 4, comm=COMM), Average()
        state = {"data": data, "average": average}
        run = train.Run(path, comm=COMM, state=state, checkpoint_every=100, progress=None)
        for _ in run.steps(data, epochs=epochs):
            average.mean.add_(1)
            average.counts += 1
        return run.resumed, average

    trained(1)
    resumed, average = trained(2)
    assert resumed == 3
    assert isinstance(average.mean, torch.Tensor)
    assert isinstance(average.counts, np.ndarray)
    assert average.mean.dtype == torch.bfloat16
    assert average.mean.tolist() == average.counts.tolist() == [6.0] * 3


def frozen(path):
    """The optimizer of a model on a mesh goes on, although torch keeps nothing for a parameter that is frozen."""
    import torch

    rows = np.random.default_rng(0).standard_normal((24, 3)).astype(np.float32)

    def made():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        net[0].weight.requires_grad_(False)
        return net, torch.optim.Adam(net.parameters(), lr=0.1)

    def trained(epochs, out):
        mesh = train.Mesh(COMM, data=SIZE)
        net, opt = train.distribute(*made(), mesh=mesh)
        data = train.Loader((rows,), 6, comm=mesh.data)
        options = {"checkpoint_every": 100} if out else {}
        run = train.Run(out, mesh=mesh, state={"net": net, "opt": opt, "data": data}, progress=None, **options)
        for (x,) in run.steps(data, epochs=epochs):
            opt.zero_grad()
            net(torch.from_numpy(x)).square().mean().backward()
            opt.step()
        return run.resumed, net, opt, mesh

    trained(1, path)
    resumed, net, opt, mesh = trained(2, path)
    assert resumed == 4
    _, expected, other, _ = trained(2, None)
    for mine, one in zip(net.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, one)

    own = other.state_dict()  # by number, as torch has it
    assert sorted(own["state"]) == [1, 2, 3]
    train.WholeOptimizer(opt, net, mesh).load_state_dict(own)
    assert torch.equal(opt.state_dict()["state"][2]["exp_avg"], own["state"][2]["exp_avg"])
    net[0].weight.requires_grad_(True)
    train.WholeOptimizer(opt, net, mesh).load_state_dict(checkpoint.load(newest(path), COMM).state("opt"))


def newest(path):
    return max((path / "checkpoints" / "train").glob("step-*"))


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
    COMM.Barrier()
    if RANK == 0:
        print(f"{sys.argv[1]}: right on {SIZE} ranks", flush=True)
