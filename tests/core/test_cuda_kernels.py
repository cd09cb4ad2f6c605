"""The CUDA kernels, compiled for the processor, have the bits of the C kernels; nvcc compiles all of them."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys

import cuda_lib
import kernel_lib
import numpy as np
import pytest
from kernel_lib import DTYPES, ROOT, address
from kernel_operands import HALVES, bits, operands, place
from operands import OPS

VECTOR = 16
LENGTHS = (0, 1, 17, 1000, 4099)
#: Where arrays begin, in elements behind a multiple of 64 bytes: (target, one source, the next, ...), repeated.
PLACES = ((0,), (1,), (3, 1), (0, 0, 2))
CASES = [(dtype, op) for dtype, ops in OPS.items() for op in ops if dtype != "long_double_int"]
pytestmark = pytest.mark.skipif(
    kernel_lib.compiler() is None or cuda_lib.compiler() is None, reason="needs a C and a C++ compiler"
)


@pytest.fixture(scope="module")
def cuda(tmp_path_factory, kernels) -> cuda_lib.CudaKernels:
    return cuda_lib.CudaKernels(cuda_lib.build(tmp_path_factory.mktemp("cuda")), kernels.ops)


def framed(n: int, dtype: str, skip: int) -> tuple[np.ndarray, np.ndarray]:
    """A target of n elements, and the same with an element more on either side; all bytes are 0xa5."""
    whole = place(np.zeros(n + 2, DTYPES[dtype]), skip + 63)
    whole.view(np.uint8)[:] = 0xA5
    return whole[1:-1], whole


def test_names(cuda):
    """Each kernel has one name, by which it is found."""
    assert len(set(cuda.names)) == len(cuda.names) == 88
    for name in cuda.names:
        assert cuda.lib.coll_cuda_host_find(name.encode()), name
    assert not cuda.lib.coll_cuda_host_find(b"coll_add_int32")
    assert cuda.lib.coll_cuda_kernel_name(-1) is None
    assert cuda.lib.coll_cuda_kernel_name(len(cuda.names)) is None


def test_which_types_and_ops(cuda, kernels):
    """Those of the C kernels, but for long double and exact sums."""
    for t, dtype in enumerate(kernels.dtypes):
        for o, op in enumerate(kernels.ops):
            able = cuda.lib.coll_cuda_able(t, o)
            if dtype in ("long_double_int", "exact32", "exact64"):
                assert able == cuda_lib.NO_TYPE, dtype
            else:
                assert (able == cuda_lib.FITS) == (op in OPS[dtype]), (dtype, op)
                assert able in (cuda_lib.FITS, cuda_lib.NO_OP)
    for t, o in ((-1, 0), (len(kernels.dtypes), 0)):
        assert cuda.lib.coll_cuda_able(t, o) == cuda_lib.NO_TYPE
    for t, o in ((0, -1), (0, len(kernels.ops))):
        assert cuda.lib.coll_cuda_able(t, o) == cuda_lib.NO_OP


@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_bits(cuda, kernels, dtype, op):
    """1 to 5 sources, of any length and at any element; nothing beside the target is written."""
    for p in range(1, 6):
        for n in LENGTHS:
            sources = operands(dtype, n, p, seed=p)
            want = np.empty(n, DTYPES[dtype])
            kernels.reducep(dtype, op, [want], sources)
            for skips in PLACES:
                placed = [place(source, skips[(k + 1) % len(skips)]) for k, source in enumerate(sources)]
                target, whole = framed(n, dtype, skips[0])
                launch = cuda.fold(dtype, op, target, placed)
                assert np.array_equal(bits(target), bits(want)), (p, n, skips)
                assert (whole[[0, -1]].view(np.uint8) == 0xA5).all(), (p, n, skips)
                size = 1 if p == 1 else DTYPES[dtype].itemsize
                apart = len({address(array) % VECTOR for array in (target, *placed)}) > 1
                assert launch.args.vectors * VECTOR + launch.args.head * size <= target.nbytes
                assert launch.args.vectors >= (0 if apart else (target.nbytes - VECTOR + 1) // VECTOR), (p, n, skips)


@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_two_operands_in_place(cuda, kernels, dtype, op):
    """The target may be either operand; avg of two operands is their sum."""
    left, right = operands(dtype, 1000, 2, seed=7)
    want = np.empty_like(left)
    kernels.reduce2(dtype, op, want, left, right)
    for skip in (0, 1):
        for k in range(2):
            placed = [place(left, skip), place(right, 0)]
            cuda.run(cuda.reduce2(dtype, op, address(placed[k]), *map(address, placed), 1000))
            assert np.array_equal(bits(placed[k]), bits(want)), (skip, k)
        placed = [place(left, 0), place(right, 0), place(left[::-1], 0), place(right, skip)]
        many, given = np.empty_like(left), [each.copy() for each in placed]
        kernels.reducep(dtype, op, [many], given)
        cuda.fold(dtype, op, placed[2], placed)
        assert np.array_equal(bits(placed[2]), bits(many)), skip


@pytest.mark.parametrize("dtype", [dtype for dtype in OPS if "avg" in OPS[dtype]])
def test_scale(cuda, kernels, dtype):
    """Division by p, in place too."""
    for n in LENGTHS:
        for p in (1, 3, 1000):
            (source,) = operands(dtype, n, 1, seed=n)
            want = np.empty_like(source)
            kernels.scale(dtype, want, source, p)
            target, placed = place(source[::-1], 1), place(source, 2)
            cuda.run(cuda.scale(dtype, address(target), address(placed), p, n))
            cuda.run(cuda.scale(dtype, address(placed), address(placed), p, n))
            assert np.array_equal(bits(target), bits(want)), (n, p)
            assert np.array_equal(bits(placed), bits(want)), (n, p)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half(cuda, kernels, dtype):
    """All 65536 values against a shuffled copy of themselves."""
    left = np.arange(65536, dtype=np.uint16).view(DTYPES[dtype])
    right = np.random.default_rng(3).permutation(65536).astype(np.uint16).view(DTYPES[dtype])
    for op in ("sum", "prod", "min", "max"):
        want, target = np.empty_like(left), np.empty_like(left)
        kernels.reducep(dtype, op, [want], [left, right])
        cuda.fold(dtype, op, target, [left, right])
        assert np.array_equal(bits(target), bits(want)), op


def test_products_are_not_fused(cuda):
    """The difference of two equal products is 0 if both are rounded; a fused multiply-add rounds one of them only."""
    e = np.float32(2) ** -13
    left, right = (np.full(9, complex(a, a), np.complex64) for a in (1 + e, 1 - e))
    target = np.empty_like(left)
    cuda.fold("complex64", "prod", target, [left, right])
    assert (target.real == 0).all()


@pytest.mark.parametrize("geometry", [(1, 1), (1, 32), (3, 7), (1000, 256)])
def test_any_geometry(cuda, kernels, geometry):
    """The result depends on neither the blocks nor the threads."""
    for dtype in ("uint8", "bfloat16", "float64", "complex128", "double_int"):
        sources = operands(dtype, 1003, 3, seed=5)
        want, target = np.empty_like(sources[0]), np.empty_like(sources[0])
        kernels.reducep(dtype, OPS[dtype][0], [want], sources)
        cuda.fold(dtype, OPS[dtype][0], target, sources, geometry)
        assert np.array_equal(bits(target), bits(want)), dtype


def test_most_sources(cuda, kernels):
    sources = operands("float16", 33, cuda_lib.SOURCES, seed=1)
    want, target = np.empty_like(sources[0]), np.empty_like(sources[0])
    kernels.reducep("float16", "sum", [want], sources)
    cuda.fold("float16", "sum", target, sources)
    assert np.array_equal(bits(target), bits(want))


def test_geometry(cuda):
    """Threads for every vector of a short array; for longer ones blocks of which each has a few vectors per thread."""
    for n, grid in ((0, 0), (1, 1), (1027, 1), (1028, 2), (1 << 20, 1024), (1 << 21, 2048), (1 << 22, 2048)):
        refusal, launch = cuda.reduce2("float32", "sum", 4096, 4096, 4096, n)
        assert (refusal, launch.grid, launch.block) == (cuda_lib.FITS, grid, 256), n
    for n in (1 << 24, 1 << 31, 1 << 33, 1 << 45):
        _, launch = cuda.reduce2("float32", "sum", 4096, 4096, 4096, n)
        assert 2048 <= launch.grid <= 1 << 20, n
        assert (launch.args.n, launch.args.vectors) == (n, n // 4)


def test_refusals(cuda):
    """Each has a sentence, and nothing is filled in."""
    for prepared, reason, words in (
        (cuda.reduce2("long_double_int", "minloc", 64, 64, 64, 1), cuda_lib.NO_TYPE, "no such type"),
        (cuda.reduce2("float32", "band", 64, 64, 64, 1), cuda_lib.NO_OP, "no CUDA kernel for this op"),
        (cuda.reduce2("float64", "reproducible_sum", 64, 64, 64, 1), cuda_lib.NO_OP, "no CUDA kernel for this op"),
        (cuda.scale("int32", 64, 64, 2, 1), cuda_lib.NO_OP, "no CUDA kernel for this op"),
        (cuda.reducep("int32", "sum", 64, [], 1), cuda_lib.BAD_SOURCES, "from 1 to 128"),
        (cuda.reducep("int32", "sum", 64, [64] * 129, 1), cuda_lib.BAD_SOURCES, "from 1 to 128"),
        (cuda.reduce2("int32", "sum", 66, 64, 64, 1), cuda_lib.UNALIGNED, "alignment"),
        (cuda.reduce2("complex128", "sum", 64, 64, 68, 1), cuda_lib.UNALIGNED, "alignment"),
    ):
        refusal, launch = prepared
        assert refusal == reason, words
        assert words in cuda.lib.coll_cuda_reason(refusal).decode()
        assert bytes(launch) == bytes(len(bytes(launch)))
    for refusal in (cuda_lib.FITS, -1, 5):
        assert cuda.lib.coll_cuda_reason(refusal) is None


def entries(fatbin: bytes) -> dict[str, bytes]:
    """The parts of a fatbin: machine code by architecture, PTX by virtual architecture."""
    magic, _, at, size = struct.unpack_from("<IHHQ", fatbin)
    assert (magic, at + size) == (0xBA55ED50, len(fatbin))
    found = {}
    while at < len(fatbin):
        kind, _, header, length = struct.unpack_from("<HHIQ", fatbin, at)
        (architecture,) = struct.unpack_from("<I", fatbin, at + 28)
        found[f"{['compute', 'sm'][kind - 1]}_{architecture}"] = fatbin[at + header : at + header + length]
        at += header + length
    return found


def compile_kernels(folder, *options: str, path: str | None = None) -> str:
    """What the command prints."""
    command = [sys.executable, str(ROOT / "csrc/cuda/build.py"), "--into", str(folder), *options]
    env = None if path is None else {"PATH": path}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=600).stdout


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_fatbin(cuda, tmp_path):
    """Machine code for an architecture has every kernel, with arguments as long as the C code makes them. PTX has no
    fused, approximate or flushing arithmetic."""
    assert "88 kernels for sm_80 in" in compile_kernels(tmp_path, "--arch", "sm_80", "--compress", "none")
    index = json.loads((tmp_path / "kernels.json").read_text())
    assert sorted(index["kernels"]) == sorted(cuda.names)
    assert index["arguments"] == len(bytes(cuda_lib.Args()))
    assert (index["architectures"], index["ptx"]) == (["sm_80"], "compute_80")
    found = entries((tmp_path / "kernels.fatbin").read_bytes())
    assert found.keys() == {"compute_80", "sm_80"}
    assert found["sm_80"].startswith(b"\x7fELF")
    for name in cuda.names:
        assert b"\0.text." + name.encode() + b"\0" in found["sm_80"], name
    inexact = rb"\b(?:fma|mad)\.\S*f\d+|\b(?:add|sub|mul|div)\.(?!rn)\S*f\d+|\.ftz|\.approx"
    assert not re.findall(inexact, found["compute_80"])
    assert {b"add.rn.f32", b"mul.rn.f64", b"div.rn.f64"} <= set(re.findall(rb"\w+\.rn\.f\d+", found["compute_80"]))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_every_architecture(tmp_path):
    """By default there is code for all devices that nvcc knows, from sm_75 on, and PTX of the oldest."""
    compile_kernels(tmp_path)
    known = subprocess.run(["nvcc", "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"^sm_\d+$", known, re.MULTILINE))
    assert names >= {"sm_75", "sm_80", "sm_90", "sm_100", "sm_120"}
    assert entries((tmp_path / "kernels.fatbin").read_bytes()).keys() == names | {"compute_75"}


def test_without_nvcc(tmp_path):
    assert compile_kernels(tmp_path / "made", path="") == ("nvcc is not on the PATH: the CUDA kernels are not built.\n")
    assert not (tmp_path / "made").exists()
