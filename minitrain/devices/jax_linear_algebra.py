"""FLOPs of the primitives that XLA hands to a library without counting them: factorisations, solvers and transforms.

Counts are the leading terms of Golub and Van Loan, Matrix Computations (4th edition, 2013): 4.2 (Cholesky), 3.2 (LU),
3.1 (triangular systems), 5.2 (Householder QR), 8.3 and 8.4 (symmetric eigenvalues), 7.5 (others), 8.6 (singular
values). A transform counts 5 n log2 n, a real one half, as FFTW's benchmarks do. Iterative ones take as many steps as
is usual; how quick a library is on a device is not modelled beside its rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

_EIGENVECTORS, _EIGENVALUES = 9.0, 4 / 3
_SCHUR_WITH_VECTORS = 25.0
_ALL_SINGULAR_VECTORS, _SINGULAR_VALUES = 21.0, 8 / 3
_COMPLEX_TRANSFORM = 5.0


def _matrix(eqn: Any) -> tuple[int, int, int]:
    """Return how many matrices a primitive takes, and their rows and columns."""
    *batch, rows, columns = eqn.invars[0].aval.shape
    return math.prod(batch), rows, columns


def _cubes(share: float) -> Callable[[Any], float]:
    """Return a rule that counts a multiple of n cubed."""

    def rule(eqn: Any) -> float:
        batch, rows, columns = _matrix(eqn)
        return share * batch * rows * columns * min(rows, columns)

    return rule


def _triangular_solve(eqn: Any) -> float:
    """Return a multiplication and an addition for each element of the triangle, and each right side."""
    return float(math.prod(eqn.invars[1].aval.shape) * eqn.invars[0].aval.shape[-1])


def _lu(eqn: Any) -> float:
    batch, rows, columns = _matrix(eqn)
    least = min(rows, columns)
    return float(batch * least**2 * (max(rows, columns) - least / 3))


def _householder(eqn: Any) -> float:
    batch, rows, columns = _matrix(eqn)
    least = min(rows, columns)
    return float(2 * batch * least**2 * (max(rows, columns) - least / 3))


def _eigh(eqn: Any) -> float:
    return _cubes(_EIGENVECTORS if len(eqn.outvars) > 1 else _EIGENVALUES)(eqn)


def _svd(eqn: Any) -> float:
    return _cubes(_ALL_SINGULAR_VECTORS if eqn.params.get("compute_uv") else _SINGULAR_VALUES)(eqn)


def _fft(eqn: Any) -> float:
    """Return 5 n log2 n for each complex transform, and half for a real one."""
    is_real = any("complex" not in str(var.aval.dtype) for var in (*eqn.invars, *eqn.outvars))
    points = math.prod(eqn.params["fft_lengths"])
    larger: int = max(math.prod(var.aval.shape) for var in (*eqn.invars, *eqn.outvars))
    share: float = _COMPLEX_TRANSFORM * (0.5 if is_real else 1.0)
    return share * larger * math.log2(max(2, points))


LIBRARY_RULES: Mapping[str, Callable[[Any], float]] = MappingProxyType(
    {
        "cholesky": _cubes(1 / 3),
        "triangular_solve": _triangular_solve,
        "lu": _lu,
        "qr": lambda eqn: 2 * _householder(eqn),  # to find the reflections, and to multiply them
        "geqrf": _householder,
        "householder_product": _householder,
        "eigh": _eigh,
        "eig": _cubes(_SCHUR_WITH_VECTORS),
        "schur": _cubes(_SCHUR_WITH_VECTORS),
        "hessenberg": _cubes(10 / 3),
        "tridiagonal": _cubes(4 / 3),
        "svd": _svd,
        "fft": _fft,
    }
)
"""How to count each."""
