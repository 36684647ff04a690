"""The option `--from` of `run`: a recipe of another tool instead of a strategy with its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from minitrain.cli import options as given
from minitrain.cli import rank_options as ranks_given
from minitrain.errors import UsageError
from minitrain.exchange.reading import read_recipe
from minitrain.exchange.recipe import Recipe
from minitrain.tuning.findings import described

From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Read model, ranks, batch and layout from Megatron-LM's arguments, Megatron Bridge's YAML, torchtitan's "
        "TOML or DeepSpeed's JSON, instead of STRATEGY and its options; other options override the file.",
        rich_help_panel=given.MODEL,
    ),
]


@dataclass(frozen=True, slots=True)
class Told:
    """What is to be run, as `--from` and the other options say together.

    Args:
        strategy: its name.
        world_size: ranks; None where nothing says how many.
        trained: what is trained, as arguments of `simulate`.
        batch: samples, as arguments of `simulate`.
        options: those of the strategy.
        lines: what a reader is to know of a recipe.
    """

    strategy: str
    world_size: int | None
    trained: Mapping[str, Any]
    batch: Mapping[str, Any]
    options: Mapping[str, Any]
    lines: tuple[str, ...] = ()


def told(
    file: Path | None,
    strategy: str | None,
    world_size: int | None,
    model: tuple[str | None, int | None, int | None, str | None],
    batch: tuple[int | None, str | None],
    options: Mapping[str, Any],
) -> Told:
    """Return what is to be run.

    Args:
        file: a recipe, or None.
        strategy: a strategy, or None where a recipe says it.
        world_size: ranks.
        model: --model, --seq, --layers and --precision.
        batch: --batch and --shares.
        options: the strategy's own.

    Raises:
        UsageError: both or none of strategy and recipe are given, or the recipe cannot be read or lacks something.
    """
    if (file is None) == (strategy is None):
        raise UsageError(
            "run takes either a STRATEGY (see `minitrain strategies`) or --from with a recipe of another tool"
        )
    if file is None:
        assert strategy is not None  # as above
        return Told(strategy, world_size, given.trained(*model), ranks_given.batch_of(*batch), options)
    recipe = read_recipe(file)
    trained = _trained(recipe, *model)
    size = {} if batch == (None, None) else ranks_given.batch_of(*batch)
    changes = {**({} if world_size is None else {"world_size": world_size}), **size}
    found = recipe.keywords(**{"workload": trained.get("workload"), **changes} if trained else changes)
    merged = {**recipe.options, **options}
    counts = {"global_batch_size": found["global_batch_size"], **size}
    return Told(recipe.strategy, found["world_size"], trained, counts, merged, _lines(file, recipe))


def _trained(
    recipe: Recipe, model: str | None, seq: int | None, layers: int | None, precision: str | None
) -> Mapping[str, Any]:
    """Return what is trained: what the options say, or else the recipe."""
    if model is not None or layers is not None or recipe.model is None:
        return given.trained(model, seq, layers, precision) if (model, layers) != (None, None) else {}
    of_options = {"seq_len": seq, "precision": precision}
    return {"workload": recipe.model, **{name: value for name, value in of_options.items() if value is not None}}


def _lines(file: Path, recipe: Recipe) -> tuple[str, ...]:
    """Return what was read, in words."""
    layout = described(recipe.options)
    return f"{file} ({recipe.tool}) is {recipe.strategy}{' with ' + layout if layout else ''}", *recipe.notes
