"""Running the configurations of a sweep on an executor, in batches.

A batch is as many configurations as one worker simulates in about `_BATCH_S`: one where runs are large, hundreds where
they are small. When the sweep is killed, the batches that are being simulated are lost, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    wait,
)
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from minitrain.errors import MinitrainError, OutOfMemoryError, UsageError
from minitrain.hardware.chosen_predictor import make_predictor
from minitrain.hardware.clusters.cluster_files import names_cluster
from minitrain.hardware.price import Predictor
from minitrain.hardware.pricing import ROOFLINE, Pricing
from minitrain.run.chosen_strategy import ChosenStrategy, choose_strategy
from minitrain.run.comparison import FailedRun
from minitrain.run.event_loops import run_to_end
from minitrain.run.parameters import DEFAULTS
from minitrain.run.result import Run
from minitrain.run.saved_runs import plain
from minitrain.run.simulation import simulate_async
from minitrain.run.strategy_loading import Strategy
from minitrain.run.worker_processes import worker_pool
from minitrain.sweeps.rows_together import FEWEST, structure_of, summaries_together

if TYPE_CHECKING:
    from minitrain.folding.early_divergence import DivergenceHistory

Row = dict[str, Any]
R = TypeVar("R")
Configuration = tuple[str | Strategy, Mapping[str, Any]]
Batch = list[tuple[str, Configuration]]  # with their keys

_BATCH_S = 0.05
_MOST_IN_BATCH = 1024

_MACHINE = ("hardware", "world_size", "network")  # what a predictor is made of, unless there is a placement
_PRICING = ("fidelity", "platform", "without", "prices")


def key_of(configuration: Configuration) -> str:
    """Return a text that tells configurations apart, the same in every process and on every day.

    It names the network even where that is the default one, which was "flat" once: such rows are not taken for others.
    """
    strategy, parameters = configuration[0], {"network": DEFAULTS["network"], **configuration[1]}
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
    configurations: Iterator[tuple[str, Configuration]], executor: Executor | None, jobs: int | None = None
) -> Iterator[tuple[str, Row]]:
    """Simulate configurations, and yield the key and the row of each as it is done.

    Args:
        configurations: with their keys; they are taken as workers become free.
        executor: where to run; by default, a pool of processes that ends with this generator.
        jobs: processes of that pool; one a core by default.

    Raises:
        UsageError: a configuration cannot be sent to another process.
        MinitrainError: a worker died.
    """
    with own_workers(executor, jobs) as (workers, num_at_once):
        in_flight: set[Future[tuple[float, list[tuple[str, Row]]]]] = set()
        size = 1
        while True:
            while len(in_flight) < num_at_once and (batch := list(islice(configurations, size))):
                in_flight.add(workers.submit(run_batch, batch))
            if not in_flight:
                return
            done, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
            for future in done:
                seconds_each, rows = result_of(future)
                size = max(1, min(int(_BATCH_S / seconds_each), 2 * size, _MOST_IN_BATCH))
                yield from rows


def result_of(future: Future[R]) -> R:
    """Return what a worker has made of a batch, or raise why there is nothing."""
    try:
        return future.result()
    except BrokenExecutor as error:
        raise MinitrainError(
            "a worker of the sweep died (killed, or out of the machine's own memory?); with a results file, the same "
            "sweep goes on where this one ended. A script that sweeps needs `if __name__ == '__main__':`"
        ) from error
    except (AttributeError, TypeError) as error:  # what pickle raises, beside its own
        raise UsageError(
            f"a configuration cannot be sent to another process: {error}; give strategies by name or path.py:function, "
            "or executor=ThreadPoolExecutor()"
        ) from error


@contextlib.contextmanager
def own_workers(executor: Executor | None, jobs: int | None) -> Iterator[tuple[Executor, int]]:
    """Provide an executor, and how many batches to submit to it at once."""
    if executor is not None:
        yield executor, 2 * int(getattr(executor, "_max_workers", None) or os.cpu_count() or 1)
        return
    num_processes = jobs or os.cpu_count() or 1
    own = worker_pool(num_processes)
    try:
        yield own, 2 * num_processes
    finally:
        own.shutdown(cancel_futures=True)


def run_batch(batch: Batch) -> tuple[float, list[tuple[str, Row]]]:
    """Simulate configurations in one event loop; return the time of one of them, s, and their rows by key."""
    start = time.perf_counter()
    rows = run_to_end(lambda: _rows_of(batch))
    return (time.perf_counter() - start) / len(batch), rows


async def _rows_of(batch: Batch) -> list[tuple[str, Row]]:
    """Simulate configurations: those that differ in prices alone together, and all others one after the other."""
    shared = SharedByBatch()
    configurations = [configuration for _, configuration in batch]
    together = await _rows_together(configurations, shared)
    rows = [row or await row_of(each, shared) for each, row in zip(configurations, together, strict=True)]
    return [(key, row) for (key, _), row in zip(batch, rows, strict=True)]


async def _rows_together(configurations: Sequence[Configuration], shared: SharedByBatch) -> list[Row | None]:
    """Return the rows of configurations that were executed together with others; None for the rest."""
    alike: dict[str | None, list[int]] = {}
    for place, (strategy, parameters) in enumerate(configurations):
        alike.setdefault(structure_of(label_of(strategy), parameters), []).append(place)
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


class SharedByBatch:
    """What the configurations of a batch share: loaded strategies, predictors, and what folding has found out."""

    def __init__(self) -> None:
        self._strategies: dict[str, ChosenStrategy] = {}
        self._history: DivergenceHistory | None = None
        self._predictors: dict[tuple[str, int, str, Pricing], Predictor] = {}
        self._trainers: dict[tuple[int, int], Predictor] = {}  # by machine and workload, which live as long

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

    def parameters(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return parameters of `simulate` with what is shared in their place; the run is the same.

        Raises:
            MinitrainError: the hardware cannot be found or believed, or does not connect so many ranks.
        """
        shared: dict[str, Any] = {}
        machine = self._machine(parameters)
        if machine is not None:
            if machine not in self._predictors:
                self._predictors[machine] = make_predictor(*machine[:3], pricing=machine[3])
            shared |= {name: DEFAULTS[name] for name in _PRICING if name in parameters}  # the predictor has it
            shared["hardware"] = self._predictors[machine]
        if parameters.get("workload") is not None:
            shared |= self._trained(parameters, shared.get("hardware"))
        if parameters.get("fold") is True:
            shared["fold"] = self._divergence_history()
        return {**parameters, **shared}

    def structure(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return parameters with what is shared in their place, but for what prices the run."""
        shared: dict[str, Any] = {"fold": self._divergence_history()} if parameters.get("fold") is True else {}
        if parameters.get("workload") is not None:
            shared |= self._trained(parameters, None)
        return {**parameters, **shared}

    def _trained(self, parameters: Mapping[str, Any], machine: Predictor | None) -> dict[str, Any]:
        """Return the workload that is meant, and the predictor that has remembered its prices on a machine."""
        from minitrain.workloads.transformer_workload import find_workload  # noqa: PLC0415  (only where one is given)

        workload = find_workload(parameters["workload"], parameters.get("seq_len"))
        found = {"workload": workload, "seq_len": None}
        if machine is None:
            return found
        key = id(machine), id(workload)
        if key not in self._trainers:
            self._trainers[key] = machine.training(workload)
        return {**found, "hardware": self._trainers[key]}

    def _machine(self, parameters: Mapping[str, Any]) -> tuple[str, int, str, Pricing] | None:
        """Return what the predictor of a run is made of; None where it cannot be shared.

        A predictor keeps nothing of a run, and remembers prices: one serves all runs on a machine.
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
        given = {name: parameters[name] for name in _PRICING if name in parameters}
        return hardware, world_size, network, Pricing(**given) if given else ROOFLINE

    def _divergence_history(self) -> DivergenceHistory:
        """Return what the folded runs of this batch share."""
        if self._history is None:
            from minitrain.folding.early_divergence import DivergenceHistory  # noqa: PLC0415  (only where it is used)

            self._history = DivergenceHistory()
        return self._history


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
        known = shared.parameters(parameters)
        run: Run | FailedRun = await simulate_async(chosen, **known)
    except Exception as error:  # a strategy may raise anything, and the others go on
        run = FailedRun(name, parameters, error)
    return _row(parameters, own, name, run.summary(), _status(run))


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
