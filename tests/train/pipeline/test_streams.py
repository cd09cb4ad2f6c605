"""Streams of batches without a flush: on a data axis, and from loaders."""

from types import SimpleNamespace

import numpy as np
import pytest
from pipeline_training import LOSS, X, Y, assert_same, chain, delayed, sgd, stream

from collectives import PeerFailure, train
from collectives.train import threads
from collectives.train.pipeline.activations import Activations
from collectives.train.pipeline.layout import Layout
from collectives.train.pipeline.pipedream_2bw import PipeDream2BW
from collectives.train.pipeline.placement import Placement


@pytest.mark.parametrize(("schedule", "micro"), [("pipedream", 1), (PipeDream2BW(accumulate=2), 2)])
def test_parts_whose_lengths_change_from_batch_to_batch(schedule, micro):
    """Of a batch of five samples the data ranks have three and two, of the next one two and three."""
    rng = np.random.default_rng(7)
    batches = [(rng.standard_normal((5, 8)), rng.integers(0, 3, 5)) for _ in range(6)]

    def on_rank(comm):
        mesh = train.Mesh(comm, data=2, pipeline=2)
        pipe = train.Pipeline(chain(), mesh.pipeline, schedule=schedule, micro_batches=micro)
        pipe, opt = train.distribute(pipe, sgd(pipe.parameters()), mesh=mesh)
        parts = [slice(0, 3 - number % 2) if mesh.data.rank == 0 else slice(3 - number % 2, 5) for number in range(6)]
        mine = [(x[part], y[part]) for (x, y), part in zip(batches, parts, strict=True)]
        pipe.stream(mine, LOSS, opt)
        state = pipe.state_dict()
        pipe.free()
        return mesh.place["pipeline"], state

    found = threads.run(4, on_rank, timeout=60)
    stage = {name: number for number, state in found for name in state}
    expected = delayed(batches, 2, stage, (lambda s: 1 - s) if micro == 1 else (lambda s: 1))
    for _, state in found:
        assert_same(state, expected)


def test_blocks_that_share_a_parameter_get_their_own_weights_back():
    blocks = [train.Linear(3, 3, rng=np.random.default_rng(0)) for _ in range(2)]
    blocks[1].weight = blocks[0].weight
    graph = train.Graph()
    graph.add(blocks[1], graph.add(blocks[0]))
    layout = Layout(graph, Placement(0, 1, None), 1, "parameters", None, "relay")
    stage = layout.stage(0, Activations(), recompute=False)
    live = blocks[0].weight.data
    with stage._with_others({name: copy + 1 for name, copy in stage.copy_weights().items()}):
        assert blocks[0].weight.data is not live
    assert blocks[0].weight.data is live


def loader(**options):
    return train.Loader((X, Y), 8, comm=SimpleNamespace(rank=0, size=1), **options)


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"prefetch": 2}])
def test_a_loader_gives_an_epoch_after_the_other(options):
    """As its batches in a list do."""
    whole = loader(**options)
    batches = [batch for _ in range(2) for batch in whole]

    def on_rank(comm):
        data, pipe = loader(**options), train.Pipeline(chain(), comm, schedule="pipedream")
        opt = sgd(pipe.parameters())
        lengths = []
        for _ in range(2):
            lengths += [loss.samples for loss in pipe.stream(data, LOSS, opt)]
        assert lengths == [len(y) for _, y in batches]
        assert (data.epoch, data.position) == (2, 0)
        return pipe.state_dict()

    alone = [threads.run(1, lambda comm: stream(comm, "pipedream", 1, batches))[0][0], *threads.run(1, on_rank)]
    assert_same(alone[1], alone[0])
    threads.run(2, on_rank, timeout=20)


@pytest.mark.parametrize("used", [1, 3])
def test_a_loader_goes_on_within_its_epoch(used):
    def on_rank(comm):
        data, pipe = loader(), train.Pipeline(chain(), comm, schedule="pipedream")
        opt = sgd(pipe.parameters())
        state = data.state_dict() | {"position": min(8 * used, len(X))}
        data.load_state_dict(state)
        assert len(pipe.stream(data, LOSS, opt)) == 3 - used
        assert (data.epoch, data.position) == (1, 0)
        assert len(pipe.stream(data, LOSS, opt)) == 3

    threads.run(2, on_rank, timeout=20)


class Odd:
    """Three batches, as its length says, and `more`."""

    def __init__(self, more):
        self.more = more

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([(X, Y)] * (3 + self.more))


@pytest.mark.parametrize(("more", "words"), [(-1, "3 batches ended after 2"), (1, "3 batches has more than that")])
def test_streams_of_another_length_than_they_say(more, words):
    def on_rank(comm):
        pipe = train.Pipeline(chain(), comm, schedule="pipedream")
        with pytest.raises((ValueError, PeerFailure), match=f"a stream of {words}"):
            pipe.stream(Odd(more), LOSS, sgd(pipe.parameters()))

    threads.run(2, on_rank, timeout=20)
