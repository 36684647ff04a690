"""The gradient of a table that embedding and head share, where embeddings are tied.

Each of the two layers has a copy of the table, and of its gradient the share of its own use, which are
summed.

It is a file of its own, since only models with tied embeddings have it.
"""

from __future__ import annotations

from dataclasses import dataclass

from minitrain.tensors.index_sets import WHOLE_SEQUENCE, SequencePart
from minitrain.tensors.kinds import WeightGrad, altered, fields_beside, require_same, summed


@dataclass(slots=True)
class TableGrad(WeightGrad):
    """The gradient of a tied table; its layer is the embedding's.

    Args:
        uses: whose share is in it: 0 the embedding's, 1 the head's.
        parts: whose rows of the vocabulary it has, as a set of one.
        num_parts: number of parts that the vocabulary is divided into.
        sequence: the shards of the sequence that it covers.
    """

    uses: frozenset[int] = frozenset()
    parts: frozenset[int] = frozenset([0])
    num_parts: int = 1
    sequence: SequencePart = WHOLE_SEQUENCE

    def __add__(self, other: WeightGrad) -> WeightGrad:
        """Return the sum of both uses.

        Raises:
            LawError: it is no such gradient, or a use is in both.
        """
        require_same("gradients that add", self, other, *fields_beside(TableGrad, "uses"))
        total = altered(self, uses=self.uses | other.uses)  # type: ignore[attr-defined]  # it is of the same kind
        if hasattr(self, "_units"):
            total._units = self._units  # type: ignore[misc]  # a slot of the base
        return summed(total, self, other)
