"""What ranks of a pipeline notice of each other: other batches, and failures of a pipeline that they wait for."""

import threading
import time

import numpy as np
import pytest
from pipeline_training import LOSS, X, Y, chain, sgd, stream

from collectives import PeerFailure, train
from collectives.train import threads


def on_other_batches(comm, mine, **options):
    """Two steps. In the second one rank 1 has `mine`, the others X and Y."""
    pipe = train.Pipeline(chain(), comm, micro_batches=4, **options)
    pipe.step(X, Y, LOSS)
    return pipe.step(*(mine if comm.rank == 1 else (X, Y)), LOSS)


def test_other_batches_of_the_same_length_are_noticed():
    """They would give wrong gradients without an error: the first stage has the inputs, the last one the labels."""
    order = np.random.default_rng(0).permutation(len(X))
    with pytest.raises(ValueError, match="need the same batches; rank 1 has other elements of labels than rank 0"):
        threads.run(2, lambda comm: on_other_batches(comm, (X[order], Y[order])))


def test_only_inputs_that_are_read_must_be_the_same():
    """A rank that reads no inputs need not make them: they may be costly, or drawn at random."""
    losses = threads.run(3, lambda comm: on_other_batches(comm, (X + 1, Y)))
    assert losses == pytest.approx(3 * threads.run(1, lambda comm: on_other_batches(comm, None)), abs=1e-12)
    with pytest.raises(ValueError, match="rank 1 has other elements of input 0 than rank 0"):
        threads.run(3, lambda comm: on_other_batches(comm, (X + 1, Y), replicas=[2, 1]))


def test_other_batches_of_a_stream_are_noticed():
    rng = np.random.default_rng(6)
    batches = [(rng.standard_normal((8, 8)), rng.integers(0, 3, 8)) for _ in range(5)]
    other = [*batches[:3], (batches[3][0], (batches[3][1] + 1) % 3), batches[4]]
    with pytest.raises(ValueError, match="rank 1 has other elements of labels than rank 0"):
        threads.run(2, lambda comm: stream(comm, "pipedream", 1, other if comm.rank else batches))


def test_a_pipeline_that_fails_is_named_by_those_that_wait_for_it():
    """Its program goes on, so nothing else would tell the other pipeline, which waits in the optimizer's step."""
    together = threading.Barrier(4)

    def broken(x):
        raise ArithmeticError("too hot")

    def on_rank(comm):
        mesh = train.Mesh(comm, data=2, pipeline=2)
        pipe = train.Pipeline(chain(), mesh.pipeline, micro_batches=4)
        pipe, opt = train.distribute(pipe, sgd(pipe.parameters()), mesh=mesh)
        if mesh.place == {"tasks": 0, "pipeline": 1, "data": 0, "tensor": 0}:
            time.sleep(0.3)  # the other pipeline waits by then
            pipe.net.layers[0].forward = broken

        def step():
            pipe.step(X, Y, LOSS)
            opt.step()

        begin = time.monotonic()
        with pytest.raises((ArithmeticError, PeerFailure), match="too hot") as caught:
            step()
        seconds = time.monotonic() - begin
        with pytest.raises(RuntimeError, match="this pipeline failed in an earlier step"):
            opt.zero_grad()
        together.wait(30)
        return seconds, mesh.place["data"], str(caught.value)

    for seconds, data, text in threads.run(4, on_rank, timeout=60):
        assert seconds < 10
        if data == 1:
            assert text == "rank 2 of the mesh, stage 1 of the pipeline failed: ArithmeticError: too hot"
