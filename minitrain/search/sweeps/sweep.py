"""Many configurations, over processes: `sweep` -> `Sweep`, which yields a row for each configuration when it is done.

A results file is written row by row, and a sweep that is started again with the same file continues where the other one
ended. A configuration that fails is a row too, with its reason.

The configurations of a sweep: every combination of some values, or whatever an iterable yields.

The results file of a sweep: JSON Lines to which rows are added, and from which a later sweep continues.

A line is a row with its configuration's key and a checksum. The last line of a sweep that was killed may be incomplete;
it is cut off. A file that holds anything else, or a row that was changed, is refused and never overwritten. Rows of
other sweeps are kept.

Which of a sweep's names go to which of its strategies: an option goes to those that have it.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import itertools
import json
import math
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, cached_property
from html import escape
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast
from zlib import crc32

from minitrain.errors import NO_MEMORY, UsageError, require_count, typed, typed_methods
from minitrain.files import StrPath, replacing
from minitrain.plain_text import spreadsheet_cell
from minitrain.run.figures import data_frame
from minitrain.run.parameters import DEFAULTS, EXCLUSIONS, PRICE_ONLY
from minitrain.run.simulation import SweepKeywords, over_grid, simulate
from minitrain.run.strategy_loading import (
    ChosenStrategy,
    Strategy,
    choose_strategy,
    did_you_mean,
    options_of,
    takes_option,
)
from minitrain.search.sweeps.batches import Configuration, Row, Workers, flat, key_of, label_of, run_batches, succeeded
from minitrain.search.sweeps.executors import require_workers
from minitrain.search.sweeps.own_processes import require_time_limit
from minitrain.tensors.index_sets import grouped

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
        message = f"{name} is neither a parameter of `simulate` nor an option of {labels}{hint or known}"
        raise UsageError(message, name=name)


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


_BEGIN = b'{"key": '


def read_results(path: Path) -> dict[str, Row]:
    """Return the rows of a results file by key; none where there is no file yet.

    Raises:
        UsageError: the file cannot be read, or holds something else.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no file to keep rows in; name another results file", path=str(path))
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _failed(path, "read", error) from error
    whole, rest = _whole_lines(text)
    rows: dict[str, Row] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            is_as_written = row.pop("checksum") == _checksum(row)
            rows[row.pop("key")] = row
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise _no_row(path, number) from error
        if not is_as_written:
            raise _no_row(path, number)
    if not (rest.startswith(_BEGIN) or _BEGIN.startswith(rest)):
        raise _no_row(path, whole.count(b"\n") + 1)
    return rows


def _checksum(row: Mapping[str, Any]) -> int:
    """Return a number that another row hardly has."""
    return crc32(json.dumps(row).encode())


@contextlib.contextmanager
def writing(path: Path | None) -> Iterator[Callable[[str, Row], None]]:
    """Provide a function that adds a row to a results file at once and whole; without a file, it does nothing.

    Raises:
        UsageError: the file cannot be written.
    """
    if path is None:
        yield lambda _key, _row: None
        return
    with _opened(path) as file:

        def write(key: str, row: Row) -> None:
            kept = {"key": key, **row}
            line = json.dumps({**kept, "checksum": _checksum(kept)}).encode() + b"\n"
            try:
                num_written = file.write(line)
            except OSError as error:
                raise _failed(path, "written", error) from error
            if num_written < len(line):  # the next sweep cuts the line off
                raise _failed(path, "written", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

        yield write


def _opened(path: Path) -> BinaryIO:
    """Open a results file to append to, without an incomplete last line, and unbuffered, so that a kill loses no row.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        file = path.open("ab", buffering=0)
        whole, rest = _whole_lines(path.read_bytes())
        if rest:
            file.truncate(len(whole))
    except OSError as error:
        raise _failed(path, "written", error) from error
    return cast(BinaryIO, file)


def require_writable(path: Path) -> None:
    """Require that a file can be written, before the sweep that is to fill it begins.

    Raises:
        UsageError: it cannot.
    """
    there = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise _failed(path, "written", error) from error
    if not there:
        path.unlink()


def _whole_lines(text: bytes) -> tuple[bytes, bytes]:
    """Return the complete lines of a file, and the incomplete one after them."""
    end = text.rfind(b"\n") + 1
    return text[:end], text[end:]


def _failed(path: Path, what: str, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be {what}: {error.strerror or error}; name another file", path=str(path))


def _no_row(path: Path, number: int) -> UsageError:
    message = (
        f"{path}, line {number}, is no row of results as it was written; remove the line, or name another results file"
    )
    return UsageError(message, path=str(path), line=number)


class SharedOptions:
    """What each strategy of a sweep is given of the names that the sweep has for all.

    Parameters of `simulate` go to all strategies, and so does a name that no strategy knows, whose rows say so.

    Args:
        strategies: those of the sweep, with a label each.
    """

    def __init__(self, strategies: Sequence[str | Strategy]) -> None:
        self._functions = {label_of(strategy): choose_strategy(strategy).function for strategy in strategies}
        self._without: dict[str, dict[str, None]] = {label: {} for label in self._functions}
        self._takers = cache(self._find_takers)

    def _find_takers(self, name: str) -> frozenset[str]:
        """Return the labels of the strategies that a name goes to."""
        if name in DEFAULTS:
            return frozenset(self._functions)
        takers = [label for label, function in self._functions.items() if takes_option(function, name)]
        return frozenset(takers or self._functions)

    def left_out(self, strategy: str | Strategy, names: Iterable[str]) -> list[str]:
        """Return the names among some that are options of other strategies alone, and remember them for `notes`."""
        label = label_of(strategy)
        found = [name for name in names if label not in self._takers(name)]
        self._without[label].update(dict.fromkeys(found))
        return found

    def notes(self) -> list[str]:
        """Return a sentence for each group of options that some strategies do not have."""
        labels = grouped((tuple(names), label) for label, names in self._without.items() if names)
        return [_note(names, without) for names, without in labels.items()]


def _note(names: Sequence[str], labels: Sequence[str]) -> str:
    """Say which strategies run without which options."""
    have, run = ("has", "runs") if len(labels) == 1 else ("have", "run")
    them = "it" if len(names) == 1 else "them"
    return f"{_listed(labels, 'and')} {have} no option {_listed(names, 'or')}, and {run} once without {them}"


def _listed(words: Sequence[str], last: str) -> str:
    """Return words in a row.

    >>> _listed(["ddp", "zero1", "zero3"], "and")
    'ddp, zero1 and zero3'
    """
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


@over_grid(SweepKeywords)
@typed
def sweep(
    strategies: str | Strategy | Iterable[str | Strategy],
    grid: Grid,
    executor: Workers = None,
    *,
    jobs: int | None = None,
    results: StrPath | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    time_limit_s: float | None = None,
    **parameters: Any,
) -> Sweep:
    """Simulate every strategy with every configuration of a grid; nothing runs before somebody asks for rows.

    Args:
        strategies: what `simulate` takes, one or several. For processes, functions must be importable.
        grid: values by parameter, of which every combination is simulated; or the configurations themselves, one
            mapping of parameters each, which may be as many as an iterator makes.
        executor: where to run: any `concurrent.futures` executor, a `dask.distributed` client, the module `ray`, or the
            address of a cluster ("tcp://host:8786", "ray://host:10001"); a pool of one process a core by default.
        jobs: number of processes, where no executor is given; one a core by default.
        results: a JSON Lines file; what it holds is not simulated again, and new rows are added to it.
        progress: called with the number of rows done and of all (None if the grid cannot tell) as rows come.
        time_limit_s: how long a configuration may be simulated, s; one that takes longer is a failed row. A sweep that
            goes on from a results file with a longer limit, or none, tries it again.
        parameters: those of `simulate` that do not vary.

    An option goes to the strategies that have it. The others run once without it, which `Sweep.notes` says.

    Returns:
        The sweep: iterate it for rows as they are done, or ask for `rows()` or `write_csv(path)`.

    Raises:
        UsageError: the grid is none, or names what is neither a parameter nor an option of any strategy; the results
            file holds something else; two strategies cannot be told apart; or `fold` is given together with what tells
            ranks apart. (What concerns one configuration is a failed row.)
        StrategyError: a strategy cannot be found.

    >>> for row in sweep("ddp", {"world_size": [1, 2]}, num_layers=2, global_batch_size=2).rows():  # doctest: +SKIP
    ...     print(row["world_size"], row["status"], row["step_time_s"])
    """
    EXCLUSIONS["fold"].require(parameters)
    if jobs is not None:
        require_count("jobs", jobs)
        if executor is not None:
            raise UsageError(
                "jobs is the number of processes of a sweep's own; give it or executor, not both", jobs=jobs
            )
    require_workers(executor)
    require_time_limit(time_limit_s)
    found, axes = _loadable(strategies), checked(grid)
    require_known_names([*names_in(axes), *parameters], [choose_strategy(strategy) for strategy in found])
    return Sweep(
        found,
        axes,
        parameters,
        executor=executor,
        jobs=jobs,
        results=None if results is None else Path(results),
        progress=progress,
        time_limit_s=time_limit_s,
    )


def _loadable(strategies: str | Strategy | Iterable[str | Strategy]) -> list[str | Strategy]:
    """Return one or several strategies as a list, each once, after each was found.

    Raises:
        UsageError: there is none, or two functions have one name.
        StrategyError: a strategy cannot be found, or is none.
    """
    if isinstance(strategies, str) or callable(strategies) or not isinstance(strategies, Iterable):
        strategies = [strategies]
    by_label: dict[str, str | Strategy] = {}
    for strategy in strategies:
        name = choose_strategy(strategy).name
        if by_label.setdefault(label_of(strategy), strategy) != strategy:
            raise UsageError(
                f"two strategies are called {label_of(strategy)}, so that their rows could not be told apart; give "
                "each function a __qualname__ of its own",
                strategy=name,
            )
    if not by_label:
        raise UsageError("a sweep needs at least one strategy, got none")
    return list(by_label.values())


@typed_methods
@dataclass(eq=False, repr=False)
class Sweep:
    """The rows of many configurations, which are simulated when they are asked for.

    A row holds the keys of `Run.summary` (None where there is no figure), a key for every parameter that was given, and
    `status`: "ok", "oom" (more than the device's memory) or "failed"; `out_of_memory` and `error` say why. An option
    that the strategy does not have is None.

    Args: as of `sweep`, whose strategies, grid and names were checked.

    Attributes:
        num_simulated: rows that were simulated so far; the others were in the results file.
    """

    strategies: Sequence[str | Strategy]
    grid: Grid
    parameters: Mapping[str, Any]
    _: KW_ONLY
    executor: Workers
    jobs: int | None
    results: Path | None
    progress: Callable[[int, int | None], None] | None
    time_limit_s: float | None = None

    def __post_init__(self) -> None:
        known = {} if self.results is None else read_results(self.results)
        self._known = {key: row for key, row in known.items() if not _may_do_better(row, self.time_limit_s)}
        self._order: dict[str, Configuration] = {}
        self._places: dict[str, int] = {}  # by key: where the grid has it first
        self._shared = SharedOptions(self.strategies)
        self._without: dict[str, list[str]] = {}  # by key: options that the strategy does not have
        for strategy in self.strategies:  # an iterator's names are found as they come
            self._shared.left_out(strategy, [*names_in(self.grid), *self.parameters])
        self.num_simulated = 0

    @cached_property
    def total(self) -> int | None:
        """Number of configurations, or None where the grid is an iterator.

        Points that differ only in options that a strategy does not have count once for it.
        """
        names = names_in(self.grid)
        count = 0
        for strategy in self.strategies:
            without = self._shared.left_out(strategy, names)
            own = num_points(self.grid, without)
            if own is None:
                return None
            count += own
        return count

    @property
    def notes(self) -> list[str]:
        """What there is to say of the rows, a sentence each: which strategies run without which options."""
        return self._shared.notes()

    def rows(self) -> list[Row]:
        """Return all rows in the order of the grid, after simulating those that are missing."""
        for _ in self:
            pass
        return [self._row(key) for key in self._keys_in_order()]

    def _keys_in_order(self) -> list[str]:
        """Return the keys of all configurations in the order of the grid."""
        return sorted(self._order, key=self._places.__getitem__)

    def write_csv(self, path: StrPath) -> Path:
        """Write all rows as a table, and return its path.

        Raises:
            UsageError: the file cannot be written, which is found out before anything is simulated.
        """
        table = Path(path)
        require_writable(table)
        rows = [flat(row) for row in self.rows()]
        names = dict.fromkeys(name for row in rows for name in row)
        with (
            replacing(table) as temporary,
            temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
        ):
            writer = csv.DictWriter(file, list(names), restval="")
            writer.writeheader()
            writer.writerows({name: spreadsheet_cell(value) for name, value in row.items()} for row in rows)
        return table

    def write_html(self, path: StrPath, pictures: int = 10) -> Path:
        """Write all rows as one page that opens without internet, and return its path.

        It has a table to sort, a scatter plot and parallel coordinates; a click shows a row's figures and its picture.

        Args:
            path: where to.
            pictures: how many of the fastest runs are simulated again to be drawn; those of more than 400,000
                events are left out, and of all others the page shows the command that draws them.
        """
        from minitrain.search.page import MOST_EVENTS, write_sweep_page  # noqa: PLC0415  (only when somebody looks)

        rows = self.rows()
        best = {id(row) for row in succeeded(rows)[:pictures] if row["num_events"] <= MOST_EVENTS}
        configurations = [self._order[key] for key in self._keys_in_order()]
        drawn = {place: _picture(configurations[place]) for place, row in enumerate(rows) if id(row) in best}
        given = [{**parameters, **choose_strategy(strategy).options} for strategy, parameters in configurations]
        return write_sweep_page(Path(path), rows, given, drawn, self.notes)

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame, after simulating those that are missing.

        Raises:
            UsageError: pandas is not installed, which is no dependency.
        """
        return data_frame(self.rows())

    @property
    def _known_rows(self) -> list[Row]:
        """The rows of this sweep that are known by now."""
        return [self._row(key) for key in self._order if key in self._known]

    def _row(self, key: str) -> Row:
        """Return the row of a configuration that is done, with None for options that its strategy does not have."""
        row = self._known[key]
        return {**dict.fromkeys(self._without[key]), **row} if key in self._without else row

    def __repr__(self) -> str:
        labels = ", ".join(map(label_of, self.strategies))
        names = ", ".join(names_in(self.grid)) or "an iterator's parameters"
        total = "?" if self.total is None else self.total
        return f"<Sweep of {labels} over {names}: {len(self._known_rows)} of {total} configurations are done>"

    def _repr_html_(self) -> str:
        """Show the fastest rows so far in a notebook; nothing is simulated."""
        from minitrain.search.page import html_of_rows  # noqa: PLC0415

        said = "<br>".join(map(escape, [repr(self), *self.notes]))
        return f"<p>{said}</p>{html_of_rows(succeeded(self._known_rows)[:10], names_in(self.grid))}"

    def __iter__(self) -> Iterator[Row]:
        """Yield each row as soon as it is known."""
        for num_done, row in enumerate(self._rows(), 1):
            if self.progress is not None:
                self.progress(num_done, self.total)
            yield row

    def _rows(self) -> Iterator[Row]:
        """Yield rows of the results file and new rows, as they come."""
        known_rows: deque[Row] = deque()
        with writing(self.results) as write:
            missing = self._missing(known_rows)
            for key, row in run_batches(missing, self.executor, self.jobs, self.strategies, self.time_limit_s):
                self._known[key] = row
                write(key, row)
                self.num_simulated += 1
                yield self._row(key)
                while known_rows:
                    yield known_rows.popleft()
        yield from known_rows

    def _missing(self, known_rows: deque[Row]) -> Iterator[tuple[str, Configuration]]:
        """Yield every configuration whose row is not known, once; append the known rows of the others to a queue."""
        seen: set[str] = set()
        for place, strategy, parameters in points_by_structure(self.grid, self.strategies):
            given = {**self.parameters, **parameters}
            without = self._shared.left_out(strategy, given)
            configuration = strategy, {name: value for name, value in given.items() if name not in without}
            key = key_of(configuration)
            self._places[key] = min(place, self._places.get(key, place))
            if key in seen:
                continue
            seen.add(key)
            self._order[key] = configuration
            if without:
                self._without[key] = without
            if key in self._known:
                known_rows.append(self._row(key))
            else:
                yield key, configuration


def _may_do_better(row: Row, time_limit_s: float | None) -> bool:
    """Return whether a row ended at a shorter time limit than there is now, or where the system gave no memory."""
    before = row.get("time_limit_s")
    had_less_time = before is not None and (time_limit_s is None or time_limit_s > before)
    return had_less_time or str(row.get("error")).endswith(NO_MEMORY)


def _picture(configuration: Configuration) -> Mapping[str, Any]:
    """Simulate a configuration with its events, and return its timeline."""
    from minitrain.view.run_folder import picture_of  # noqa: PLC0415  (numpy only when somebody draws)

    strategy, parameters = configuration
    return picture_of(simulate(strategy, **{**parameters, "log": "full"}))
