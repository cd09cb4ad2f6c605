"""What an array on a GPU says of itself: address, type, stream; and how calls are cut into pieces."""

import math
import types
import weakref

import numpy as np
import pytest

from collectives.cuda import arrays, lanes, staging
from collectives.cuda.arrays import DEFAULT_STREAM, array_of, stream_of


class Interface:
    def __init__(self, **given):
        self.__cuda_array_interface__ = {
            "shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3, "strides": None, **given,
        }  # fmt: skip


class Tensor:
    """What the library asks of torch's tensors."""

    dtype, device = "torch.bfloat16", types.SimpleNamespace(type="cuda", index=1)

    def data_ptr(self):
        return 8192

    def is_contiguous(self):
        return True

    def numel(self):
        return 10

    def element_size(self):
        return 2


@pytest.fixture
def on_device_one(monkeypatch):
    monkeypatch.setattr(arrays, "driver", lambda: types.SimpleNamespace(ordinal=lambda address: 1))


@pytest.mark.usefixtures("on_device_one")
def test_an_array_with_the_interface():
    found = array_of(Interface(stream=7), "sendbuf", True)
    assert (found.memory.address, found.nbytes, found.memory.type.name) == (4096, 24, "float32")
    assert (found.device, found.stream, found.exports) == (1, 7, False)


def test_an_array_without_elements_has_no_device():
    found = array_of(Interface(shape=(0, 3), data=(0, False)), "sendbuf", True)
    assert (found.nbytes, found.device, found.stream) == (0, 0, None)


@pytest.mark.usefixtures("on_device_one")
@pytest.mark.parametrize(
    ("shape", "strides"), [((2, 3), (12, 4)), ((2, 3), (4, 8)), ((2, 1), (4, 99)), ((1, 1), (9, 9)), ((), ())]
)
def test_contiguous_in_either_order(shape, strides):
    assert array_of(Interface(shape=shape, strides=strides), "sendbuf", False).nbytes == 4 * math.prod(shape)


@pytest.mark.parametrize("strides", [(24, 8), (-12, 4), (4, 12), (0, 0)])
def test_strided_arrays_are_refused(strides):
    with pytest.raises(ValueError, match="sendbuf: the array is strided"):
        array_of(Interface(strides=strides), "sendbuf", False)


def test_read_only_arrays_are_refused_as_results_only(on_device_one):
    with pytest.raises(ValueError, match="recvbuf: the array is read-only"):
        array_of(Interface(data=(4096, True)), "recvbuf", True)
    assert array_of(Interface(data=(4096, True)), "sendbuf", False).nbytes == 24


def test_a_tensor_of_torch():
    found = array_of(Tensor(), "buf", True)
    assert (found.memory.address, found.nbytes, found.memory.type.name) == (8192, 20, "bfloat16")
    assert found.device == 1


class Exported:
    """An array with DLPack of now, which exports a copy only if it may."""

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy is False:
            raise BufferError("it can only be copied")
        return np.zeros(6).__dlpack__()


class Copied:
    """An array with DLPack from before 2023, which exports a copy."""

    def __dlpack__(self, *, stream=None):
        made = np.arange(6.0)
        self.made, self.address = weakref.ref(made), made.ctypes.data
        return made.__dlpack__()


def test_exported_copies_are_refused_or_kept(monkeypatch):
    """A message would be written to a copy in vain, and a copy that nobody keeps is freed memory."""
    monkeypatch.setattr(arrays, "_CUDA", 1)  # memory of the host counts as that of a GPU
    with pytest.raises(ValueError, match="recvbuf: it can only be copied"):
        array_of(Exported(), "recvbuf", True)
    thing = Copied()
    found = array_of(thing, "sendbuf", False)
    assert (found.memory.address, found.nbytes, found.memory.type.name) == (thing.address, 48, "float64")
    memory = found.memory
    del found
    assert thing.made() is not None
    del memory
    assert thing.made() is None


@pytest.mark.parametrize(
    ("given", "handle"),
    [
        (0, 0), (12, 12), (types.SimpleNamespace(cuda_stream=3), 3), (types.SimpleNamespace(ptr=4), 4),
        (types.SimpleNamespace(handle=types.SimpleNamespace(value=5)), 5),
        (types.SimpleNamespace(handle=types.SimpleNamespace(value=None)), DEFAULT_STREAM),
        (types.SimpleNamespace(__cuda_stream__=(0, 6)), 6),
    ],
)  # fmt: skip
def test_streams(given, handle):
    assert stream_of(given) == handle


@pytest.mark.parametrize("given", [True, -1, "1", 1.5])
def test_what_is_no_stream(given):
    with pytest.raises(TypeError, match="stream: expected a CUDA stream"):
        stream_of(given)


@pytest.mark.parametrize("blocks", [1, 2, 3, 100])
@pytest.mark.parametrize("unit", [1, 4, 16, 48, 5 << 20])
@pytest.mark.parametrize("length", [0, 1, 1000, 300_000])
def test_pieces_cover_a_block_and_fit_in_a_slot(blocks, unit, length):
    block = length * unit
    cuts = staging.pieces(block, blocks, unit)
    assert (cuts[0][0], cuts[-1][1]) == (0, block)
    assert all(end == begin for (_, end), (begin, _) in zip(cuts, cuts[1:], strict=False))
    assert all((end - begin) % unit == 0 for begin, end in cuts)
    assert all((end - begin) * blocks <= max(lanes.SLOT, blocks * unit) for begin, end in cuts)
    assert len(cuts) == 1 or min(end - begin for begin, end in cuts[:-1]) > 0


def test_parts_of_a_piece():
    side = staging.Side(1000, 3, 100, True)
    assert list(side.parts(0, 100)) == [(1000, 0, 300)]
    assert list(side.parts(0, staging.ALL)) == [(1000, 0, 300)]
    assert list(side.parts(40, 70)) == [(1040, 0, 30), (1140, 30, 30), (1240, 60, 30)]
    covered = np.zeros(300, int)
    for begin in range(0, 100, 30):
        for address, _, nbytes in side.parts(begin, min(begin + 30, 100)):
            covered[address - 1000 : address - 1000 + nbytes] += 1
    assert (covered == 1).all()
