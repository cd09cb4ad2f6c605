"""The options of a call: no call changes them for another one."""

import contextlib
import dataclasses
import types

import numpy as np
import pytest
from mpi4py import MPI

import collectives
from collectives.arguments.calls import COLLECTIVES, Arguments, Options
from collectives.arguments.memory import OnDevice
from collectives.communicator import device_calls, device_requests
from collectives.communicator.blocking import DEFAULTS


@pytest.fixture
def comms():
    made = [collectives.Communicator(MPI.COMM_SELF) for _ in range(2)]
    yield made
    for each in made:
        each.Free()


@pytest.fixture
def served(monkeypatch):
    """Calls on a GPU are made without one: the options with which they would run."""
    found = []
    order = types.SimpleNamespace(
        lane=contextlib.nullcontext(types.SimpleNamespace(down=0, up=0)), hand_over=lambda down, up: None
    )
    order.lane.down = order.lane.up = 0

    def prepared(comm, context, collective, arguments, options, what):
        draft = comm._draft(context, collective, arguments)
        return types.SimpleNamespace(draft=draft), lambda: order

    monkeypatch.setattr(device_calls, "prepared", prepared)
    monkeypatch.setattr(device_calls, "run_checked", lambda comm, call, options, order: found.append(options))
    return found


@pytest.mark.parametrize("strict", [False, True])
def test_a_call_on_a_gpu_leaves_the_defaults(comms, served, strict):
    """It keeps its communicator's order in options of its own, since it runs on a duplicate."""
    one, other = comms
    one.deterministic, other.deterministic = strict, not strict
    arguments = Arguments(np.ones(3), np.zeros(3), MPI.SUM)
    for make in (device_requests.start, device_requests.init):
        made = make(one, one._enter(), COLLECTIVES["allreduce"], arguments, DEFAULTS, OnDevice("sendbuf"))
        if isinstance(made, MPI.Prequest):
            made.Start()
        made.Wait()
    assert [options.deterministic for options in served] == [strict, strict]
    assert DEFAULTS == Options()
    draft = other._draft(other._enter(), COLLECTIVES["allreduce"], arguments)
    assert other._linear(draft, DEFAULTS) is not strict


def test_options_do_not_change():
    for name in (field.name for field in dataclasses.fields(Options)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(DEFAULTS, name, None)
