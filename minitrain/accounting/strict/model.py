"""`StrictModel`: a rank whose tensors are followed from the operation that makes them to the last one that uses them.

It extends each operation and leaves what it does alone, so that it can be combined with other models that do so too.
"""

from __future__ import annotations

from typing import Any

from minitrain.accounting.strict.communicating import StrictCommunicating


class StrictModel(StrictCommunicating):
    """One rank of a strict run.

    Args: those of `Model`.

    Attributes:
        given: what a strategy must leave alone, as it was at the start.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.given = self.given_now()

    def given_now(self) -> tuple[Any, ...]:
        """Return what a strategy must leave alone."""
        return (
            self.dist,
            self.log,
            self.runtime_predictor,
            self.rank,
            self.world_size,
            self.num_layers,
            self.global_batch_size,
        )
