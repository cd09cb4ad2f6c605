"""Digits, the split, and files of one's own: good ones and every bad one."""

import sys

import numpy as np
import pytest

from collectives import train


def test_digits():
    data = train.digits()
    assert data.x_train.shape[1:] == data.x_test.shape[1:] == (1, 8, 8)
    assert len(data.x_train) + len(data.x_test) == 1797
    assert data.x_train.min() == 0
    assert data.x_train.max() == 1
    assert data.classes == 10


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        train.digits()


def test_split_takes_a_fifth_of_each_label():
    y = np.random.default_rng(0).permutation(np.arange(100) % 4)
    fit, test = train.stratified_split(y)
    assert sorted([*fit, *test]) == list(range(100))
    assert np.bincount(y[test]).tolist() == [5, 5, 5, 5]
    with pytest.raises(ValueError, match="too few"):
        train.stratified_split(np.arange(4))


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_x_and_y_are_split(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (40, 6, 7)).astype(np.uint8)
    x[0, 0, 0] = 255
    data = train.load_npz(save(tmp_path / "a.npz", x=x, y=np.arange(40) % 2))
    assert data.name == "a.npz"
    assert data.x_train.shape == (32, 1, 6, 7)
    assert data.x_test.shape == (8, 1, 6, 7)
    assert data.x_train.max() == 1


def test_own_split_and_floats_are_kept(tmp_path):
    x = np.random.default_rng(0).standard_normal((9, 5))
    path = save(tmp_path / "a.npz", x_train=x, y_train=np.arange(9), x_test=x[:2], y_test=np.arange(2))
    data = train.load_npz(path)
    np.testing.assert_array_equal(data.x_train, x)
    assert data.classes == 9


x, y = np.ones((20, 3)), np.arange(20) % 2
BAD = {
    "needs x and y": {"x": x},
    "it has a, b": {"a": x, "b": y},
    r"x has shape \(20, 3\)": {"x": x, "y": y[:5]},
    r"of shape \(samples, ...\)": {"x": y, "y": y},
    "must be numbers": {"x": x.astype(str), "y": y},
    "integer labels": {"x": x, "y": y * 0.5},
    "label -1": {"x": x, "y": y - 1},
    "not finite": {"x": x * np.nan, "y": y},
    r"\(0, 3\)": {"x": x[:0], "y": y[:0]},
    "too few": {"x": x[:3], "y": y[:3]},
    "x_test": {"x_train": x, "y_train": y, "x_test": x[:, :2], "y_test": y},
    "plain arrays": {"x": np.array([{}] * 20, dtype=object), "y": y},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arrays(tmp_path, message):
    with pytest.raises(ValueError, match=message):
        train.load_npz(save(tmp_path / "bad.npz", **BAD[message]))


def test_bad_files(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        train.load_npz(tmp_path / "absent.npz")
    with pytest.raises(OSError, match="cannot read"):
        train.load_npz(tmp_path)
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match="not a readable"):
        train.load_npz(tmp_path / "text.npz")
    (tmp_path / "empty.npz").write_text("")
    with pytest.raises(ValueError, match="not a readable"):
        train.load_npz(tmp_path / "empty.npz")
    np.save(tmp_path / "one.npy", x)
    with pytest.raises(ValueError, match="single array"):
        train.load_npz(tmp_path / "one.npy")
    whole = save(tmp_path / "cut.npz", x=x, y=y).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="not a readable"):
        train.load_npz(tmp_path / "cut.npz")
    place = whole.index(b"PK\x01\x02") + 8  # one bit, by which the first array is said to be encrypted
    (tmp_path / "damaged.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(ValueError, match="not a readable"):
        train.load_npz(tmp_path / "damaged.npz")
