"""Running the configurations of a sweep on an executor, in batches.

A batch is as many configurations as one worker simulates in about `_BATCH_S`: one where runs are large, hundreds where
they are small. When the sweep is killed, the batches that are being simulated are lost, and nothing else. The
configurations of a batch share strategies and predictors, each made once (`SharedByBatch`).

Configurations that differ in prices alone share one execution (`minitrain.whatif.joint_execution`). Their rows are
those that a simulation of each gives, to the last float. What cannot be executed so, or fails, is simulated one
configuration after the other instead; each that fails then has an error of its own.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from minitrain.errors import MinitrainError, OutOfMemoryError, UsageError
from minitrain.machine.cluster import names_cluster
from minitrain.machine.predictor import make_predictor
from minitrain.machine.price import PRICING_PARAMETERS, Predictor, Pricing
from minitrain.run.event_loops import run_to_end
from minitrain.run.parameters import AUTO, DEFAULTS, OF_TRANSFORMER, PRICE_ONLY
from minitrain.run.rank_tasks import prepare
from minitrain.run.result import Run
from minitrain.run.run_file import plain
from minitrain.run.simulation import FailedRun, simulate_async
from minitrain.run.strategy_loading import ChosenStrategy, Strategy, choose_strategy, stands_for
from minitrain.search.sweeps.executors import first_done, workers_of
from minitrain.search.sweeps.own_processes import TimeLimitError, WorkerLostError, run_within
from minitrain.tensors.index_sets import grouped

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
    from minitrain.whatif.joint_execution import execute  # noqa: PLC0415
    from minitrain.whatif.price import Configurations  # noqa: PLC0415  (numpy only where it is needed)

    names = [name for name in PRICE_ONLY if any(name in parameters for parameters in configurations)]
    columns = {name: [parameters.get(name, DEFAULTS[name]) for parameters in configurations] for name in names}
    common = {name: value for name, value in configurations[0].items() if name not in names}
    together = Configurations(common, columns)
    prepared = prepare(chosen, together.of(0))
    found: Summaries = [None] * len(configurations)
    if together.reason_to_simulate_each(prepared.parameters) is not None:
        return found
    for group in await execute(prepared, together.machines(prepared.parameters, prepared.stands_for)):
        if group.figures is not None:
            places = group.places.tolist()
            for place, summary in zip(
                places, group.figures.summaries(list(map(together.hardware, places))), strict=True
            ):
                found[place] = summary
    return found


_MACHINE = ("hardware", "world_size", "network")  # what a predictor is made of, unless there is a placement


class SharedByBatch:
    """What the configurations of a batch share: loaded strategies and predictors."""

    def __init__(self) -> None:
        self._strategies: dict[str, ChosenStrategy] = {}
        self._predictors: dict[tuple[Any, ...], Predictor] = {}  # by machine and workload, which live as long

    def strategy(self, strategy: str | Strategy) -> ChosenStrategy:
        """Return a strategy, which is loaded once if it has a name.

        Raises:
            StrategyError: there is no such strategy.
        """
        if not isinstance(strategy, str):
            return choose_strategy(strategy)
        if strategy not in self._strategies:
            self._strategies[strategy] = choose_strategy(strategy)
        return self._strategies[strategy]

    def parameters(self, chosen: ChosenStrategy, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return parameters of `simulate` in which shared objects stand for their descriptions; the run is the same.

        Args:
            chosen: the strategy, whose framework has a part in prices.
            parameters: those of the run.

        Raises:
            MinitrainError: the hardware cannot be found, is invalid, or does not connect so many ranks.
        """
        shared = self._with_workload(parameters)
        machine = self._machine(chosen, parameters)
        if machine is not None:
            workload = shared.get("workload")
            key = *machine, id(workload)
            if key not in self._predictors:
                self._predictors[key] = make_predictor(*machine[:3], workload=workload, pricing=machine[3])
            # The predictor has these already.
            shared |= {name: DEFAULTS[name] for name in PRICING_PARAMETERS if name in parameters}
            shared["hardware"] = self._predictors[key]
        return {**parameters, **shared}

    def structure(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return parameters like `parameters`, but without a shared predictor."""
        return {**parameters, **self._with_workload(parameters)}

    def _with_workload(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a workload that is loaded; nothing where none is given."""
        if parameters.get("workload") is None:
            return {}
        from minitrain.workloads.transformer_workload import find_workload  # noqa: PLC0415  (only where one is given)

        of_transformer = {name: parameters.get(name) for name in OF_TRANSFORMER}
        return {"workload": find_workload(parameters["workload"], **of_transformer), **dict.fromkeys(OF_TRANSFORMER)}

    def _machine(self, chosen: ChosenStrategy, parameters: Mapping[str, Any]) -> tuple[str, int, str, Pricing] | None:
        """Return what the predictor of a run is made from; None where it cannot be shared.

        A predictor remembers prices and nothing of a run, so that one serves all runs on a machine.
        """
        hardware, world_size, network = (parameters.get(name, DEFAULTS[name]) for name in _MACHINE)
        if (
            type(hardware) is not str
            or names_cluster(hardware)
            or type(world_size) is not int
            or type(network) is not str
        ):
            return None
        if parameters.get("placement") is not None:
            return None
        given = {name: parameters[name] for name in PRICING_PARAMETERS if name in parameters}
        options = {**parameters, **parameters.get("options", {}), **chosen.options}
        layout = stands_for(chosen.function, options, world_size)
        return hardware, world_size, network, Pricing(**given, stands_for=layout)


Row = dict[str, Any]
R = TypeVar("R")
Workers = Any
"""Where to run: what `minitrain.search.sweeps.executors` takes."""
Configuration = tuple[str | Strategy, Mapping[str, Any]]
Batch = list[tuple[str, Configuration]]  # with their keys

_BATCH_S = 0.05
_MOST_IN_BATCH = 1024


def key_of(configuration: Configuration) -> str:
    """Return a text that tells configurations apart, the same in every process and on every day.

    The network is named even where it is the default one: older results files were written when that was "flat", and
    their rows must not match. `fold="auto"` does not change a row, so that it has the text of False, as in older files.
    """
    strategy, parameters = configuration[0], {"network": DEFAULTS["network"], **configuration[1]}
    if parameters.get("fold") == AUTO:
        parameters["fold"] = False
    return json.dumps([label_of(strategy), {name: plain(value) for name, value in sorted(parameters.items())}])


def label_of(strategy: str | Strategy) -> str:
    """Return what a strategy is called in a results file: its name as it was given, or the place of its function."""
    if isinstance(strategy, str):
        return strategy
    function: Any = strategy
    if hasattr(function, "func"):  # a partial
        arguments = (*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items()))
        return f"{label_of(function.func)}({', '.join(arguments)})"
    where = function if hasattr(function, "__qualname__") else type(function)
    return f"{where.__module__}:{where.__qualname__}"


def run_batches(
    configurations: Iterator[tuple[str, Configuration]],
    executor: Workers = None,
    jobs: int | None = None,
    strategies: Sequence[str | Strategy] = (),
    time_limit_s: float | None = None,
) -> Iterator[tuple[str, Row]]:
    """Simulate configurations, and yield the key and the row of each as it is done.

    Args:
        configurations: with their keys; they are taken as workers become free.
        executor: where to run; by default, processes that end with this generator.
        jobs: how many of these; one a core by default.
        strategies: all that configurations may name, for workers that have not their files.
        time_limit_s: how long a configuration may take, s; None for no limit.

    Raises:
        UsageError: a configuration cannot be sent to another process.
        MinitrainError: a worker of an executor died, no process can be started, or a cluster was lost.
    """
    work = run_batch if time_limit_s is None else partial(run_batch, time_limit_s=time_limit_s)
    with workers_of(executor, jobs, strategies) as (workers, num_at_once):
        in_flight: dict[Future[tuple[float, list[tuple[str, Row]]]], Batch] = {}
        alone: Batch = []  # configurations of batches whose workers were lost: one of them may be the cause
        size = 1
        while True:
            while len(in_flight) < num_at_once and (batch := _next_batch(alone, configurations, size)):
                in_flight[workers.submit(work, batch)] = batch
            if not in_flight:
                return
            for future in first_done(workers, in_flight):
                batch = in_flight.pop(future)
                try:
                    seconds_each, rows = result_of(future)
                except WorkerLostError as error:
                    alone += batch if len(batch) > 1 else []
                    rows = [] if len(batch) > 1 else [(batch[0][0], failed_row(batch[0][1], error))]
                else:
                    size = max(1, min(int(_BATCH_S / seconds_each), 2 * size, _MOST_IN_BATCH))
                yield from rows


def _next_batch(alone: Batch, configurations: Iterator[tuple[str, Configuration]], size: int) -> Batch:
    """Return the next batch: one configuration as long as some must run alone, then `size` of the others."""
    return [alone.pop()] if alone else list(islice(configurations, size))


def result_of(future: Future[R]) -> R:
    """Return the result of a batch, or raise an error that explains why there is none."""
    try:
        return future.result()
    except BrokenExecutor as error:
        raise MinitrainError(
            "a worker of the sweep died (killed, or out of the machine's own memory?); with a results file, the same "
            "sweep goes on where this one ended. A script that sweeps needs `if __name__ == '__main__':`"
        ) from error
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise UsageError(
            f"a configuration cannot be sent to another process: {error}; give strategies by name or path.py:function, "
            "or executor=ThreadPoolExecutor()"
        ) from error


def run_batch(batch: Batch, time_limit_s: float | None = None) -> tuple[float, list[tuple[str, Row]]]:
    """Simulate configurations in one event loop; return the time of one of them, s, and their rows by key.

    Args:
        batch: the configurations.
        time_limit_s: how long one may take, s; then each has an event loop of its own.
    """
    start = time.perf_counter()
    rows = run_to_end(lambda: _rows_of(batch)) if time_limit_s is None else _rows_within(time_limit_s, batch)
    return (time.perf_counter() - start) / len(batch), rows


def _rows_within(time_limit_s: float, batch: Batch) -> list[tuple[str, Row]]:
    """Simulate configurations as `_rows_of` does, with a limit for those together and for each of the others."""
    shared = SharedByBatch()
    configurations = [configuration for _, configuration in batch]
    try:
        together = run_within(time_limit_s, lambda: _rows_together(configurations, shared))
    except TimeLimitError:  # now each is simulated alone, with as much time
        together = [None] * len(batch)
    rows = [row or _row_within(time_limit_s, each, shared) for each, row in zip(configurations, together, strict=True)]
    return [(key, row) for (key, _), row in zip(batch, rows, strict=True)]


def _row_within(time_limit_s: float, configuration: Configuration, shared: SharedByBatch) -> Row:
    """Return the row of a configuration; that of one which exceeds the time limit is a failed one."""
    try:
        return run_within(time_limit_s, lambda: row_of(configuration, shared))
    except TimeLimitError as error:
        return {**failed_row(configuration, error), "time_limit_s": time_limit_s}


async def _rows_of(batch: Batch) -> list[tuple[str, Row]]:
    """Simulate configurations: those that differ in prices alone together, and all others one after the other."""
    shared = SharedByBatch()
    configurations = [configuration for _, configuration in batch]
    together = await _rows_together(configurations, shared)
    rows = [row or await row_of(each, shared) for each, row in zip(configurations, together, strict=True)]
    return [(key, row) for (key, _), row in zip(batch, rows, strict=True)]


async def _rows_together(configurations: Sequence[Configuration], shared: SharedByBatch) -> list[Row | None]:
    """Return the rows of configurations that were executed together with others; None for the rest."""
    structures = (structure_of(label_of(strategy), parameters) for strategy, parameters in configurations)
    alike = grouped((structure, place) for place, structure in enumerate(structures))
    rows: list[Row | None] = [None] * len(configurations)
    for structure, places in alike.items():
        if structure is not None and len(places) >= FEWEST:
            for place, row in zip(places, await _rows_alike([configurations[p] for p in places], shared), strict=True):
                rows[place] = row
    return rows


async def _rows_alike(configurations: Sequence[Configuration], shared: SharedByBatch) -> list[Row | None]:
    """Return the rows of configurations that differ in prices alone; None for those that are to be simulated."""
    strategy = configurations[0][0]
    try:
        chosen = shared.strategy(strategy)
    except MinitrainError:
        return [None] * len(configurations)
    name = strategy if isinstance(strategy, str) else chosen.name
    known = [shared.structure(parameters) for _, parameters in configurations]
    rows = zip(configurations, await summaries_together(chosen, known), strict=True)
    return [summary and _row(parameters, chosen.options, name, summary) for (_, parameters), summary in rows]


async def row_of(configuration: Configuration, shared: SharedByBatch) -> Row:
    """Return the row of one configuration, also where it fails.

    Args:
        configuration: strategy and parameters.
        shared: what the configurations of its batch share.
    """
    strategy, parameters = configuration
    name = strategy if isinstance(strategy, str) else choose_strategy(strategy).name
    own: Mapping[str, Any] = {}
    try:
        chosen = shared.strategy(strategy)
        own = chosen.options
        known = shared.parameters(chosen, parameters)
        run: Run | FailedRun = await simulate_async(chosen, **known)
    except Exception as error:  # a strategy may raise anything, and the others go on
        run = FailedRun(name, parameters, error)
    return _row(parameters, own, name, run.summary(), _status(run))


def failed_row(configuration: Configuration, error: Exception) -> Row:
    """Return the row of a configuration that an error ended."""
    strategy, parameters = configuration
    chosen = choose_strategy(strategy)
    name = strategy if isinstance(strategy, str) else chosen.name
    return _row(parameters, chosen.options, name, FailedRun(name, parameters, error).summary(), "failed")


def _row(
    parameters: Mapping[str, Any], own: Mapping[str, Any], name: str, summary: dict[str, Any], status: str | None = None
) -> Row:
    """Return the row of a configuration.

    Args:
        parameters: those of the configuration.
        own: options in the strategy's name.
        name: the strategy's name.
        summary: that of its run.
        status: how the run ended; whether it ran out of memory if None.
    """
    del summary["options"]  # each option has a key of its own
    given = {parameter: plain(value) for parameter, value in {**parameters, **own}.items()}
    status = status or ("ok" if summary["out_of_memory"] is None else "oom")
    return {**given, **summary, "strategy": name, "status": status}


def flat(row: Mapping[str, Any]) -> Row:
    """Return a row whose values are no mappings: what one holds gets columns of its own.

    >>> flat({"step_time_s": 0.5, "memory_by_kind_bytes": {"weights": 2, "logits": 1}})
    {'step_time_s': 0.5, 'memory_by_kind_bytes.weights': 2, 'memory_by_kind_bytes.logits': 1}
    """
    found: Row = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": inner for key, inner in flat(value).items()}
        else:
            found[name] = value
    return found


def _status(run: Run | FailedRun) -> str:
    """Return how a run ended, in one word."""
    if isinstance(run, FailedRun):
        return "oom" if isinstance(run.error, OutOfMemoryError) else "failed"
    return "ok" if run.oom is None else "oom"


def succeeded(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of runs that fit into memory, fastest first."""
    return sorted((row for row in rows if row["status"] == "ok"), key=lambda row: row["step_time_s"])
