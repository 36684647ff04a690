"""The part of a class of ranks in a collective with other classes, which is completed when the last one is there.

Classes meet through the transport, as the ranks of a full run do. Each of them then takes the union over the ranks of
the class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitrain.engine.operations import Operation
from minitrain.run.folding.collectives import perform_of_classes


class ClassOperation(Operation):
    """The part of a class in a collective whose groups have members of several classes.

    Attributes:
        own_value: what the lowest rank of the class gave; its `value` may have the samples of all ranks of the class.
    """

    __slots__ = ("own_value",)
    own_value: Any

    @property
    def given(self) -> Any:
        """What the lowest rank gave, whose memory counts."""
        return self.own_value

    @staticmethod
    def settle_all(
        calls: Sequence[Any],
        results: Sequence[Any],
        clocks: Sequence[float],
        start: float,
        last: int,
        largest_bytes: int,
    ) -> None:
        """Complete the collective of all classes; `results` are those of their lowest ranks among themselves."""
        found = [
            perform_of_classes(call.model.attempt, call.op, call.value, result, call.owner)
            for call, result in zip(calls, results, strict=True)
        ]
        Operation.settle_all(calls, found, clocks, start, last, largest_bytes)
        calls[0].model.require_same_price(calls[0])
