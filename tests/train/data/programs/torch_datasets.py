"""Loaders of torch data sets: tensors come out, the same samples as from arrays; arrays stay arrays."""

import contextlib
from types import SimpleNamespace

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from collectives import train

X, Y = torch.rand(50, 3), torch.arange(50)


class Pairs(Dataset):
    """A tensor, and what `label` makes of the number of the sample."""

    def __init__(self, label):
        self.label = label

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], self.label(i)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def loader(dataset, rank=0, size=1, **kwargs):
    return train.Loader(dataset, 8, comm=SimpleNamespace(rank=rank, size=size), **kwargs)


def same(one, other):
    for a, b in zip(one, other, strict=True):
        for part, expected in zip(a, b, strict=True):
            assert isinstance(part, torch.Tensor)
            assert part.dtype == expected.dtype
            assert torch.equal(part, expected)


def kinds_give_the_same_tensors():
    half = TensorDataset(X[:25], Y[:25]), TensorDataset(X[25:], Y[25:])
    kinds = [TensorDataset(X, Y), (X, Y), Pairs(int), Pairs(torch.tensor), Pairs(lambda i: np.int64(i)),
             Pairs(np.array), Subset(TensorDataset(X, Y), range(50)), ConcatDataset(half)]  # fmt: skip
    for rank in range(3):
        rows = [torch.from_numpy(y) for _, y in loader((X.numpy(), Y.numpy()), rank, 3)]
        for kind in kinds:
            for prefetch in (0, 2):
                same(list(loader(kind, rank, 3, prefetch=prefetch)), [(X[r], Y[r]) for r in rows])


def empty_parts_are_tensors():
    for kind in (TensorDataset(X, Y), Pairs(int)):
        *_, (x, y) = loader(kind, rank=2, size=3)  # the last batch has 2 samples
        assert (tuple(x.shape), x.dtype, tuple(y.shape), y.dtype) == ((0, 3), torch.float32, (0,), torch.int64)


def mixed_arrays_stay_what_they_are():
    for x, y in loader((X, Y.numpy())):
        assert isinstance(x, torch.Tensor)
        assert isinstance(y, np.ndarray)
        assert torch.equal(x, X[y])


def bfloat16_and_gradients():
    wide = X.to(torch.bfloat16).requires_grad_()
    for x, y in loader((wide, Y)):
        assert torch.equal(x, wide[y])
        assert x.requires_grad


def collates_as_torch_does():
    for label in (int, float, lambda i: bool(i % 2)):
        ours = next(iter(loader(Pairs(label))))
        theirs = next(iter(DataLoader(Pairs(label), 8)))
        assert [part.dtype for part in ours] == [part.dtype for part in theirs]


def changes_are_found():
    other = X.clone()
    other[-1, 0] += 1
    for kind, changed in ((TensorDataset(X, Y), TensorDataset(other, Y)), (Pairs(int), Pairs(lambda i: i + 1))):
        refused(lambda a=kind, b=changed: loader(b).load_state_dict(loader(a).state_dict()), "other values")
    refused(lambda: loader(Pairs(int)).load_state_dict(loader(Pairs(float)).state_dict()), "torch.float64, now")


def a_kind_of_tensor_data_set_is_asked_for_its_samples():
    class Negative(TensorDataset):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return -x, y

    for x, y in loader(Negative(X, Y)):
        assert torch.equal(x, -X[y])


def errors():
    refused(lambda: loader(Endless()), "an object with __len__", TypeError)
    refused(lambda: list(loader(Pairs(lambda i: 1 / (i - 7)))), "sample 7: ZeroDivisionError")
    refused(lambda: list(loader(Pairs(lambda i: [1] * (1 + i // 30)))), r"sample 0 torch.float32")


def refused(make, words, kind=ValueError):
    message = ""
    with contextlib.suppress(kind):
        try:
            make()
        except Exception as error:
            message = str(error)
            raise
    assert words in message, message


kinds_give_the_same_tensors()
empty_parts_are_tensors()
mixed_arrays_stay_what_they_are()
bfloat16_and_gradients()
collates_as_torch_does()
changes_are_found()
a_kind_of_tensor_data_set_is_asked_for_its_samples()
errors()
print("passed")
