"""Networks of action values in torch, with dueling heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .networks import Accept, accept_all, chained

Array = NDArray[Any]


class Dueling(nn.Module):
    """Two streams joined, as ``collectives.rl.networks.Dueling``: its input is their last hidden layers, in halves."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        if inputs < 2 or inputs % 2:
            raise ValueError(f"Dueling: inputs must be even and above 0, not {inputs}")
        self.value = nn.Linear(inputs // 2, 1)
        self.advantage = nn.Linear(inputs // 2, actions)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        first, second = x.chunk(2, dim=1)
        advantage = self.advantage(second)
        return self.value(first) + advantage - advantage.mean(dim=1, keepdim=True)


def perceptron(
    shape: tuple[int, ...], actions: int, *, seed: int, hidden: Sequence[int] = (128, 128), dueling: bool = True
) -> nn.Sequential:
    """The network of ``collectives.rl.networks.perceptron``. `seed` is for its weights, and for them alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = int(np.prod(shape))
        for place, width in enumerate(hidden):
            outputs = 2 * width if dueling and place == len(hidden) - 1 else width
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            inputs = outputs
        layers.append(Dueling(inputs, actions) if dueling else nn.Linear(inputs, actions))
        return nn.Sequential(*layers)


class Scale(nn.Module):
    """Pixels of 8 bits as numbers from 0 to 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x * (1 / 255)


def convolutional(
    shape: tuple[int, ...], actions: int, *, seed: int, convolutions: Sequence[int], hidden: int = 512,
    dueling: bool = True, pixels: bool = True,
) -> nn.Sequential:  # fmt: skip
    """The network of ``collectives.rl.networks.convolutional``. `seed` is for its weights, and for them alone."""
    chain, inputs = chained(shape, convolutions)
    outputs = 2 * hidden if dueling else hidden
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = [Scale()] if pixels else []
        for one in chain:
            layers += [nn.Conv2d(one.inputs, one.channels, one.side, stride=one.stride), nn.ReLU()]
        layers += [nn.Flatten(), nn.Linear(inputs, outputs), nn.ReLU()]
        layers.append(Dueling(outputs, actions) if dueling else nn.Linear(outputs, actions))
        return nn.Sequential(*layers)


class TorchValues:
    """``Values`` (see ``collectives.rl.networks``) of a ``torch.nn.Module`` on the CPU, of float32."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self._parameters = list(net.parameters())
        self.size = sum(p.numel() for p in self._parameters)

    def _given(self, observations: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(observations, np.float32))

    def __call__(self, observations: Array) -> Array:
        """The values of all actions: (observations, actions)."""
        with torch.inference_mode():
            found: Array = self.net(self._given(observations)).numpy()
            return found

    def backward(
        self, observations: Array, actions: Array, targets: Array, weights: Array, accept: Accept = accept_all
    ) -> tuple[Array, bool]:
        """See ``Values.backward``."""
        chosen = torch.from_numpy(np.asarray(actions, np.int64))[:, None]
        wanted, factors = (torch.from_numpy(np.asarray(a, np.float32)) for a in (targets, weights))
        values = self.net(self._given(observations)).gather(1, chosen)[:, 0]
        loss = (nn.functional.huber_loss(values, wanted, reduction="none") * factors).mean()
        accepted = accept(loss.item())
        if accepted:
            loss.backward()
        errors: Array = (values - wanted).detach().numpy()
        return errors, accepted

    def flat(self) -> NDArray[np.float32]:
        """A copy of all parameters, as one vector."""
        found: NDArray[np.float32] = torch.cat([p.detach().reshape(-1) for p in self._parameters]).numpy()
        return found

    def put(self, flat: NDArray[np.float32]) -> None:
        """Set all parameters."""
        start = 0
        for p in self._parameters:
            part = np.array(flat[start : start + p.numel()], np.float32)
            p.data.copy_(torch.from_numpy(part).reshape(p.shape))
            start += p.numel()

    def clip(self, norm: float) -> None:
        """Scale the gradients down so that their norm is at most `norm`."""
        nn.utils.clip_grad_norm_(self._parameters, norm)


def values(settings: Any, task: Any, seed: int) -> TorchValues:
    """The network that `settings` describe for `task`, with weights drawn from `seed`."""
    shape, actions, dueling = task.form.shape, task.actions, settings.dueling
    if not task.form.stacked:
        return TorchValues(perceptron(shape, actions, seed=seed, hidden=settings.hidden, dueling=dueling))
    hidden, convolutions, pixels = settings.hidden[-1], settings.convolutions, task.form.pixels
    return TorchValues(
        convolutional(
            shape, actions, seed=seed, convolutions=convolutions, hidden=hidden, dueling=dueling, pixels=pixels
        )
    )


def adam(values: Any, lr: float) -> torch.optim.Optimizer:
    """Adam for such a network."""
    return torch.optim.Adam(values.net.parameters(), lr=lr)
