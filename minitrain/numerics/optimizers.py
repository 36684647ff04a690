"""The optimizers: element by element, so that a step on shards is a shard of the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1); its state is the two moments.

    Args:
        rate: step size.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: keeps the denominator away from zero.
    """

    rate: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    num_moments: ClassVar[int] = 2

    def step(self, weight: Array, grad: Array, state: Array, count: int) -> tuple[Array, Array]:
        """Return weight and state after a step.

        Args:
            weight: of any shape.
            grad: gradient, of the same shape.
            state: the moments, one such shape each.
            count: which step it is, 1 for the first.
        """
        first = self.beta1 * state[0] + (1 - self.beta1) * grad
        second = self.beta2 * state[1] + (1 - self.beta2) * grad**2
        corrected = first / (1 - self.beta1**count), second / (1 - self.beta2**count)
        return weight - self.rate * corrected[0] / (np.sqrt(corrected[1]) + self.epsilon), np.stack([first, second])


@dataclass(frozen=True, slots=True)
class Momentum:
    """SGD with momentum (Polyak 1964, as PyTorch has it); its state is the velocity.

    Args:
        rate: step size.
        decay: of the velocity; 0 is plain SGD.
    """

    rate: float = 1e-1
    decay: float = 0.9

    num_moments: ClassVar[int] = 1

    def step(self, weight: Array, grad: Array, state: Array, count: int) -> tuple[Array, Array]:  # noqa: ARG002  (it matters to Adam)
        """Return weight and state after a step.

        Args:
            weight: of any shape.
            grad: gradient, of the same shape.
            state: the velocity, 1 x that shape.
            count: which step it is.
        """
        velocity = self.decay * state[0] + grad
        return weight - self.rate * velocity, np.stack([velocity])
