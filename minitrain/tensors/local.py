"""Tensors of replicas that take optimizer steps of their own between two meetings (local SGD, DiLoCo).

A replica's weight goes its own way from the common one. It knows which samples it has seen since, as a gradient does.
So what it adds to the common weight, the difference of both, is a `WeightGrad` of these samples, and the laws of sums
over samples hold for it: no replica twice, and none missing. It is a file of its own, since only strategies that
declare local steps meet these tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from minitrain.tensors.kinds import OptState, Weight


@dataclass(slots=True)
class LocalWeight(Weight):
    """A replica's own weight of a layer, whole or in shards.

    Args:
        layer, layers, shards, num_shards: as of `Weight`.
        step: how many steps of its own it has seen since it was the common one.
        samples: the samples of these steps.
        total_samples: size of the global batch: of all samples between two meetings.
        has_met: whether it was mixed with the common weight in this round, where fragments of layers are in turn.
    """

    samples: frozenset[int] = frozenset()
    total_samples: int = 1
    has_met: bool = False


@dataclass(slots=True)
class OuterState(OptState):
    """The state of the optimizer that takes the common weight on: one momentum."""


OUTER_MOMENTUM_BYTES = 4
"""What an element of a transformer's outer momentum takes: it is kept in single precision."""

LOCAL_KINDS: tuple[type[Weight] | type[OptState], ...] = (LocalWeight, OuterState)
"""The kinds of tensor of local steps."""
