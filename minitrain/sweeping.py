"""Many configurations, over processes: `sweep` -> `Sweep`, whose rows come as they are done.

A results file (JSON Lines, a row a line) is written as rows come; a sweep that is begun again
with the same file goes on where the other one ended. A configuration that fails is a row too, with its reason.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from os import PathLike
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError
from minitrain.loading import Strategy
from minitrain.portions import Configuration, Row, hand_out, key_of

Grid = Mapping[str, Sequence[Any]] | Iterable[Mapping[str, Any]]


def sweep(
    strategies: str | Strategy | Iterable[str | Strategy],
    grid: Grid,
    executor: Executor | None = None,
    *,
    results: str | PathLike[str] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    **parameters: Any,
) -> Sweep:
    """Simulate every strategy with every configuration of a grid; nothing runs before somebody asks for rows.

    Args:
        strategies: what `simulate` takes, one or several. For processes, functions must be importable.
        grid: values by parameter, of which every combination is simulated; or the configurations themselves, one
            mapping of parameters each, which may be as many as an iterator makes.
        executor: where to run, any `concurrent.futures` executor; a pool of one process a core by default.
        results: a JSON Lines file; what it holds is not simulated again, and new rows are added to it.
        progress: called with the number of rows done and of all (None if the grid cannot tell) as rows come.
        parameters: those of `simulate` that do not vary.

    Returns:
        The sweep: iterate it for rows as they are done, or ask for `rows()` or `write_csv(path)`.

    Raises:
        UsageError: the grid is none.

    >>> for row in sweep("ddp", {"world_size": [1, 2]}, num_layers=2, global_batch_size=2).rows():  # doctest: +SKIP
    ...     print(row["world_size"], row["status"], row["step_time_s"])
    """
    several = [strategies] if isinstance(strategies, str) or callable(strategies) else list(strategies)
    return Sweep(
        several,
        _checked(grid),
        parameters,
        executor=executor,
        results=None if results is None else Path(results),
        progress=progress,
    )


def _checked(grid: Grid) -> Grid:
    """Return a grid whose axes are sequences.

    Raises:
        UsageError: an axis is a single value, or empty.
    """
    if not isinstance(grid, Mapping):
        return grid
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise UsageError(f"the grid's {name} must be a list of at least one value, got {values!r}", name=name)
    return grid


class Sweep:
    """The rows of many configurations, in part still to come.

    A row holds the keys of `Run.summary` (None where there is no figure), a key for every parameter that was given, and
    `status`: "ok", "oom" (more than the device's memory) or "failed"; `out_of_memory` and `error` say why.
    """

    def __init__(
        self,
        strategies: Sequence[str | Strategy],
        grid: Grid,
        parameters: Mapping[str, Any],
        *,
        executor: Executor | None,
        results: Path | None,
        progress: Callable[[int, int | None], None] | None,
    ) -> None:
        self._strategies = strategies
        self._grid = grid
        self._parameters = parameters
        self._executor = executor
        self._results = results
        self._progress = progress
        self._known: dict[str, Row] = {} if results is None else _read(results)
        self._order: dict[str, None] = {}

    @property
    def total(self) -> int | None:
        """Number of configurations, or None where the grid is an iterator."""
        if isinstance(self._grid, Mapping):
            return len(self._strategies) * math.prod(len(values) for values in self._grid.values())
        return len(self._strategies) * len(self._grid) if isinstance(self._grid, Sequence) else None

    def rows(self) -> list[Row]:
        """Return all rows in the order of the grid, after simulating those that are missing."""
        for _ in self:
            pass
        return [self._known[key] for key in self._order]

    def write_csv(self, path: str | PathLike[str]) -> Path:
        """Write all rows as a table, and return its path."""
        rows = self.rows()
        names = dict.fromkeys(name for row in rows for name in row)
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(names), restval="")
            table.writeheader()
            table.writerows(rows)
        return Path(path)

    def __iter__(self) -> Iterator[Row]:
        """Yield each row as soon as it is there."""
        for num_done, row in enumerate(self._rows(), 1):
            if self._progress is not None:
                self._progress(num_done, self.total)
            yield row

    def _rows(self) -> Iterator[Row]:
        """Yield rows that are known and rows that are made, as they come."""
        aside: deque[Row] = deque()
        for key, row in hand_out(self._missing(aside), self._executor):
            self._keep(key, row)
            yield row
            while aside:
                yield aside.popleft()
        yield from aside

    def _missing(self, aside: deque[Row]) -> Iterator[tuple[str, Configuration]]:
        """Yield every configuration whose row is not known, once; lay the rows of the others aside."""
        seen: set[str] = set()
        for parameters in _points(self._grid):
            for strategy in self._strategies:
                configuration = strategy, {**self._parameters, **parameters}
                key = key_of(configuration)
                if key in seen:
                    continue
                seen.add(key)
                self._order[key] = None
                if key in self._known:
                    aside.append(self._known[key])
                else:
                    yield key, configuration

    def _keep(self, key: str, row: Row) -> None:
        """Remember a row, and write it where results go."""
        self._known[key] = row
        if self._results is not None:
            with self._results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **row}) + "\n")


def _points(grid: Grid) -> Iterator[Mapping[str, Any]]:
    """Yield the parameters of every point of a grid, the last axis fastest."""
    if isinstance(grid, Mapping):
        return (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return iter(grid)


def _read(path: Path) -> dict[str, Row]:
    """Return the rows of a results file by key, after cutting off a last line that a kill left unfinished.

    Raises:
        UsageError: the file holds something else.
    """
    if not path.exists():
        return {}
    whole, _, torn = path.read_bytes().rpartition(b"\n")
    if torn:
        with path.open("r+b") as file:
            file.truncate(len(whole) + 1 if whole else 0)
    rows: dict[str, Row] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            rows[row.pop("key")] = row
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UsageError(f"{path}, line {number}, is no row of a sweep; name another results file") from error
    return rows
