"""The configurations of a sweep: every combination of some values, or whatever an iterable yields."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from minitrain.errors import UsageError
from minitrain.run.chosen_strategy import ChosenStrategy
from minitrain.run.parameters import DEFAULTS, PRICE_ONLY
from minitrain.run.strategy_loading import did_you_mean, options_of, takes_option

S = TypeVar("S")

Grid = Mapping[str, Sequence[Any]] | Iterable[Mapping[str, Any]]


def checked(grid: Grid) -> Grid:
    """Return a grid whose axes hold each value once, with numpy's numbers as Python's own.

    Raises:
        UsageError: it is no grid, or empty; an axis is a single value, or empty, or no parameter.
    """
    if isinstance(grid, Mapping):
        if not grid:
            raise UsageError("the grid must vary at least one parameter, got {}")
        return {_name(name): _axis(name, values) for name, values in grid.items()}
    if isinstance(grid, str) or not isinstance(grid, Iterable):
        raise UsageError(
            f"the grid must be a dict of lists, or an iterable of dicts with parameters; got {grid!r:.80}", grid=grid
        )
    if isinstance(grid, Sequence) and not grid:
        raise UsageError("the grid must hold at least one configuration, got none")
    return grid


def names_in(grid: Grid) -> list[str]:
    """Return the names that a checked grid varies, as far as they are known before it is used."""
    if isinstance(grid, Mapping):
        return list(grid)
    if not isinstance(grid, Sequence):
        return []
    return list(dict.fromkeys(name for point in grid if isinstance(point, Mapping) for name in point))


def require_known_names(names: Iterable[str], strategies: Sequence[ChosenStrategy]) -> None:
    """Require that each name is a parameter of `simulate`, or an option of at least one strategy.

    Raises:
        UsageError: one is neither.
    """
    for name in names:
        if name in DEFAULTS or any(takes_option(chosen.function, name) for chosen in strategies):
            continue
        options = dict.fromkeys(option for chosen in strategies for option in options_of(chosen.function))
        labels = " or ".join(dict.fromkeys(chosen.name for chosen in strategies))
        known = f"; use one of {', '.join([*options, *DEFAULTS])}"
        hint = did_you_mean(name, [*options, *DEFAULTS])
        raise UsageError(
            f"{name} is neither a parameter of `simulate` nor an option of {labels}{hint or known}",
            name=name,
        )


def num_points(grid: Grid, without: Collection[str] = ()) -> int | None:
    """Return how many configurations a checked grid has for a strategy; None where it cannot tell.

    Args:
        grid: the grid.
        without: names in it that the strategy does not have; points that differ in them alone are one configuration.
    """
    if isinstance(grid, Mapping):
        return math.prod(len(values) for name, values in grid.items() if name not in without)
    if not isinstance(grid, Sequence):
        return None
    if not without:
        return len(grid)
    own = ([(name, repr(value)) for name, value in point.items() if name not in without] for point in points(grid))
    return len({tuple(sorted(point)) for point in own})


def points(grid: Grid) -> Iterator[Mapping[str, Any]]:
    """Yield the parameters of every point of a checked grid, the last axis fastest.

    Raises:
        UsageError: an iterable yields something else than parameters.
    """
    if isinstance(grid, Mapping):
        for values in itertools.product(*grid.values()):
            yield dict(zip(grid, values, strict=True))
        return
    for place, parameters in enumerate(grid):
        if not isinstance(parameters, Mapping):
            raise UsageError(f"configuration {place} of the grid must be a dict of parameters, got {parameters!r:.80}")
        yield {_name(name): _of_python(value) for name, value in parameters.items()}


def points_by_structure(grid: Grid, strategies: Sequence[S]) -> Iterator[tuple[int, S, Mapping[str, Any]]]:
    """Yield every point of a checked grid with every strategy, those together that differ in prices alone.

    Yields:
        Where a loop over the points, and for each over the strategies, has it; the strategy; the parameters.

    Raises:
        UsageError: an iterable yields something else than parameters.
    """
    if not isinstance(grid, Mapping):
        for place, parameters in enumerate(points(grid)):
            for index, strategy in enumerate(strategies):
                yield place * len(strategies) + index, strategy, parameters
        return
    sizes = {name: len(values) for name, values in grid.items()}
    prices = [name for name in grid if name in PRICE_ONLY]
    structures = [name for name in grid if name not in PRICE_ONLY]
    for outer in itertools.product(*(range(sizes[name]) for name in structures)):
        for index, strategy in enumerate(strategies):
            for inner in itertools.product(*(range(sizes[name]) for name in prices)):
                step = dict(zip((*structures, *prices), (*outer, *inner), strict=True))
                place = 0
                for name, size in sizes.items():
                    place = place * size + step[name]
                yield place * len(strategies) + index, strategy, {name: grid[name][step[name]] for name in grid}


def _axis(name: str, values: Any) -> list[Any]:
    """Return the distinct values of an axis.

    Raises:
        UsageError: it has none.
    """
    listed = _of_python(values)
    if isinstance(listed, str) or not isinstance(listed, Sequence) or not listed:
        raise UsageError(f"the grid's {name} must be a list of at least one value, got {values!r}", name=name)
    distinct: list[Any] = []
    for value in map(_of_python, listed):
        if not any(type(value) is type(known) and value == known for known in distinct):
            distinct.append(value)
    return distinct


def _name(name: Any) -> str:
    """Return the name of a parameter that a grid may vary.

    Raises:
        UsageError: it is no name, or names the strategy, which is not varied by the grid.
    """
    if not isinstance(name, str):
        raise UsageError(f"the grid's parameters must have names, got {name!r}", name=name)
    if name == "strategy":
        raise UsageError("the grid cannot vary the strategy; give a list of strategies in its place", name=name)
    return name


def _of_python(value: Any) -> Any:
    """Return numpy's arrays and numbers as lists and numbers of Python, anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "dtype") else value
