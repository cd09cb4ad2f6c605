"""What is trained: the data, the network and the optimizer that the options ask for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..blas_threads import limit_threads
from ..data.datasets import load
from ..data.loader import Loader
from ..models.classifiers import MODELS
from ..models.nn import Parameter, Sequential
from ..optim.schedules import Warmup, scaled
from ..optim.sgd import SGD


class Task:
    """The data set, on all ranks of `comm`, and what is made anew for each training on it. Collective.

    ``data`` is the data set, ``batch`` the number of samples of a step of all ranks, ``model`` the name of the network.
    Rank 0 says by ``say(text)`` what there is. Samples are dealt to the ranks of `dealt` (default: all). Raises on all
    ranks: ValueError for options or data that cannot be used, OSError for a file that cannot be read, ImportError
    without scikit-learn.
    """

    def __init__(self, args: argparse.Namespace, comm: Any, say: Callable[[str], None], dealt: Any = None) -> None:
        if args.momentum >= 1:
            raise ValueError(f"--momentum must be below 1, not {args.momentum}")
        hint = limit_threads(comm)
        if hint is not None:
            say(hint)
        self._args, self._dealt = args, comm if dealt is None else dealt
        self.data = load(args.data, comm, args.dtype)
        self.batch = args.batch or 32 * self._dealt.size
        self.model = args.model or ("cnn" if self.data.x_train.ndim == 4 else "mlp")
        training, testing = len(self.data.y_train), len(self.data.y_test)
        say(f"{self.data.name}: {training} training and {testing} test samples, {self.data.classes} classes")
        labels = self._labels()
        if args.shard == "sorted" and self._dealt.size > 1:
            say(f"samples sorted by label and split: {labels}")

    def _labels(self) -> str:
        """Which labels each of the first eight ranks holds, as text on rank 0. Collective."""
        loader = self._loader((self.data.y_train,), self._dealt, self.batch, self._args.seed)
        mine = np.unique(self.data.y_train[loader.indices(0)]).tolist()
        every = self._dealt.gather(mine[:12], root=0) or []
        shown = [f"rank {r}: {' '.join(map(str, labels))}" for r, labels in enumerate(every[:8])]
        return "; ".join(shown) + ("; ..." if self._dealt.size > 8 else "")

    def _loader(self, arrays: Any, comm: Any, batch: int, seed: int) -> Loader:
        return Loader(arrays, batch, seed=seed, comm=comm, shard=self._args.shard)

    def loader(self, comm: Any, batch: int, seed: int) -> Loader:
        """A loader of the training samples for the ranks of `comm`, `batch` samples a step. Collective over `comm`."""
        return self._loader((self.data.x_train, self.data.y_train), comm, batch, seed)

    def network(self, seed: int) -> tuple[Sequential, SGD]:
        """A new network, with its optimizer."""
        rng = np.random.default_rng(seed)
        shape, classes = self.data.x_train.shape[1:], self.data.classes
        net = MODELS[self.model](shape, classes, rng=rng, dtype=self._args.dtype)
        return net, self.optimizer(net.parameters())

    def optimizer(self, parameters: Sequence[Parameter]) -> SGD:
        """A new optimizer of these parameters."""
        args = self._args
        return SGD(parameters, args.lr, momentum=args.momentum, weight_decay=args.weight_decay)

    def rate(self, factor: float) -> Warmup:
        """The learning rate as a function of the samples of all ranks: a warm-up to `factor` times that of one rank,
        by the rule of ``--scale-lr``."""
        args = self._args
        return Warmup(scaled(args.lr, factor, args.scale_lr), args.warmup * len(self.data.y_train), args.lr)
