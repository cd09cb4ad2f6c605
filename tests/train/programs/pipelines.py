"""Pipelines of NumPy stages on real ranks: the weights of one process on every mesh of as many ranks; and a failure."""

import pytest
from mesh_training import alone as graph_alone
from mesh_training import compare, trained
from mpi4py import MPI
from pipeline_training import LOSS, X, Y, alone, assert_same, chain, on_mesh

import collectives
from collectives import PeerFailure, train

COMM = collectives.Communicator(MPI.COMM_WORLD)
MESHES = [
    {"pipeline": pipeline, "data": data, "tasks": COMM.size // (pipeline * data)}
    for pipeline in (1, 2, 4)
    for data in (1, 2, 4)
    if COMM.size % (pipeline * data) == 0
]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"])
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_every_mesh_trains_as_one_process(shape, schedule):
    expected, loss = alone(clip=0.5)
    state, value, _ = on_mesh(COMM, shape, schedule, clip=0.5, micro_batches=4, recompute=schedule == "gpipe")
    assert_same(state, expected)
    assert value == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize("route", ["relay", "direct"])
@pytest.mark.parametrize("shape", [{"pipeline": 2, "tensor": 2}, {"pipeline": 4}], ids=str)
def test_a_graph_on_stages_with_cut_layers(shape, route):
    compare([trained(COMM, {**shape, "data": COMM.size // 4}, route=route)], graph_alone(), whole=False)


def test_several_ranks_for_a_stage():
    expected, loss = alone(clip=0.5)
    replicas = [1, 2, COMM.size - 3]
    state, value, _ = on_mesh(COMM, {"pipeline": COMM.size}, clip=0.5, micro_batches=7, replicas=replicas)
    assert_same(state, expected)
    assert value == pytest.approx(loss, abs=1e-12)


def test_a_freed_pipeline_says_so():
    pipe = train.Pipeline(chain(), COMM, micro_batches=4)
    pipe.step(X, Y, LOSS)
    pipe.free()
    pipe.free()
    with pytest.raises(RuntimeError, match="this pipeline was freed"):
        pipe.step(X, Y, LOSS)


def test_a_stage_that_raises_is_named_on_all_ranks():
    def broken(x):
        raise ArithmeticError("too hot")

    net = chain()
    if COMM.rank == COMM.size - 1:
        net.layers[-1].forward = broken
    pipe = train.Pipeline(net, COMM, micro_batches=4)
    with pytest.raises(ArithmeticError if COMM.rank == COMM.size - 1 else PeerFailure, match="too hot"):
        pipe.step(X, Y, LOSS)
