"""Streams of random numbers: which depend on what, and how they go on from a saved position."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import mpiexec, torch_for

from collectives import train


def draws(*args, n=1000):
    return train.Random(*args).generator.random(n)


def test_a_stream_depends_on_seed_purpose_and_rank_only():
    np.testing.assert_array_equal(draws(1, "dropout", 2), draws(1, "dropout", 2))
    streams = [draws(seed, purpose, rank) for seed in (1, 2) for purpose in ("a", "b", "") for rank in (0, 1, 7)]
    assert len({stream.tobytes() for stream in streams}) == len(streams)
    correlations = np.abs(np.corrcoef(streams) - np.eye(len(streams)))
    assert correlations.max() < 0.15


def test_a_purpose_is_not_put_together_with_a_rank():
    assert train.Random(0, "a1", 0).generator.random() != train.Random(0, "a", 10).generator.random()


def test_the_numbers_are_these_on_every_machine():
    assert train.Random(3, "augment", 1).generator.integers(0, 100, 6).tolist() == [80, 31, 55, 70, 95, 74]


@pytest.mark.parametrize("before", [0, 1, 7])
def test_a_saved_stream_goes_on(before):
    stream = train.Random(1, "dropout", 2)
    stream.generator.integers(0, 10, before, dtype=np.uint32)  # an odd number leaves half of a word
    state = json.loads(json.dumps(stream.state_dict()))
    expected = stream.generator.integers(0, 1000, 9, dtype=np.uint32)
    other = train.Random(1, "dropout", 2)
    other.generator.random(100)
    other.load_state_dict(state)
    np.testing.assert_array_equal(other.generator.integers(0, 1000, 9, dtype=np.uint32), expected)


def test_a_stream_of_another_seed_or_purpose_is_refused():
    state = train.Random(1, "dropout", 2).state_dict()
    for other, what in ((train.Random(2, "dropout", 2), "seed = 1"), (train.Random(1, "noise", 2), "purpose")):
        before = other.state_dict()
        with pytest.raises(ValueError, match=what):
            other.load_state_dict(state)
        assert other.state_dict() == before


def test_bad_arguments():
    with pytest.raises(TypeError, match="purpose must be a string"):
        train.Random(0, 1, 0)
    with pytest.raises(ValueError, match="seed"):
        train.Random(-1, "a", 0)
    with pytest.raises(ValueError, match="rank"):
        train.Random(0, "a", -1)


def test_streams_of_ranks_differ_and_that_of_a_number_is_shared():
    own = train.threads.run(3, lambda comm: train.Random(0, "x").generator.random())
    assert own == [train.Random(0, "x", rank).generator.random() for rank in range(3)]
    assert len(set(train.threads.run(3, lambda comm: train.Random(0, "x", 0).generator.random()))) == 1
    assert train.threads.run(1, lambda comm: train.Random(0, "x").per_rank) == [True]
    assert not train.Random(0, "x", 0).per_rank


def test_streams_of_a_mesh_differ_on_data_ranks_and_stages_only():
    def on_rank(comm):
        mesh = train.Mesh(comm, tensor=2, data=2, pipeline=2, tasks=2)
        stream, of_data = train.Random(0, "x", mesh=mesh), train.Random(0, "x", mesh.data)
        assert stream.per_rank
        assert ("stage=1" in repr(stream)) == (mesh.place["pipeline"] == 1)
        return mesh.place["data"], mesh.place["pipeline"], stream.generator.random(), of_data.generator.random()

    found = train.threads.run(16, on_rank)
    assert len({(data, stage, number) for data, stage, number, _ in found}) == 4
    assert len({number for _, _, number, _ in found}) == 4
    assert all((number == of_data) == (stage == 0) for _, stage, number, of_data in found)
    with pytest.raises(TypeError, match="comm or mesh, not both"):
        train.Random(0, "x", 0, mesh=SimpleNamespace(place={"data": 0, "pipeline": 0}))


def test_torch_is_seeded_and_its_state_saved():
    program = """
import sys
from types import SimpleNamespace
from collectives import train
assert "torch" not in sys.modules
try:
    train.TorchRandom(0, comm=0)
except ValueError as e:
    assert "not imported" in str(e)
else:
    raise AssertionError
import torch
first = train.TorchRandom(0, "dropout", 1)
a = torch.rand(5)
state = first.state_dict()
b = torch.rand(5)
assert train.TorchRandom(0, "dropout", 1) and torch.equal(torch.rand(5), a)
assert train.TorchRandom(0, "dropout", 2) and not torch.equal(torch.rand(5), a)
for stage in range(2):
    mesh = SimpleNamespace(place={"tasks": 0, "pipeline": stage, "data": 1, "tensor": 0})
    assert train.TorchRandom(0, "dropout", mesh=mesh) and torch.equal(torch.rand(5), a) == (stage == 0)
first.load_state_dict(state)
assert torch.equal(torch.rand(5), b)
print("well")
"""
    done = mpiexec("openmpi", 1, "-c", program, env=torch_for("openmpi"))
    assert done.stdout == "well\n", done.stdout + done.stderr
