"""A recipe: what is trained, on how many ranks, and in which layout.

`words.json` has the words of other tools without bearing on shapes, layout and time of a step: data, schedules, logs,
checkpoints, names. Whoever adds one there has looked at what it does. Under "read" it has those that have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError, typed
from minitrain.files import read_json
from minitrain.workloads.transformer import Transformer, models


@typed
@dataclass(frozen=True, slots=True)
class Recipe:
    """What a tool's arguments say, in the words of `simulate`.

    Args:
        strategy: the strategy that divides the work so: "megatron", "fsdp", "zero2" ...
        options: its options; what the arguments do not say has the strategy's default.
        model: what is trained, with its precision and the length of samples; None where the arguments do not say.
        world_size: ranks; None where the arguments do not say.
        global_batch_size: samples of a step; None where the arguments do not say.
        notes: what was read as something else, and why.
        tool: whose arguments they are.
    """

    strategy: str
    options: Mapping[str, Any]
    model: Transformer | None = None
    world_size: int | None = None
    global_batch_size: int | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    tool: str = field(default="", compare=False)

    def keywords(self, **changes: Any) -> dict[str, Any]:
        """Return the keywords of `simulate`, the strategy among them.

        Args:
            changes: parameters and options to set otherwise, or that the arguments do not say.

        Raises:
            UsageError: neither the arguments nor the changes say what is trained, or on how many ranks.

        Example:
            >>> Recipe("fsdp", {"microbatch_size": 1}, None, 8, 16).keywords(workload="llama3-8b")["global_batch_size"]
            16
        """
        known = {"workload": self.model, "world_size": self.world_size, "global_batch_size": self.global_batch_size}
        given = {name: value for name, value in known.items() if value is not None}
        found = {"strategy": self.strategy, **given, **self.options, **changes}
        for name in known:
            if found.get(name) is None:
                remedy = _REMEDIES[name]
                raise UsageError(f"the arguments of {self.tool or 'a tool'} do not say the {name}; {remedy}")
        return found


def same_model(model: Transformer, other: Transformer) -> bool:
    """Return whether two models are the same but for names, sources, precision and the length of samples."""
    kept = ("name", "source", "seq_len", "num_positions", "max_seq_len", "precision")
    of_other = {name: getattr(other, name) for name in kept}
    fits = model.positions != "learned" or model.num_positions == other.num_positions
    return fits and replace(model, **of_other) == other


def called_as_shipped(model: Transformer) -> Transformer:
    """Return a model under the name of the shipped one that it is, or as it is."""
    found = next((other for other in models().values() if same_model(model, other)), model)
    return replace(model, name=found.name, source=found.source)


_REMEDIES = {
    "workload": 'give --model, or workload="llama3-8b" in Python',
    "world_size": "give --world-size, or world_size=64 in Python",
    "global_batch_size": "give --batch, or global_batch_size=256 in Python",
}


@cache
def known_words(tool: str) -> frozenset[str]:
    """Return the words of a tool in words.json: those without bearing, and those that are read where it lists them."""
    words: dict[str, dict[str, list[str]]] = read_json(Path(__file__).with_name("words.json"))
    return frozenset(word for by_topic in words[tool].values() for word in by_topic)
