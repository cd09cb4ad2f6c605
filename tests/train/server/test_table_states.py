"""States of tables on servers: what fits, what does not, and what goes on from them. On ranks that are threads."""

import functools
from unittest.mock import Mock

import numpy as np
import pytest

from collectives import train
from collectives.train import threads
from collectives.train.checkpoint.sharded import Piece, Stored


def begun(comm, servers=1, **tables):
    net = train.Sequential(train.Linear(2, 2, rng=np.random.default_rng(0)))
    strategy = train.ParameterServer(servers, tables=tables)
    return train.distribute(net, train.SGD(net.parameters(), 0.1), strategy, comm=comm)


def stepped(net, opt, table, *keys):
    train.CrossEntropyLoss()(net(np.ones((1, 2), np.float32)), np.array([0])).backward()
    table.push(keys, np.full((len(keys), table.width), 0.5))
    opt.step()


def stored(state):
    """As a checkpoint gives it back."""

    def leaf(one):
        return Stored([Piece(0, len(one.array), lambda i, j: one.array[i:j])], one.total, one.array.dtype)

    return {**state, "arrays": [leaf(one) for one in state["arrays"]]}


def saved(comm, table):
    """A state and the rows of a table that was drawn, on the worker; None on the server."""
    _, opt = begun(comm, table=table)
    found = (stored(table.state_dict()), table.pull(np.arange(table.rows))) if opt.strategy.worker else None
    opt.strategy.close()
    return found


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((2, 2), r"the table has 4 elements, the state \(12,\)"), ((7, 2), r"the table has 14 elements"),
        ((3, 4), "the state is of rows of 2 elements, the table of 4"),
    ],
)  # fmt: skip
def test_a_state_of_another_table_is_refused(shape, why):
    def on_rank(comm):
        found = saved(comm, train.Table(6, 2, scale=1.0))
        table = train.Table(*shape)
        _, opt = begun(comm, table=table)
        if opt.strategy.worker:
            with pytest.raises(ValueError, match=why):
                table.load_state_dict(found[0])
            assert not table.pull([0, 1]).any()
        opt.strategy.close()

    threads.run(2, on_rank, timeout=60)


def test_a_state_that_one_worker_cannot_read_is_its_error():
    """The other worker does not wait for it."""

    def on_rank(comm):
        found = saved(comm, train.Table(6, 2, scale=1.0))
        table = train.Table(6, 2)
        _, opt = begun(comm, table=table)
        told = None
        if opt.strategy.worker:
            state = found[0]
            if comm.rank == 1:
                unreadable = Mock(shape=(12,), read=Mock(side_effect=OSError("no disk")))
                state = {**state, "arrays": [unreadable for _ in state["arrays"]]}
            try:
                table.load_state_dict(state)
            except OSError as error:
                told = str(error)
        opt.strategy.close()
        return told

    assert threads.run(3, on_rank, timeout=60).count("no disk") == 1


def test_a_state_of_another_type_is_converted():
    def on_rank(comm):
        found = saved(comm, train.Table(6, 2, scale=1.0, dtype=np.float64))
        table = train.Table(6, 2)
        _, opt = begun(comm, table=table)
        if opt.strategy.worker:
            table.load_state_dict(found[0])
            np.testing.assert_array_equal(table.pull(np.arange(6)), found[1].astype(np.float32))
        opt.strategy.close()

    threads.run(2, on_rank, timeout=60)


@pytest.mark.parametrize("servers", [1, 2])
def test_training_goes_on_as_if_it_had_not_stopped(servers):
    """Also if the rows of a server were changed in few of the steps: the optimizer counts them all."""

    def on_rank(comm):
        table = train.Table(4, 1, optimizer=functools.partial(train.Adam, lr=0.1))
        net, opt = begun(comm, servers, table=table)
        rows = []
        if opt.strategy.worker:
            stepped(net, opt, table, 0, 1)
            for _ in range(9):
                stepped(net, opt, table, 0)
            state = stored(table.state_dict())
            stepped(net, opt, table, 0, 1)
            rows.append(table.pull([0, 1]))
        opt.strategy.close()
        table = train.Table(4, 1, optimizer=functools.partial(train.Adam, lr=0.1))
        net, opt = begun(comm, servers, table=table)
        if opt.strategy.worker:
            table.load_state_dict(state)
            stepped(net, opt, table, 0, 1)
            rows.append(table.pull([0, 1]))
        opt.strategy.close()
        return rows

    (found, *_) = threads.run(servers + 1, on_rank, timeout=60)
    np.testing.assert_array_equal(*found)


def test_the_order_in_which_tables_are_given_does_not_matter():
    def on_rank(comm):
        tables = {"user": train.Table(4, 2), "item": train.Table(4, 2)}
        net, opt = begun(comm, **dict(reversed(tables.items()) if comm.rank == 1 else tables.items()))
        found = None
        if opt.strategy.worker:
            stepped(net, opt, tables["user"], 0)
            opt.strategy.meet()
            found = [table.pull([0]).any() for table in tables.values()]
        opt.strategy.close()
        return found

    assert threads.run(3, on_rank, timeout=60) == [[True, False], [True, False], None]
