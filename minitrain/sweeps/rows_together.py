"""Rows of configurations that differ in prices alone, by one execution: see `minitrain.vector`.

The rows are those that a simulation of each configuration gives, to the last float. What cannot be executed so, or
fails, is simulated one configuration after the other instead; each that fails then has an error of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minitrain.run.chosen_strategy import ChosenStrategy
from minitrain.run.parameters import DEFAULTS, PRICE_ONLY
from minitrain.run.prepared_run import prepare
from minitrain.run.saved_runs import plain
from minitrain.run.strategy_loading import framework_of

if TYPE_CHECKING:
    from minitrain.vector.execution import MachineGroup

Parameters = Mapping[str, Any]

FEWEST = 3
"""So few configurations are simulated one by one as quickly."""


def structure_of(label: str, parameters: Parameters) -> str | None:
    """Return a text that configurations share if they differ in prices alone; None for one to simulate by itself.

    Args:
        label: what tells strategies apart.
        parameters: those of the configuration.
    """
    if parameters.get("log", "full") != "full":
        return None  # "summary" is asked for where there are too many events to keep
    if not any(name in parameters for name in PRICE_ONLY):
        return None  # it sets no price, so only an equal configuration could share its structure
    own = {name: plain(value) for name, value in sorted(parameters.items()) if name not in PRICE_ONLY}
    return json.dumps([label, own])


Summaries = list[dict[str, Any] | None]


async def summaries_together(chosen: ChosenStrategy, configurations: Sequence[Parameters]) -> Summaries:
    """Return the summary of each configuration; None for those that must be simulated one by one.

    Args:
        chosen: the strategy.
        configurations: parameters of each, which differ in prices alone.
    """
    try:
        return await _summaries(chosen, configurations)
    except Exception:  # the simulation of each reports what is wrong with it
        left: Summaries = [None] * len(configurations)
        sound = [place for place, parameters in enumerate(configurations) if _can_be_priced(chosen, parameters)]
        if FEWEST <= len(sound) < len(left):
            found = await summaries_together(chosen, [configurations[place] for place in sound])
            for place, summary in zip(sound, found, strict=True):
                left[place] = summary
        return left


def _can_be_priced(chosen: ChosenStrategy, parameters: Parameters) -> bool:
    """Return whether a configuration can be prepared to run, its prices among the rest."""
    try:
        prepare(chosen, parameters)
    except Exception:
        return False
    return True


async def _summaries(chosen: ChosenStrategy, configurations: Sequence[Parameters]) -> Summaries:
    """Do what `summaries_together` does; raises what is wrong with any of them."""
    from minitrain.vector.configurations import Configurations  # noqa: PLC0415  (numpy only where it is needed)
    from minitrain.vector.execution import execute  # noqa: PLC0415

    names = [name for name in PRICE_ONLY if any(name in parameters for parameters in configurations)]
    columns = {name: [parameters.get(name, DEFAULTS[name]) for parameters in configurations] for name in names}
    common = {name: value for name, value in configurations[0].items() if name not in names}
    together = Configurations(common, columns)
    prepared = prepare(chosen, together.of(0))
    found: Summaries = [None] * len(configurations)
    if together.reason_to_simulate_each(prepared.parameters) is not None:
        return found
    for group in await execute(prepared, together.machines(prepared.parameters, framework_of(prepared.function))):
        _take(group, [together.hardware(place) for place in group.places.tolist()], found)
    return found


def _take(group: MachineGroup, hardware: Sequence[Any], found: Summaries) -> None:
    """Put the summaries of a group in their places, if it was executed."""
    if group.figures is not None:
        for place, summary in zip(group.places.tolist(), group.figures.summaries(hardware), strict=True):
            found[place] = summary
