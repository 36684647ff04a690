"""Writing recipes in the words of other tools, and asking before whether they have words for a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minitrain.errors import UsageError
from minitrain.workloads.exchange import (
    deepspeed,
    megatron_bridge,
    megatron_layout,
    megatron_lm,
    megatron_model,
    torchtitan,
)
from minitrain.workloads.exchange.recipe import Recipe
from minitrain.workloads.transformer import Transformer


@dataclass(frozen=True, slots=True)
class _Format:
    """How a tool is written.

    Args:
        write: makes the text of a recipe without faults.
        model_faults: says why the tool cannot train a model.
        layout_faults: says why it cannot lay work out so.
    """

    write: Callable[[Recipe], str]
    model_faults: Callable[[Transformer], list[str]]
    layout_faults: Callable[[Recipe], list[str]]


_FORMATS: Mapping[str, _Format] = {
    "megatron-lm": _Format(megatron_lm.write, megatron_model.faults_of, megatron_layout.layout_faults),
    "megatron-bridge": _Format(megatron_bridge.write, megatron_model.faults_of, megatron_layout.layout_faults),
    "torchtitan": _Format(torchtitan.write, torchtitan.model_faults, torchtitan.layout_faults),
    "deepspeed": _Format(deepspeed.write, lambda _: [], deepspeed.layout_faults),
}

TOOLS = tuple(_FORMATS)


def write_recipe(recipe: Recipe, tool: str) -> str:
    """Return the arguments by which a tool trains the same model in the same layout.

    Raises:
        UsageError: there is no such tool, or it has no words for the model or the layout.
    """
    found = _format(tool)
    faults = [] if recipe.model is None else found.model_faults(recipe.model)
    _refuse(tool, recipe.model, faults + found.layout_faults(recipe))
    return found.write(recipe)


def require_words(model: Any, tool: str) -> None:
    """Require that a tool can be told to train a model, before a layout is known.

    Args:
        model: a `Transformer`; other workloads are not described to any tool.
        tool: its name; one that nothing is said of here is passed over.

    Raises:
        UsageError: it has no words for the model.
    """
    if isinstance(model, Transformer) and tool in _FORMATS:
        _refuse(tool, model, _FORMATS[tool].model_faults(model))


def _format(tool: str) -> _Format:
    if tool not in _FORMATS:
        raise UsageError(f"a recipe can be written for {', '.join(TOOLS)}, got {tool!r}", tool=tool)
    return _FORMATS[tool]


def _refuse(tool: str, model: Transformer | None, faults: list[str]) -> None:
    """Refuse what a tool has no words for; what a model's source says otherwise is one of these."""
    if faults:
        name = "this recipe" if model is None else model.name
        remedy = "; dataclasses.replace(model, taken_as=()) says that you know" if model and model.taken_as else ""
        raise UsageError(
            f"{tool} cannot be told to train {name}: it has no words for {'; '.join(faults)}{remedy}", tool=tool
        )
