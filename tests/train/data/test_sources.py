"""What data sets may be: arrays, memory maps, files, objects; what batches of them are, and whose fault an error is."""

import re
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import ROOT

from collectives import train
from collectives.train.data.sources import ArraySource, source_of

ALONE = SimpleNamespace(rank=0, size=1)
X, Y = np.random.default_rng(0).random((50, 3)).astype(np.float32), np.arange(50)


def batches(dataset, comm=ALONE, **kwargs):
    return list(train.Loader(dataset, 8, comm=comm, **kwargs))


def same(one, other):
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert [type(part) for part in a] == [type(part) for part in b] == [np.ndarray] * len(a)
        for part, expected in zip(a, b, strict=True):
            assert part.dtype == expected.dtype
            np.testing.assert_array_equal(part, expected)


class Samples:
    """An object with samples; what is given for a row is raised, or returned in its place."""

    def __init__(self, length=50, **instead):
        self.length, self.instead, self.read = length, instead, []

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        self.read.append(i)
        found = self.instead.get(f"row{i}", (X[i % 50], int(Y[i % 50])))
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    np.savez(tmp_path / "both.npz", x=X, y=Y)
    return tmp_path


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("rank", [0, 2])
def test_all_kinds_give_the_same_batches(files, rank, prefetch):
    comm = SimpleNamespace(rank=rank, size=3)
    expected = batches((X, Y), comm)
    kinds = [
        [X, Y],
        (files / "x.npy", str(files / "y.npy")),
        (np.load(files / "x.npy", mmap_mode="r"), Y),
        files / "both.npz",
        str(files / "both.npz"),
        Samples(),
        [(x, y) for x, y in zip(X, Y, strict=True)],
        [[x, int(y)] for x, y in zip(X, Y, strict=True)],
    ]
    for kind in kinds:
        same(batches(kind, comm, prefetch=prefetch), expected)


def test_one_array_gives_batches_of_one_part(files):
    expected = batches((X,))
    for kind in (X, files / "x.npy", Samples(**{f"row{i}": X[i] for i in range(50)})):
        found = batches(kind)
        for (part,), (rows,) in zip(found, expected, strict=True):
            np.testing.assert_array_equal(part, rows)


def test_ranks_without_samples_have_empty_arrays_of_the_right_kind(files):
    comm = SimpleNamespace(rank=2, size=3)
    for kind in ((X, Y), (files / "x.npy", files / "y.npy"), Samples()):
        x, y = next(iter(train.Loader(kind, 2, comm=comm)))
        assert (x.shape, x.dtype, y.shape, y.dtype) == ((0, 3), np.float32, (0,), np.int64)


def test_files_are_mapped_and_read_in_order(files):
    source = source_of((files / "x.npy",))
    assert isinstance(source, ArraySource)
    assert isinstance(source.arrays[0], np.memmap)
    asked = []

    class Recorded:
        shape, dtype = X.shape, X.dtype

        def __len__(self):
            return len(X)

        def __getitem__(self, rows):
            asked.append(rows)
            return X[rows]

    same(batches((Recorded(), Y)), batches((X, Y)))
    assert len(asked) == 1 + 7  # once for the content, then one read for each batch
    assert all((np.diff(rows) > 0).all() for rows in asked)


def test_rows_of_a_table_are_counted_and_not_looked_up():
    class Column:
        """As a pandas Series: an index is a label."""

        shape, dtype = Y.shape, Y.dtype

        def __len__(self):
            return len(Y)

        def __getitem__(self, labels):
            return Y[::-1][labels]

        def to_numpy(self):
            return Y

    same(batches((X, Column())), batches((X, Y)))


def test_labels_of_a_map_are_sorted(files):
    kinds = ((X, Y[::-1]), (files / "x.npy", Y[::-1]))
    one, other = (train.Loader(kind, 8, comm=SimpleNamespace(rank=1, size=2), shard="sorted") for kind in kinds)
    same(list(one), list(other))


@pytest.mark.parametrize("prefetch", [0, 3])
def test_an_error_names_the_sample_and_comes_after_the_samples_before(prefetch):
    order = train.Loader(Samples(), 8, comm=ALONE).indices(0)
    bad = int(order[19])
    loader = train.Loader(Samples(**{f"row{bad}": OSError("no such picture")}), 8, comm=ALONE, prefetch=prefetch)
    iterator = iter(loader)
    assert [len(next(iterator)[0]), len(next(iterator)[0])] == [8, 8]
    with pytest.raises(train.SampleError, match=f"^sample {bad}: OSError: no such picture$") as caught:
        next(iterator)
    assert (loader.position, caught.value.sample) == (16, bad)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ((X[0, :2], 1), r"sample 20 has float32 \(2,\) and int64 \(\), sample 0 float32 \(3,\) and int64 \(\)"),
        ((X[0], 0.5), r"sample 20 has float32 \(3,\) and float64 \(\)"),
        ((X[0],), r"sample 20 has float32 \(3,\), sample 0"),
        ((X[0], "cat"), "sample 20 has a str"),
        ((X[0], None), "sample 20 has a NoneType"),
        ((X[0], {"a": 1}), "sample 20 has a dict; return numbers"),
        (([[1, 2], [3]], 1), "sample 20: ValueError"),
        (StopIteration(), "sample 20: StopIteration"),
    ],
)
def test_samples_that_do_not_fit(sample, message):
    with pytest.raises(train.SampleError, match=message):
        batches(Samples(row20=sample))


def test_an_array_that_fails_names_itself_and_the_row():
    class Broken:
        shape, dtype, filename = (50,), np.dtype(int), "tape.zarr"

        def __len__(self):
            return 50

        def __getitem__(self, rows):
            if 31 in rows:
                raise OSError("worn out")
            return rows

    with pytest.raises(train.SampleError, match="^tape.zarr, row 31: OSError: worn out$"):
        batches((Broken(), Y))


def damaged(archive):
    """An archive in which a bit has changed, by which its files are said to be encrypted."""
    place = archive.index(b"PK\x01\x02") + 8
    return archive[:place] + bytes([archive[place] ^ 1]) + archive[place + 1 :]


def test_bad_files(files):
    (files / "cut.npy").write_bytes((files / "x.npy").read_bytes()[:-1])
    (files / "text.npy").write_text("hello")
    np.save(files / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(files / "objects.npz", a=np.array([{}], dtype=object))
    np.save(files / "one.npy", np.array(3))
    np.savez(files / "none.npz")
    (files / "cut.npz").write_bytes((files / "both.npz").read_bytes()[:300])
    (files / "locked.npz").write_bytes(damaged((files / "both.npz").read_bytes()))
    bad = "cut.npy", "text.npy", "objects.npy", "objects.npz", "one.npy", "none.npz", "cut.npz", "locked.npz"
    for name in bad:
        with pytest.raises(ValueError, match=f"{re.escape(name)} (is not a readable|has no arrays)"):
            batches(files / name)
    with pytest.raises(OSError, match=r"cannot read .*absent.npy: No such file"):
        batches((X, files / "absent.npy"))
    with pytest.raises(OSError, match="cannot read"):
        batches(files)


def test_random_samples_are_no_change_of_the_data():
    class Noisy(Samples):
        def __getitem__(self, i):
            return np.random.default_rng().random(3), i

    a, b = (train.Loader(Noisy(), 8, comm=ALONE) for _ in range(2))
    b.load_state_dict(a.state_dict())
    c, d = (train.Loader(kind, 8, comm=ALONE) for kind in (Samples(), Samples(row49=(X[0], 0))))
    with pytest.raises(ValueError, match="other values"):
        d.load_state_dict(c.state_dict())


def test_only_few_samples_are_read_in_advance():
    data = Samples(length=10**9)
    loader = train.Loader(data, 8, comm=ALONE)
    assert set(data.read) == {0, 499_999_999, 999_999_999}
    assert len(loader) == 125_000_000


def test_torch_data_sets():
    program = "tests/train/data/programs/torch_datasets.py"
    python = ROOT / ".venvs/torch/bin/python"
    done = subprocess.run([python, program], cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "passed\n"
