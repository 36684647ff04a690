"""The training problem of a numeric run: sizes, optimizer, and data and initial weights made from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from minitrain.numerics.arithmetic import Adam, Array, Momentum

_INPUTS, _TARGETS, _WEIGHTS = range(3)


@dataclass(frozen=True, slots=True)
class Problem:
    """A training step on small dense layers; its data follow from the seed.

    Args:
        width: features of every layer; a weight is a width x width matrix.
        seed: of inputs, targets and initial weights.
        optimizer: takes the step.
        backend: what computes: "numpy", "jax" or "torch", by the hardware abstraction layer, or several of these, which
            ranks take in turn; NumPy directly if None.
    """

    width: int = 8
    seed: int = 0
    optimizer: Adam | Momentum = field(default_factory=Adam)
    backend: Any = None

    def inputs(self, global_batch_size: int) -> Array:
        """Return the inputs of the global batch, one row a sample."""
        return _normal(self.seed, _INPUTS, 0, global_batch_size, self.width)

    def targets(self, global_batch_size: int) -> Array:
        """Return the targets of the global batch, one row a sample."""
        return _normal(self.seed, _TARGETS, 0, global_batch_size, self.width)

    def initial_weight(self, layer: int) -> Array:
        """Return the weight of a layer before the step, width x width, at a scale where tanh does not saturate."""
        numbers = _normal(self.seed, _WEIGHTS, layer, self.width, self.width)
        return np.asarray(numbers / np.sqrt(self.width / 2))


@lru_cache(maxsize=512)
def _normal(seed: int, what: int, which: int, rows: int, columns: int) -> Array:
    """Return normal random numbers; those of more rows begin with those of fewer."""
    numbers = np.random.default_rng([seed, what, which]).standard_normal((rows, columns))
    numbers.flags.writeable = False
    return numbers
