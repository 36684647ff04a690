"""The models of a run on several machines: those of all ranks, or of classes of folded ranks.

They are the engine's own models, but for their communications. Clocks become arrays because prices are.
"""

from __future__ import annotations

from typing import Any

from minitrain.folding.model import FoldedModel
from minitrain.rank.model import Model
from minitrain.rank.operations import Operation
from minitrain.vector.capacities import CapacityWatch
from minitrain.vector.operations import VectorClassOperation, VectorOperation


class VectorModel(Model):
    """One rank, on all machines.

    Adds:
        _operation_kind: communications whose clocks are those of all machines.
        capacities: notes on which machines the rank holds too much.
    """

    _operation_kind = VectorOperation

    def __init__(self, *args: Any, **parameters: Any) -> None:
        super().__init__(*args, **parameters)
        self.capacities = CapacityWatch(self)


class VectorFoldedModel(FoldedModel):
    """One class of folded ranks, on all machines; see `VectorModel`."""

    _operation_kind = VectorOperation
    _class_operation_kind: type[Operation] = VectorClassOperation

    def __init__(self, *args: Any, **parameters: Any) -> None:
        super().__init__(*args, **parameters)
        self.capacities = CapacityWatch(self)
