"""What compressed gradients of all workers come to on one device, from the papers' equations.

Vogels et al. 2019, "PowerSGD", algorithm 1 (compression) and 2 (error feedback); Stich et al. 2018, algorithm 1
(Mem-SGD, top-k); codes by the tables of their formats. It shares nothing with `minitrain.proof.compression` but the
random factors that iteration begins with: it has tables, singular values and local messages where that has rounding,
Gram-Schmidt and sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np

from minitrain.proof.arithmetic import Array
from minitrain.tensors.compressed import CODES, Compressor, PowerSGD, Quantised, Shapes, TopK


@dataclass(slots=True, eq=False)
class Exchange:
    """The messages of all workers for one layer, step after step.

    Args:
        how: the compressor.
        layer: which layer.
        shapes: of its weights that train.
        errors: of each worker; empty before the first step.
        factors: the last second factors, by weight and matrix.
    """

    how: Compressor
    layer: int
    shapes: Shapes
    errors: list[Array] = field(default_factory=list)
    factors: dict[tuple[int, ...], Array] = field(default_factory=dict)

    def of(self, grads: Sequence[Array]) -> Array:
        """Return what the sum of some workers' gradients comes to, and remember errors and factors."""
        errors = self.errors or [np.zeros_like(grad) for grad in grads]
        if not self.how.feedback:
            errors = [np.zeros_like(grad) for grad in grads]
        wanted = [grad + error for grad, error in zip(grads, errors, strict=True)]  # algorithm 2, line 7
        if isinstance(self.how, PowerSGD):
            total, own = self._by_factors(wanted)
        else:
            own = [self._by_itself(each) for each in wanted]
            total = np.sum(own, axis=0)
        self.errors = [each - sent for each, sent in zip(wanted, own, strict=True)]  # line 9
        return total

    def _by_itself(self, values: Array) -> Array:
        """Return what one worker's message stands for."""
        if isinstance(self.how, TopK):
            least = np.sort(np.abs(values))[values.size - self.how.kept(values.size)]
            return np.where(np.abs(values) >= least, values, 0)
        assert isinstance(self.how, Quantised)
        codes, (_, most) = _table(self.how.codes), CODES[self.how.codes]
        made = np.zeros_like(values)
        for first in range(0, values.size, self.how.block):
            block = values[first : first + self.how.block]
            scale = max(abs(block)) / most
            if scale:
                nearest = np.argmin(np.abs(codes - block[:, None] / scale), axis=1)
                made[first : first + self.how.block] = scale * codes[nearest]
        return made

    def _by_factors(self, wanted: Sequence[Array]) -> tuple[Array, list[Array]]:
        """Return the sum of all workers' messages, and what each one's own stands for; matrix by matrix."""
        how, total, own, start = self.how, np.zeros_like(wanted[0]), [np.zeros_like(each) for each in wanted], 0
        assert isinstance(how, PowerSGD)
        for place, shape in enumerate(self.shapes):
            for index in product(*map(range, shape[:-2])) if how.takes(shape) else [None]:
                size = prod(shape) if index is None else prod(shape[-2:])
                here = slice(start, start + size)
                start += size
                if index is None:
                    total[here] = np.sum([each[here] for each in wanted], axis=0)
                    for each, sent in zip(wanted, own, strict=True):
                        sent[here] = each[here]
                    continue
                matrices = [each[here].reshape(shape[-2:]) for each in wanted]
                before = self.factors.get((place, *index))
                begins = how.first_factor(self.layer, place, shape)[index] if before is None else before
                first = _basis(np.sum(matrices, axis=0) @ begins)  # algorithm 1, lines 3 to 5
                seconds = [m.T @ first for m in matrices]
                self.factors[place, *index] = np.sum(seconds, axis=0)  # lines 6 and 7
                total[here] = (first @ self.factors[place, *index].T).ravel()  # line 11
                for second, sent in zip(seconds, own, strict=True):
                    sent[here] = (first @ second.T).ravel()
        return total, own


def _basis(columns: Array) -> Array:
    """Return an orthonormal basis of what columns span."""
    vectors, lengths, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(vectors * (lengths > 1e-10 * lengths[0]))


def _table(codes: str) -> Array:
    """Return all numbers of a format in ascending order."""
    if codes != "fp8":
        most = int(CODES[codes][1])
        return np.arange(-most, most + 1, dtype=np.float64)
    small = [mantissa / 8 * 2.0**-6 for mantissa in range(8)]
    normal = [(1 + mantissa / 8) * 2.0**exponent for exponent in range(-6, 9) for mantissa in range(8)]
    positive = [each for each in small + normal if each <= CODES[codes][1]]
    return np.array(sorted({*positive, *(-each for each in positive)}))
