"""Strategies that exchange parameters, on the ranks of a job: as on ranks that are threads of one process."""

import time

import numpy as np
import pytest
from local_training import NEAR, adam, begin, flat, momentum, scatter, steps, still, trained, uneven
from mpi4py import MPI

import collectives
from collectives import train
from collectives.train import graphs
from collectives.train.traffic import Traffic, counted

COMM = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
DIRECTED = graphs.random(degree=1, seed=4, rounds=3, directed=True)
DETERMINISTIC = {
    "local_sgd": lambda: train.LocalSGD(3),
    "by a master": lambda: train.LocalSGD(3, master=SIZE - 1, merge_optimizer=True),
    "post_local": lambda: train.LocalSGD(3, start=2, stop=7),
    "diloco": lambda: train.DiLoCo(3),
    "fedavg": lambda: train.FedAvg(3, 0.6),
    "easgd": lambda: train.EASGD(3),
    "ring": train.NeighborAveraging,
    "overlap": lambda: train.NeighborAveraging(overlap=True),
    "one_peer": lambda: train.NeighborAveraging("one_peer_exponential"),
    "push_sum": lambda: train.PushSum(DIRECTED),
}


@pytest.mark.parametrize("name", DETERMINISTIC)
@pytest.mark.parametrize("comm", [COMM, MPI.COMM_WORLD], ids=["ours", "mpi4py's"])
def test_jobs_and_threads_train_alike(name, comm):
    expected = train.threads.run(SIZE, lambda comm: trained(comm, DETERMINISTIC[name](), 10, momentum, uneven))
    assert np.abs(trained(comm, DETERMINISTIC[name](), 10, momentum, uneven) - expected[RANK]).max() < NEAR


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_two_runs_have_the_same_bits(name):
    first, second = (trained(COMM, DETERMINISTIC[name](), 10, adam) for _ in range(2))
    assert (first == second).all()


def mean_of(x):
    total = x.copy()
    COMM.Allreduce(MPI.IN_PLACE, total)
    return total / SIZE


@pytest.mark.parametrize("slow", [None, 0, SIZE - 1])
@pytest.mark.parametrize("comm", [COMM, MPI.COMM_WORLD], ids=["ours", "mpi4py's"])
def test_asynchronous_pairs_preserve_the_mean_beside_a_slow_rank(slow, comm):
    net, opt = begin(comm, train.ADPSGD(final_average=False), still)
    scatter(opt, RANK)
    before, distance = flat(net), opt.strategy.consensus_distance()
    COMM.Barrier()
    begun = time.monotonic()
    for step in range(20):
        steps(net, opt, comm, step, step + 1)
        time.sleep(0.03 if slow == RANK else 0.003)
    seconds = time.monotonic() - begun
    opt.strategy.finish()
    assert np.abs(mean_of(before) - mean_of(flat(net))).max() < NEAR
    if SIZE > 1:
        assert opt.strategy.exchanges > 0
        assert opt.strategy.consensus_distance() < 0.5 * distance
    every = COMM.allgather(seconds)
    if slow is not None and SIZE > 1:
        assert min(every) < 0.6 * every[slow], every


def test_messages_to_neighbours_are_counted():
    traffic = Traffic()
    net, opt = begin(counted(COMM, traffic), train.NeighborAveraging("ring", final_average=False))
    before = traffic.bytes
    steps(net, opt, COMM, 0, 3)
    neighbours = len(set(range(SIZE)) & {(RANK + 1) % SIZE, (RANK - 1) % SIZE} - {RANK})
    assert traffic.bytes - before == 3 * neighbours * flat(net).nbytes


def test_a_graph_that_is_not_connected_is_an_error_on_all_ranks():
    if SIZE > 1:
        with pytest.raises(ValueError, match="not connected"):
            begin(COMM, train.NeighborAveraging(np.eye(SIZE)))
    COMM.Barrier()
