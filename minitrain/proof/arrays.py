"""The arrays that tensors carry in a numeric run, and how they are sharded, combined and added.

Arrays are never changed in place, so that tensors may share them.

Where the arrays of a numeric run lie: in NumPy's memory, or on a backend of the hardware abstraction layer.

Initial weights and inputs are placed; what is computed with them is computed where they lie, since NumPy's functions
leave that to the array. So the arithmetic of layers is written once. Where ranks lie on different backends, what they
exchange moves between these. Of this room, only this file imports `minitrain.heterogeneous`, when a backend is
named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minitrain.proof.arithmetic import Array
from minitrain.proof.attention_core import Tokens
from minitrain.proof.problem import Problem, TransformerProblem


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The numbers of an activation or its gradient.

    Args:
        values: one row a sample, in ascending order of the samples.
    """

    values: Array


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """The numbers of a weight, its gradient or its optimizer state, or of some shards of them.

    Args:
        values: all elements of the layer, or of a part of it, along the last axis; those that are not held are NaN, so
            that a use of one shows in the result.
        part: which part of a layer, where it may be divided; see `minitrain.proof.units`.
    """

    values: Array
    part: Any = None

    def add(self, other: Flat) -> Flat:
        """Return the sum."""
        return Flat(self.values + other.values, self.part)

    def shard(self, shard: int, num_shards: int) -> Flat:
        """Return the elements of one of `num_shards` shards; all others become NaN."""
        here = held([shard], num_shards, self.values.shape[-1])
        return Flat(np.where(here, self.values, np.nan), self.part)

    def combine(self, other: Flat) -> Flat:
        """Return the elements of both."""
        return Flat(np.where(np.isnan(self.values), other.values, self.values), self.part)


def held(shards: Iterable[int], num_shards: int, size: int) -> NDArray[np.bool_]:
    """Return which of `size` elements some shards hold; shard i of n is the part of them from i / n to (i + 1) / n.

    >>> held([1], 3, 8)
    array([False, False,  True,  True,  True, False, False, False])
    """
    mask = np.zeros(size, dtype=np.bool_)
    for shard in shards:
        mask[shard * size // num_shards : (shard + 1) * size // num_shards] = True
    return mask


def on_place(problem: Problem | TransformerProblem, backend: Any = None) -> Problem | TransformerProblem:
    """Return a problem whose arrays are placed on a backend, or on one for each rank.

    Args:
        problem: what is trained.
        backend: "numpy", "jax" or "torch", or a sequence of these, which ranks take in turn; that of the problem if
            None.

    Raises:
        UsageError: there is no such backend, or its library is not installed.
    """
    wanted = problem.backend if backend is None else backend
    names = wanted if isinstance(wanted, list | tuple) else (wanted,)
    if wanted is None or (names and all(hasattr(name, "put") for name in names)):
        return problem
    from minitrain.machine.heterogeneous.abstraction_layer import places_of  # noqa: PLC0415  (only where a backend is named)

    places = places_of(names)
    return replace(problem, backend=places if len(places) > 1 else places[0])


def of_rank(problem: Problem | TransformerProblem, rank: int) -> Problem | TransformerProblem:
    """Return a problem with the place of one rank, where ranks have different ones."""
    places = problem.backend
    return replace(problem, backend=places[rank % len(places)]) if isinstance(places, tuple) else problem


def placed(values: Any, problem: Problem | TransformerProblem) -> Any:
    """Return initial numbers where a problem wants them."""
    return values if problem.backend is None else problem.backend.put(values)


def at_home(values: Any) -> Array:
    """Return numbers in NumPy's memory."""
    return values.home() if hasattr(values, "home") else values  # type: ignore[no-any-return]  # an array either way


def brought(content: Any, place: Any) -> Any:
    """Return what a tensor carries on a rank's own place, where it came from another rank's.

    Incomplete gradients stay where they are: they are the same objects until they are complete.
    """
    if not isinstance(content, Flat | Rows | Tokens):
        return content
    values: Any = content.values
    if getattr(values, "place", place) is place:
        return content
    return replace(content, values=place.put(values.home()))


def computed_by(problem: Problem | TransformerProblem) -> tuple[str | None, dict[str, int]]:
    """Return the backends that a problem names, and how many operations were computed where."""
    if problem.backend is None:
        return None, {}
    places = problem.backend if isinstance(problem.backend, tuple) else (problem.backend,)
    on_host = sum(place.on_host.total() for place in places)
    return " and ".join(dict.fromkeys(place.key for place in places)), {**places[0].layer.executed, "host": on_host}
