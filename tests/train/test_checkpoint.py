"""Checkpoints of one rank: what is saved comes back, and nothing else is ever taken for it."""

import errno
import hashlib
import json
import os
import random
import subprocess

import ml_dtypes
import numpy as np
import pytest
from jobs import ROOT, mpiexec, torch_for
from mpi4py import MPI
from safetensors.numpy import load_file, save_file

from collectives.train import checkpoint
from collectives.train.checkpoint import manifest, tensor_file
from collectives.train.checkpoint.folder import Folder
from collectives.train.checkpoint.manifest import Part, Written

COMM = MPI.COMM_SELF
PROGRAM = str(ROOT / "tests/train/programs/checkpoints.py")
STATE = {
    "arrays": {
        "float32": np.arange(6, dtype=np.float32).reshape(2, 3), "bfloat16": np.ones(3, ml_dtypes.bfloat16),
        "float16": np.ones((2, 2), np.float16), "float8": np.ones(2, ml_dtypes.float8_e4m3fn),
        "0-d": np.array(2.5), "empty": np.empty((0, 3)), "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "strided": np.arange(20)[::3], "complex": np.array([1 + 2j]), "big-endian": np.array([1, 2], ">i4"),
        "longdouble": np.array([1.5], np.longdouble), "text": np.array(["a", "bc"]), "bool": np.array([True, False]),
        "time": np.array(["2020-01-01"], "M8[D]"), "nan": np.array([np.nan, -0.0, np.inf]),
    },
    "numbers": [1, -(2**200), 0.1, float("inf"), float("-inf"), True, False, None, np.float32(0.1), np.int64(7)],
    "texts": ["text", ""],
    "keys": {0: "a", "0": "b", -1: (), "a/b": np.zeros(1), "a": {"b": np.ones(1)}},
    "tuple": (1, (2.5, [None])),
    "empty": {},
}  # fmt: skip


def same(a, b):
    """Whether two nested states are equal, with their types and bits, but for the order of bytes."""
    if isinstance(a, np.ndarray | np.generic):
        a = a.astype(a.dtype.newbyteorder("="))
        return (
            type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape
            and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
        )  # fmt: skip
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_everything_comes_back(tmp_path):
    checkpoint.save(tmp_path / "one", {"thing": STATE}, COMM, step=7, info={"k": [1]})
    loaded = checkpoint.load(tmp_path / "one", COMM)
    assert (loaded.step, loaded.ranks, loaded.info, loaded.names) == (7, 1, {"k": [1]}, {"thing"})
    assert same(STATE, loaded.state("thing"))
    loaded.state("thing")["arrays"]["float32"][:] = 0  # it is the reader's own


def test_a_nan_comes_back(tmp_path):
    checkpoint.save(tmp_path / "one", {"thing": {"x": float("nan")}}, COMM)
    assert np.isnan(checkpoint.load(tmp_path / "one", COMM).state("thing")["x"])


def test_a_copy_is_saved(tmp_path):
    """What changes after the call does not change the checkpoint: the snapshot has arrays of its own."""
    from collectives.train.checkpoint.snapshot import take

    x = np.zeros(3)
    snapshot = take({"thing": {"x": x, "f": np.asfortranarray(np.eye(2))}}, set(), 0, 0, {})
    x += 1
    assert snapshot.tensors["thing/x"].tolist() == [0, 0, 0]
    assert all(a.flags.c_contiguous and a.flags.owndata for a in snapshot.tensors.values())


def test_safetensors_reads_the_file(tmp_path):
    """The arrays of types that its NumPy side knows; a header of bfloat16 is torch's to read."""
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(3, np.int64), "c": np.empty((0, 2))}
    tensor_file.write_tensors(tmp_path / "ours", arrays)
    theirs = load_file(tmp_path / "ours")
    assert all(same(arrays[key], theirs[key]) for key in arrays)
    save_file(arrays, tmp_path / "theirs", metadata={"k": "v"})
    places = tensor_file.places(tmp_path / "theirs")
    for key, a in arrays.items():
        assert same(a, tensor_file.read_tensor(tmp_path / "theirs", places[key], a.dtype, a.shape))


def test_sha256sum_checks_the_manifest(tmp_path):
    checkpoint.save(tmp_path / "one", {"thing": {"x": np.zeros(3)}}, COMM)
    subprocess.run(["sha256sum", "--check", "--strict", manifest.SUM], cwd=tmp_path / "one", check=True)
    (name, expected), *_ = json.loads((tmp_path / "one" / manifest.NAME).read_text())["files"].items()
    assert hashlib.sha256((tmp_path / "one" / name).read_bytes()).hexdigest() == expected["sha256"]


def test_no_file_is_a_pickle(tmp_path):
    checkpoint.save(tmp_path / "one", {"thing": STATE}, COMM)
    assert sorted(f.suffix for f in (tmp_path / "one").iterdir()) == [".json", ".safetensors", ".sha256"]
    sources = (ROOT / "collectives/train/checkpoint").glob("*.py")
    assert not [f for f in sources if "pickle" in f.read_text()]


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ({1, 2}, TypeError, "thing/x: a set cannot be saved"),
        (np.array([{}]), TypeError, "thing/x: arrays of object"),
        (np.zeros(1, "i4,f8"), TypeError, "thing/x: arrays of"),
        ({True: 1}, TypeError, "the key True"),
        ({1.5: 1}, TypeError, "the key 1.5"),
        (checkpoint.Shard(np.zeros((2, 2)), 0, 4), ValueError, "no part of a vector of 4"),
        (checkpoint.Shard(np.zeros(2), 3, 4), ValueError, "no part of a vector of 4"),
        (checkpoint.Shard(np.zeros(2), 0, 4), ValueError, "thing/x: nobody has elements 2 to 4"),
        (checkpoint.Shard([1, 2], 0, 2), TypeError, "not a list"),
        (object(), TypeError, "a object cannot be saved"),
        (np.ma.masked_array([1, 2], mask=[0, 1]), TypeError, "a masked array"),
    ],
)
def test_what_cannot_be_saved_is_named(value, error, words, tmp_path):
    with pytest.raises(error, match=words):
        checkpoint.save(tmp_path / "one", {"thing": {"x": value}}, COMM)
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_contains_itself(tmp_path):
    state = {}
    state["again"] = state
    with pytest.raises(ValueError, match="nested more than"):
        checkpoint.save(tmp_path / "one", {"thing": state}, COMM)


def test_parts_must_cover_their_vector():
    def parts(*pieces):
        return [Part(None, Written(0, ""), {"x": ["float32", *piece]}, {}) for piece in pieces]

    cover = manifest.check_cover(parts((2, 4, 6), (0, 2, 6), (4, 4, 6), (4, 6, 6)))
    assert cover == {"x": [[0, 2, 4], [1, 0, 2], [2, 4, 4], [3, 4, 6]]}
    for pieces, words in [
        (((0, 2, 6), (3, 6, 6)), "nobody has elements 2 to 3"),
        (((0, 4, 6), (3, 6, 6)), "two ranks have elements 3 to 4"),
        (((0, 6, 6), (0, 6, 6)), "two ranks have"), (((0, 2, 6), (2, 6, 7)), "rank 1 has a part of 7"),
        (((1, 6, 6),), "nobody has elements 0 to 1"),
        (((0, 3, 10), (10, 10, 10)), "nobody has elements 3 to 10"),
        (((0, 3, 10), (5, 5, 10), (5, 10, 10)), "nobody has elements 3 to 5"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=words):
            manifest.check_cover(parts(*pieces))


@pytest.fixture
def saved(tmp_path):
    checkpoint.save(tmp_path / "one", {"thing": {"x": np.arange(10.0), "n": 1}}, COMM, step=3)
    return tmp_path / "one"


def test_a_rank_that_sees_another_folder_does_not_call_it_corrupt(saved, monkeypatch):
    """Else a file system that one machine has not mounted would cost the checkpoints."""
    known = manifest.read_manifest(saved)
    monkeypatch.setattr("collectives.train.checkpoint.reading.read_manifest", lambda _: known)
    with pytest.raises(FileNotFoundError, match="all ranks need one folder"):
        checkpoint.load(saved.parent / "elsewhere", COMM)


def test_any_damaged_byte_is_found(saved):
    """In each file: a byte that is changed, one that is missing at the end, one that is added; a file that is gone."""
    for file in saved.iterdir():
        whole = file.read_bytes()
        spots = range(len(whole)) if len(whole) < 300 else random.sample(range(len(whole)), 150)
        damaged = [whole[:i] + bytes([whole[i] ^ 1 << random.randrange(8)]) + whole[i + 1 :] for i in spots]
        if file.name == manifest.SUM:
            damaged = [d for d in damaged if d[:64].lower() != whole[:64]]  # the name behind the sum is for people
            more = [whole[:40]]
        else:
            more = [whole[:-1], whole + b"\0", b""]
        for bad in [*damaged, *more]:
            file.write_bytes(bad)
            with pytest.raises(checkpoint.Corrupt):
                checkpoint.load(saved, COMM)
        if file.name != manifest.NAME:
            file.unlink()
            with pytest.raises(checkpoint.Corrupt):
                checkpoint.load(saved, COMM)
        file.write_bytes(whole)
    assert checkpoint.load(saved, COMM).step == 3


def rewrite(folder, **changes):
    """Change the manifest, with a right sum: as another program might write it."""
    path = folder / manifest.NAME
    text = json.dumps({**json.loads(path.read_text()), **changes}).encode()
    path.write_bytes(text)
    (folder / manifest.SUM).write_text(hashlib.sha256(text).hexdigest() + "  manifest.json\n")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "has format 2; this version of the library reads 1"),
        ({"format": "other"}, "not the manifest of a checkpoint of this library"),
        ({"step": "3"}, "no proper 'step'"),
        ({"ranks": 2}, "not a checkpoint's"),
        ({"files": {"../one/manifest.json": {"size": 1, "sha256": ""}}}, "not a checkpoint's"),
    ],
)
def test_other_manifests_are_refused(changes, words, saved):
    rewrite(saved, **changes)
    with pytest.raises(ValueError, match=words) as raised:
        checkpoint.load(saved, COMM)
    assert not isinstance(raised.value, checkpoint.Corrupt)


@pytest.mark.parametrize(
    "node",
    [
        {"array": {"type": "O", "shape": [1], "name": "thing/x"}},
        {"array": {"type": "float64", "shape": [11], "name": "thing/x"}},
        {"array": {"type": "float64", "shape": [-10], "name": "thing/x"}},
        {"array": {"type": "float64", "shape": [10], "name": "absent"}},
        {"array": {"type": "float64", "shape": "10", "name": "thing/x"}},
        {"array": 3},
        {"dict": [[1.5, 2]]},
        {"dict": 3},
        {"float": "1"},
        {"call": "print"},
        [1],
    ],
)
def test_hostile_trees_are_refused(node, saved):
    rewrite(saved, states={"thing": node})
    with pytest.raises(ValueError, match=r"is no|are not an array"):
        checkpoint.load(saved, COMM).state("thing")


def test_what_is_no_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="is not a checkpoint: it has no manifest.json"):
        checkpoint.load(tmp_path, COMM)
    with pytest.raises(ValueError, match="is not a checkpoint"):
        checkpoint.load(tmp_path / "absent", COMM)


@pytest.mark.parametrize("left", ["manifest.json.sha256", "rank-00000.safetensors"])
def test_a_checkpoint_that_someone_began_to_remove_is_corrupt(tmp_path, left):
    (tmp_path / left).write_text("")
    with pytest.raises(checkpoint.Corrupt, match="has no manifest.json"):
        checkpoint.load(tmp_path, COMM)


class Failing:
    """Stands for the module os: the operation of a given number fails, or ends the process."""

    NAMES = ("open", "write", "fsync", "close", "rename", "makedirs")

    def __init__(self, fatal, *, kill=False):
        self.fatal, self.count, self.kill = fatal, 0, kill

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in self.NAMES:
            return real

        def call(*args, **kwargs):
            self.count += 1
            if self.count == self.fatal:
                if self.kill:
                    os._exit(9)
                if name == "close":
                    real(*args)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **kwargs)

        return call


def save_two(folder, monkeypatch, **failing):
    """Save one checkpoint; then one where an operation fails. The number of operations of the second."""
    checkpoint.save(folder / "step-000000001", {"thing": {"x": np.arange(10.0)}}, COMM, step=1)
    broken = Failing(**failing)
    with monkeypatch.context() as patched:
        patched.setattr("collectives.train.checkpoint.files.os", broken)
        patched.setattr("collectives.train.checkpoint.writing.os", broken)
        checkpoint.save(folder / "step-000000002", {"thing": {"x": np.arange(10.0) + 1}}, COMM, step=2)
    return broken.count


def test_a_failure_of_any_file_operation_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    operations = save_two(tmp_path / "all", monkeypatch, fatal=0)
    assert operations > 15
    for fatal in range(1, operations + 1):
        folder = tmp_path / str(fatal)
        with pytest.raises(OSError, match="No space left"):
            save_two(folder, monkeypatch, fatal=fatal)
        assert not [f for f in folder.iterdir() if f.name.startswith(".")]
        found = Folder(folder).complete()
        for path in found:  # the new one is there if only the last wait for the disk failed
            assert checkpoint.load(path, COMM).state("thing")["x"][0] == checkpoint.load(path, COMM).step - 1
        assert found[-1].name == "step-000000001"


def test_a_death_at_any_file_operation_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    operations = save_two(tmp_path / "all", monkeypatch, fatal=0)
    for fatal in range(1, operations + 1):
        folder = tmp_path / str(fatal)
        if (child := os.fork()) == 0:
            save_two(folder, monkeypatch, fatal=fatal, kill=True)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        steps = [checkpoint.load(path, COMM).step for path in Folder(folder).complete()]
        assert steps in ([1], [2, 1])
        Folder(folder).prepare()
        assert not [f for f in folder.iterdir() if f.name.startswith(".")]


def test_an_existing_folder_is_not_written_over(saved):
    with pytest.raises(FileExistsError):
        checkpoint.save(saved, {"thing": {}}, COMM)
    assert checkpoint.load(saved, COMM).step == 3


def test_the_newest_the_best_and_the_one_just_written_stay(tmp_path):
    folder = Folder(tmp_path)
    folder.prepare()
    for step in (1, 2, 3, 4, 10, 11):
        checkpoint.save(folder.path(step), {"thing": {}}, COMM, step=step)
    (tmp_path / "notes").mkdir()
    folder.retain(2, 2, 3)  # after an elastic run has gone back to a step before 3
    assert [path.name[-2:] for path in folder.complete()] == ["11", "10", "03", "02"]
    assert folder.set_aside(folder.path(11)).name == "corrupt-step-000000011-0"
    folder.retain(1, None, 10)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["corrupt-step-000000011-0", "notes", "step-000000010"]


@pytest.mark.quick("impi-3-2", "impi-1-4")
@pytest.mark.in_turn
@pytest.mark.parametrize(("saving", "loading"), [(3, 2), (2, 3), (1, 4), (4, 1)])
def test_other_numbers_of_ranks_read_their_own_cut(mpi, saving, loading, tmp_path):
    for ranks, mode in ((saving, "save"), (loading, "load")):
        done = mpiexec(mpi, ranks, PROGRAM, mode, str(tmp_path / "one"), timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout == f"{mode}: right on {ranks} ranks\n"


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", ["errors", "full", "background"])
def test_what_fails_on_one_rank_fails_on_all(mpi, mode, tmp_path):
    done = mpiexec(mpi, 3, PROGRAM, mode, str(tmp_path), timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"{mode}: right on 3 ranks\n")


@pytest.mark.parametrize("mode", ["wrapped", "frozen"])
def test_runs_with_torch_go_on(mode, tmp_path):
    done = mpiexec("openmpi", 2, PROGRAM, mode, str(tmp_path / "one"), timeout=100, env=torch_for("openmpi"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{mode}: right on 2 ranks\n"


@pytest.mark.in_turn
def test_torch_tensors(mpi, tmp_path):
    done = mpiexec(mpi, 2, PROGRAM, "torch", str(tmp_path / "one"), timeout=100, env=torch_for(mpi))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("torch: right on 2 ranks\n")
