"""What a communicator says of itself, and that errors of wrong arguments name the method that was called."""

import inspect
import re

import numpy as np
import pytest
from mpi4py import MPI

import collectives
from collectives.arguments.calls import COLLECTIVES

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
WITH_BUFFERS = [form for c in COLLECTIVES.values() for form in (c.method, f"I{c.name}", f"{c.method}_init")]
OURS = [
    name for name, value in inspect.getmembers(collectives.Communicator, inspect.isroutine)
    if not name.startswith("_") and value.__module__.startswith("collectives")
]  # fmt: skip


@pytest.fixture(scope="module", params=["fast", "checked", "mpi"])
def comm(request):
    """The fast path; the slow one, since calls are compared first; and the MPI library's own collectives."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "checked":
            patch.setenv("COLLECTIVES_CHECK", "1")
        if request.param == "mpi":
            patch.setenv("COLLECTIVES_ALGORITHM", "all=mpi")
        made = collectives.Communicator(MPI.COMM_WORLD)
    yield made
    made.Free()


@pytest.mark.parametrize("name", WITH_BUFFERS)
def test_missing_and_surplus_arguments_name_the_method(comm, name):
    method, x = getattr(comm, name), np.ones(SIZE)
    positional = [p for p in inspect.signature(method).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    needed = [p.name for p in positional if p.default is p.empty]
    for given in range(len(needed)):
        with pytest.raises(TypeError, match=rf"^{name}\(\) missing .*'{needed[-1]}'$"):
            method(*[x] * given)
    for absent in needed:  # by keyword, too
        with pytest.raises(TypeError, match=rf"^{name}\(\) missing 1 required positional argument: '{absent}'$"):
            method(**{other: x for other in needed if other != absent})
    with pytest.raises(TypeError, match=rf"^{name}\(\) takes .* given$"):
        method(*[x] * (len(positional) + 1))
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'algoritm'$"):
        method(*[x] * len(needed), algoritm="ring")
    total = np.empty(SIZE)
    comm.Allreduce(x, total)  # nothing was sent
    assert total.tolist() == [SIZE] * SIZE


@pytest.mark.parametrize("name", [name for name in OURS if name not in WITH_BUFFERS])
def test_surplus_arguments_name_the_method(comm, name):
    with pytest.raises(TypeError, match=rf"\b{getattr(comm, name).__name__}\(\) takes"):
        getattr(comm, name)(*range(20))


def test_what_a_communicator_shows():
    made = collectives.Communicator(MPI.COMM_WORLD)
    assert re.fullmatch(
        rf"<collectives\.Communicator: rank {RANK} of {SIZE} on 1 host, engine: shared memory>", repr(made)
    )
    duplicate, request = made.Idup()
    request.Wait()
    assert repr(duplicate) == f"<collectives.Communicator: rank {RANK} of {SIZE}, not set up>"
    assert "Cartcomm: rank" in repr(made.Create_cart([SIZE]))
    assert repr(collectives.Communicator()) == "<collectives.Communicator: null>"
    made.Free()
    assert repr(made) == "<collectives.Communicator: null>"


@pytest.mark.parametrize(
    ("text", "engine"),
    [("all=mpi", "MPI"), ("ring", "shared memory, for some calls MPI"), ("all=shm", "shared memory")],
)
def test_the_engine_is_that_of_the_rules(monkeypatch, text, engine):
    monkeypatch.setenv("COLLECTIVES_ALGORITHM", text)
    made = collectives.Communicator(MPI.COMM_WORLD)
    assert repr(made).endswith(f"engine: {engine}>")
    made.Free()


def test_arrays_are_moved_to_shared_memory(world):
    for array in (
        np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(7, np.float32),
        np.arange(10)[::2], np.zeros((0, 3)), [1.5, 2.5],
    ):  # fmt: skip
        made = world.share(array)
        np.testing.assert_array_equal(made, array)
        assert made.dtype == np.asarray(array).dtype
        assert made.flags.f_contiguous == np.asarray(array).flags.f_contiguous or made.flags.c_contiguous
        made[...] = 0
        if np.size(array):
            assert np.any(np.asarray(array))  # the array itself is as it was
        assert made.nbytes == 0 or world.share(made) is made
    with pytest.raises(TypeError, match="Python objects"):
        world.share(np.array([None]))
    x, y = world.share(np.full(1000, float(RANK))), world.empty(1000)
    world.Allreduce(x, y)
    assert (y == SIZE * (SIZE - 1) / 2).all()
