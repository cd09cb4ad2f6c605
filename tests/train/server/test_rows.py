"""Tables of rows on servers, on ranks that are threads."""

import functools

import numpy as np
import pytest

from collectives import train
from collectives.train import threads
from collectives.train.server.messages import CHUNK


def model():
    net = train.mlp((6,), 3, rng=np.random.default_rng(0), dtype=np.float64)
    return net, train.SGD(net.parameters(), 0.05)


def embedding(comm, strategy, steps=20):
    """Trains rows so that the row of key k becomes k; the rows at the end, as the first worker reads them."""
    net, opt = model()
    table = strategy.tables["embedding"]
    net, opt = train.distribute(net, opt, strategy, comm=comm)
    rng = np.random.default_rng(comm.rank)
    for _ in range(steps if strategy.worker else 0):
        keys = rng.integers(0, table.rows, (5, 2))
        rows = table.pull(keys)
        assert rows.shape == (5, 2, table.width)
        net(np.zeros((5, 6))).backward(np.zeros((5, 3)))
        table.push(keys, (rows - keys[..., None]) / 5)
        opt.step()
    rows = table.pull(np.arange(table.rows)) if strategy.worker else None
    strategy.close()
    return rows


def reference(workers, rows, width, optimizer, scale, steps=20):
    """The same in one process."""
    table = train.Table(rows, width, dtype=np.float64, scale=scale)
    data = np.random.default_rng([table.seed, 0]).standard_normal((rows, width)) * scale
    parameter = train.Parameter(data, "rows")
    opt = optimizer([parameter])
    rngs = [np.random.default_rng(rank) for rank in range(workers)]
    for _ in range(steps):
        gradient = np.zeros_like(data)
        for rng in rngs:
            keys = rng.integers(0, rows, (5, 2)).ravel()
            np.add.at(gradient, keys, (data[keys] - keys[:, None]) / 5 / workers)
        places = np.flatnonzero(gradient.any(axis=1))
        opt.step_rows(0, places, gradient[places])
    return data


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize(
    "optimizer", [functools.partial(train.SGD, lr=0.5), functools.partial(train.Adam, lr=0.1)], ids=["sgd", "adam"]
)
def test_rows_are_trained_as_in_one_process(servers, optimizer):
    def on_rank(comm):
        table = train.Table(40, 3, dtype=np.float64, optimizer=optimizer, scale=0.1)
        return embedding(comm, train.ParameterServer(servers, tables={"embedding": table}))

    found = threads.run(2 + servers, on_rank, timeout=60)
    expected = reference(2, 40, 3, optimizer, 0.1)
    np.testing.assert_allclose(found[0], expected, atol=1e-12)
    np.testing.assert_array_equal(found[1], found[0])


def test_rows_are_trained_asynchronously_and_asked_for_in_parts():
    width = CHUNK // 8 // 3  # a message has few rows

    def on_rank(comm):
        table = train.Table(7, width, dtype=np.float64, optimizer=functools.partial(train.SGD, lr=0.5))
        return embedding(comm, train.SSP(1, 2, tables={"embedding": table}), steps=60)

    rows = threads.run(4, on_rank, timeout=60)[0]
    assert np.abs(rows - np.arange(7)[:, None]).max() < 0.5


def test_wrong_keys_and_gradients():
    def on_rank(comm):
        table = train.Table(5, 2)
        with pytest.raises(RuntimeError, match="not on servers"):
            table.pull([0])
        _, opt = train.distribute(*model(), train.ParameterServer(tables={"t": table}), comm=comm)
        if opt.strategy.worker:
            for keys, kind in (([5], IndexError), ([-1], IndexError), ([0.0], TypeError)):
                with pytest.raises(kind, match="key"):
                    table.pull(keys)
            with pytest.raises(ValueError, match="gradients of shape"):
                table.push([0, 1], np.zeros((1, 2)))
            with pytest.raises(RuntimeError, match="push them after it"):
                table.push([0], np.zeros((1, 2)))
        opt.strategy.close()

    threads.run(2, on_rank, timeout=60)
    for rows, width, how in ((0, 1, {}), (1, 0, {}), (1, 1, {"scale": -1})):
        with pytest.raises(ValueError, match="must be at least 1|scale"):
            train.Table(rows, width, **how)


def test_a_saved_table_has_the_steps_of_the_server_that_made_most():
    """All keys are on server 1."""

    def on_rank(comm):
        table = train.Table(8, 2, optimizer=functools.partial(train.Adam, lr=0.1))
        net, opt = train.distribute(*model(), train.ParameterServer(2, tables={"rows": table}), comm=comm)
        saved = None
        if opt.strategy.worker:
            for _ in range(3):
                net(np.zeros((1, 6))).backward(np.zeros((1, 3)))
                table.push([1, 3], np.ones((2, 2)))
                opt.step()
            saved = table.state_dict()["steps"]
        opt.strategy.close()
        return saved

    assert threads.run(4, on_rank, timeout=60) == [3, 3, None, None]
