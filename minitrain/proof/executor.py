"""The executor of proofs: every operation computes in NumPy, in addition to what a `Model` does.

What a rank computes alone is in `minitrain.proof.layers`; what comes of collectives and messages is here.

With experts, the router's own choice decides which tokens go where, and which an expert with a capacity does not take.
Prices stay those of `imbalance`, so that the log is that of a run without numbers. `model.copies_by_expert` says what
the router has chosen, which can be given as `imbalance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from minitrain.engine.observers import ContentExecutor
from minitrain.operations.collectives import COLLECTIVES, Collective
from minitrain.proof.arrays import brought, of_rank
from minitrain.proof.layers import DenseLayers, TransformerLayers, layers_of, problem_of
from minitrain.proof.problem import Problem, TransformerProblem
from minitrain.tensors.placed import COPIES, KeysValuesGrad


def _plus(content: Any) -> Any:
    """Return the function that adds contents over ranks; a sum of parts is finished by each rank afterwards."""
    return getattr(type(content), "plus", type(content).add)


class ArraysExecutor(ContentExecutor):
    """Computes what is trained; a model gets the following attributes.

    - `problem`: what it trains, on its own backend.
    - `final_states`: optimizer state after the rank's last update, by layer that it updated.
    - `final_expert_states`: likewise, of its part of the experts.
    - `copies_by_expert`: the copies of tokens that each expert of a layer was sent by this rank's router, by layer.

    Args:
        problem: the data, initial weights and optimizer, as `minitrain.proof.problem_of` takes them.
    """

    def __init__(self, problem: Problem | TransformerProblem | str = "numpy") -> None:
        self._given = problem

    def arithmetic_of(self, model: Any) -> DenseLayers | TransformerLayers:
        """Return the layers of a rank."""
        model.problem = of_rank(problem_of(self._given, model._runtime_predictor.workload), model._rank)
        layers = layers_of(model.problem, model.world_size, model.global_batch_size)
        model.final_states, model.final_expert_states = layers.final_states, layers.final_expert_states
        model.copies_by_expert = layers.copies_by_expert
        return layers

    def contents(self, model: Any, op: str, values: Sequence[Any]) -> list[Any]:
        """Return what tensors carry, on the rank's own backend.

        Raises:
            LawError: a tensor carries nothing.
        """
        found, place = super().contents(model, op, values), model.problem.backend
        return found if place is None else [brought(content, place) for content in found]

    def settle(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Combine the members' numbers, reductions in rank order."""
        model, record = operations[0].model, COLLECTIVES[operations[0].op]
        values = [operation.value for operation in operations]
        if record.gives == "copy":
            root = next(value for value in values if value is not None)
            values = [root] * len(values)
        if values[0].__class__ in COPIES:
            self.contents(model, "all_to_all", values)
            for result, content in zip(results, model._arithmetic.exchanged(values, results), strict=True):
                result._content = content
        elif record.gives == "exchange":
            for value, result in zip(zip(*values, strict=True), results, strict=True):
                self._move(model, list(value), result)
        elif record.gives != "nothing":
            self._meet(model, record, values, results)

    def _meet(self, model: Any, record: Collective, values: Sequence[Any], results: Sequence[Any]) -> None:
        """Give the results of a collective their numbers; of buckets, tensor by tensor."""
        if isinstance(results[0], list):
            for places in zip(*values, *results, strict=True):
                self._meet(model, record, places[: len(values)], places[len(values) :])
            return
        contents = self.contents(model, record.name, values)
        if record.gives == "copy":
            for result in results:
                result._content = contents[0]
            return
        total = reduce(type(contents[0]).combine if record.gives == "union" else _plus(contents[0]), contents)
        for index, result in [(index, each) for index, each in enumerate(results) if each is not None]:  # or one root
            mine = contents[index].mine(total) if hasattr(total, "mine") else total
            if result.__class__ is KeysValuesGrad:  # its shards need not be the index-th ones
                mine = mine.at(model._arithmetic.positions(result.sequence.shards, result.sequence.num_shards))
            elif record.scatters and len(results) > 1:
                mine = mine.shard(index, len(results))
            result._content = mine.finished() if hasattr(mine, "finished") else mine

    def receive(self, operation: Any, value: Any, result: Any) -> None:
        """Copy the numbers of a message to what is received."""
        self._move(operation.model, value, result)

    def _move(self, model: Any, value: Any, result: Any) -> None:
        """Give a copy the numbers of its original; of a bucket, tensor by tensor."""
        if isinstance(value, list):
            for item, copy in zip(value, result, strict=True):
                self._move(model, item, copy)
        else:
            result._content = self.contents(model, "a message", [value])[0]
