"""The handler that XLA calls (csrc/xla), called as XLA calls it: with frames that are right, and with others."""

import ctypes

import numpy as np
import pytest

from collectives.core import _core

INT64, FLOAT32, TOKEN = 5, 11, 17
SCALAR = 3
EXECUTE = 3
BEGINNING = [("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p)]


class Version(ctypes.Structure):
    _fields_ = [*BEGINNING, ("major", ctypes.c_int), ("minor", ctypes.c_int)]


class NewError(ctypes.Structure):
    _fields_ = [*BEGINNING, ("message", ctypes.c_char_p), ("code", ctypes.c_int)]


CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(NewError))


class Api(ctypes.Structure):
    _fields_ = [*BEGINNING, ("version", Version), ("internal", ctypes.c_void_p), ("create", CREATE)]


class Buffer(ctypes.Structure):
    _fields_ = [
        *BEGINNING, ("dtype", ctypes.c_int), ("data", ctypes.c_void_p), ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]  # fmt: skip


class Buffers(ctypes.Structure):
    _fields_ = [
        *BEGINNING, ("size", ctypes.c_int64), ("types", ctypes.POINTER(ctypes.c_int)),
        ("items", ctypes.POINTER(ctypes.c_void_p)),
    ]  # fmt: skip


class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("length", ctypes.c_size_t)]


class Scalar(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("value", ctypes.POINTER(ctypes.c_int64))]


class Attributes(ctypes.Structure):
    _fields_ = [
        *BEGINNING, ("size", ctypes.c_int64), ("types", ctypes.POINTER(ctypes.c_int)),
        ("names", ctypes.POINTER(ctypes.POINTER(Text))), ("items", ctypes.POINTER(ctypes.c_void_p)),
    ]  # fmt: skip


class Frame(ctypes.Structure):
    _fields_ = [
        *BEGINNING, ("api", ctypes.POINTER(Api)), ("context", ctypes.c_void_p), ("stage", ctypes.c_int),
        ("arguments", Buffers), ("results", Buffers), ("attributes", Attributes),
    ]  # fmt: skip


class Metadata(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("version", Version)]


class MetadataExtension(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(Metadata)),
    ]  # fmt: skip


def sized(kind, **values):
    return kind(struct_size=ctypes.sizeof(kind), **values)


ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Frame))(
    ctypes.pythonapi.PyCapsule_GetPointer(_core.xla_handler(), None)
)
told = []


@CREATE
def create(args):
    told.append(args[0].message.decode())
    return 1


def api(version=(0, 3)):
    return sized(Api, version=sized(Version, major=version[0], minor=version[1]), create=create)


def buffers(*arrays):
    """Each is an array, or None for a token."""
    items = []
    for array in arrays:
        shape = () if array is None else array.shape
        made = sized(Buffer, dtype=TOKEN if array is None else FLOAT32, rank=len(shape))
        made.dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        made.data = None if array is None else array.ctypes.data
        items.append(made)
    pointers = (ctypes.c_void_p * max(len(items), 1))(*(ctypes.addressof(item) for item in items))
    return sized(Buffers, size=len(items), items=pointers), items


def frame_of(site, arguments, results, name=b"site", dtype=INT64):
    """A frame, and what must live as long."""
    value = ctypes.c_int64(site)
    scalar = Scalar(dtype, ctypes.pointer(value))
    text = Text(name, len(name))
    attributes = sized(
        Attributes, size=1, types=(ctypes.c_int * 1)(SCALAR), names=(ctypes.POINTER(Text) * 1)(ctypes.pointer(text)),
        items=(ctypes.c_void_p * 1)(ctypes.addressof(scalar)),
    )  # fmt: skip
    (given, a), (made, b), known = buffers(*arguments), buffers(*results), api()
    frame = sized(Frame, api=ctypes.pointer(known), stage=EXECUTE, arguments=given, results=made, attributes=attributes)
    return frame, (value, scalar, text, a, b, known)


def call(*args, **kwargs):
    """What a call says; None if it ends well."""
    told.clear()
    frame, _alive = frame_of(*args, **kwargs)
    failed = HANDLER(ctypes.byref(frame))
    assert bool(failed) == bool(told)
    return told[0] if told else None


@pytest.fixture
def site():
    """A call that doubles three numbers, by the slow path."""
    x, y = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)

    def double(source, target):
        assert (source, target) == (x.ctypes.data, y.ctypes.data)
        y[:] = 2 * x

    return _core.Site("doubled", None, double, 3, 3), x, y


def test_a_call(site):
    made, x, y = site
    assert call(made.number, [x, None], [y, None]) is None
    assert y.tolist() == [0, 2, 4]


def test_exceptions_become_errors():
    def fails(source, target):
        raise ArithmeticError("näher")

    made = _core.Site("failing", None, fails, -1, -1)
    assert call(made.number, [None], [None]) == "collectives.jax.failing: ArithmeticError: näher"
    assert isinstance(_core.xla_failure(), ArithmeticError)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_without_a_text():
    class Mute(Exception):
        def __str__(self):
            raise self

    def fails(source, target):
        raise Mute

    assert call(_core.Site("mute", None, fails, -1, -1).number, [None], [None]) == "collectives.jax: a call failed"


def test_wrong_frames(site):
    made, x, y = site
    right = made.number, [x, None], [y, None]
    assert "other shapes" in call(made.number, [x[:2], None], [y, None])
    assert "other shapes" in call(made.number, [None], [y, None])
    assert "more than one operand" in call(made.number, [x, x], [y])
    assert "no attribute site" in call(*right, name=b"cite")
    assert "no attribute site" in call(*right, name=b"sites")
    assert "no attribute site" in call(*right, dtype=INT64 - 1)
    assert "no attribute site" in call(-5, *right[1:])
    assert "another process" in call(1 << 40, *right[1:])
    assert y.tolist() == [0, 0, 0]


@pytest.mark.parametrize("part", ["", "arguments", "results", "attributes"])
def test_structs_that_are_too_short(site, part):
    made, x, y = site
    frame, _alive = frame_of(made.number, [x, None], [y, None])
    told.clear()
    short = getattr(frame, part) if part else frame
    short.struct_size -= 8
    assert HANDLER(ctypes.byref(frame))
    assert "other data than its interface promises" in told[0]


def test_other_stages_do_nothing(site):
    made, x, y = site
    frame, _alive = frame_of(made.number, [x, None], [y, None])
    frame.stage = 0
    assert not HANDLER(ctypes.byref(frame))
    assert y.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("version", "answer"), [((0, 1), (0, 1)), ((0, 3), (0, 3)), ((0, 9), (0, 3)), ((0, 0), (0, 0)), ((1, 2), (0, 0))]
)
@pytest.mark.parametrize("short", [False, True])
def test_the_version_is_the_newest_that_both_know(version, answer, short):
    """XLA refuses 0.0, which it hears if it is too old, another one, or passes less than its interface promises."""
    metadata = sized(Metadata, version=sized(Version))
    asked = sized(MetadataExtension, type=1, metadata=ctypes.pointer(metadata))
    known = api(version)
    known.struct_size -= 8 * short
    frame = sized(Frame, api=ctypes.pointer(known), extension=ctypes.addressof(asked))
    assert not HANDLER(ctypes.byref(frame))
    assert (metadata.version.major, metadata.version.minor) == ((0, 0) if short else answer)
    frame.api = None  # as the XLAs of version 0.1 ask
    assert not HANDLER(ctypes.byref(frame))
    assert (metadata.version.major, metadata.version.minor) == (0, 1)
