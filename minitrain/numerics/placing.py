"""Where the arrays of a numeric run lie: in NumPy's memory, or on a backend of the hardware abstraction layer.

Initial weights and inputs are placed; what is computed with them is computed where they lie, since NumPy's functions
leave that to the array. So the arithmetic of layers is written once. It is a file of its own, since it is the way to
the room of the abstraction layer, which is loaded when a backend is named.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from minitrain.numerics.problem import Problem
from minitrain.numerics.transformer_problem import TransformerProblem


def on_place(problem: Problem | TransformerProblem, backend: Any = None) -> Problem | TransformerProblem:
    """Return a problem whose arrays are placed on a backend.

    Args:
        problem: what is trained.
        backend: "numpy", "jax" or "torch"; that of the problem if None.

    Raises:
        UsageError: there is no such backend, or its library is not installed.
    """
    wanted = problem.backend if backend is None else backend
    if wanted is None or hasattr(wanted, "put"):
        return problem
    from minitrain.heterogeneous.placed_array import place_of  # noqa: PLC0415 - only where a backend is named

    return replace(problem, backend=place_of(wanted))


def placed(values: Any, problem: Problem | TransformerProblem) -> Any:
    """Return initial numbers where a problem wants them."""
    return values if problem.backend is None else problem.backend.put(values)
