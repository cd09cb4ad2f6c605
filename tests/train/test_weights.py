"""Whether the ranks' weights are equal, and who diverged: on ranks that are threads; on MPI's in tests/mpi."""

import numpy as np
import pytest
from jobs import mpiexec, torch_for

from collectives import train
from collectives.train.weights import digests, diverged


def net_of(seed=0, dtype=np.float32):
    return train.mlp((6,), 3, rng=np.random.default_rng(seed), dtype=dtype)


def check(changes, ranks, step=None):
    """What the check says on each rank, after ``changes[rank](parameters)``."""

    def on_rank(comm):
        net = net_of()
        changes.get(comm.rank, lambda parameters: None)(net.parameters())
        try:
            train.check_weights(net, comm, step)
        except train.WeightsDiverged as error:
            return error
        return None

    return train.threads.run(ranks, on_rank)


def flip(index, element=0):
    """A change of the lowest bit of one element of a parameter."""

    def change(parameters):
        parameters[index].data.reshape(-1).view(np.uint32)[element] ^= 1

    return change


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_equal_weights_pass(ranks):
    assert check({}, ranks) == [None] * ranks


@pytest.mark.parametrize("victim", [0, 2, 3])
@pytest.mark.parametrize("index", [0, 3, 5])
def test_one_bit_on_one_rank_names_rank_and_tensor(victim, index):
    name = net_of().parameters()[index].name
    errors = check({victim: flip(index)}, 4, step=300)
    assert [error.tensors for error in errors] == [{victim: [name]}] * 4
    assert str(errors[0]) == f"weights diverged at step 300, on 1 of 4 ranks: rank {victim} in {name}"


def test_of_two_ranks_both_are_named():
    errors = check({1: flip(2)}, 2)
    assert errors[0].tensors == errors[1].tensors == {0: ["3.weight"], 1: ["3.weight"]}
    assert str(errors[0]).endswith("no bits are those of more than half of the ranks")


def test_several_ranks_and_tensors():
    def two(parameters):
        flip(0)(parameters)
        flip(1, 2)(parameters)

    errors = check({1: two, 4: flip(5)}, 5)
    assert errors[3].tensors == {1: ["1.weight", "1.bias"], 4: ["5.bias"]}
    assert "rank 1 in 1.weight and 1 more; rank 4 in 5.bias" in str(errors[3])


def test_zeros_of_both_signs_and_nans_are_bits():
    def negative(parameters):
        parameters[1].data[...] = -parameters[1].data  # biases are zeros

    assert check({2: negative}, 3)[0].tensors == {2: ["1.bias"]}

    def nan(parameters):
        parameters[1].data[...] = np.nan

    assert check(dict.fromkeys(range(3), nan), 3) == [None] * 3


def test_no_majority_names_all():
    every = [{"a": bytes([rank // 2])} for rank in range(4)]
    assert diverged(every) == {rank: ["a"] for rank in range(4)}


def test_a_tensor_that_some_ranks_do_not_have():
    assert diverged([{"a": b"0"}, {"a": b"0"}, {"a": b"0", "b": b"1"}]) == {2: ["b"]}


def test_type_and_shape_count():
    assert dict(digests(net_of())) != dict(digests(net_of(dtype=np.float64)))


def test_modules_of_torch():
    program = """
import torch
from collectives import train
def one(comm, victim):
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2).bfloat16())
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(0.5)
        net[1].running_mean += comm.rank  # a buffer: each rank's own
        if comm.rank == victim:
            net[2].bias[1] += 0.01
    try:
        train.check_weights(net, comm)
    except train.WeightsDiverged as e:
        return e.tensors
print(train.threads.run(3, lambda comm: one(comm, None)), train.threads.run(3, lambda comm: one(comm, 1)))
"""
    done = mpiexec("openmpi", 1, "-c", program, env=torch_for("openmpi"))
    assert done.stdout == "[None, None, None] " + str([{1: ["2.bias"]}] * 3) + "\n", done.stdout + done.stderr
