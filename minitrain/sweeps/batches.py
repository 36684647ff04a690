"""Handing out configurations to an executor, and what a worker does with them.

Configurations are handed out a few at a time, so many that it takes about `_PORTION_S` to simulate them: one where runs
are large, hundreds where they are small. That is also the most finished work that a kill can lose.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from itertools import islice
from typing import TYPE_CHECKING, Any

from minitrain.errors import MinitrainError, OutOfMemoryError, UsageError
from minitrain.hardware.price import Predictor
from minitrain.run.comparison import FailedRun
from minitrain.run.result import Run, plain
from minitrain.run.simulation import make_predictor, simulate_async
from minitrain.run.strategy_loading import Strategy, load_strategy

if TYPE_CHECKING:
    from minitrain.folding.known_splits import Parted

Row = dict[str, Any]
Configuration = tuple[str | Strategy, Mapping[str, Any]]
Portion = list[tuple[str, Configuration]]

_PORTION_S = 0.05
_MOST_IN_PORTION = 256

_MACHINE = ("hardware", "world_size", "network")  # what a predictor is made of
_DEFAULTS = {name: inspect.signature(simulate_async).parameters[name].default for name in _MACHINE}


def key_of(configuration: Configuration) -> str:
    """Return a text that tells configurations apart, the same in every process and on every day."""
    strategy, parameters = configuration
    return json.dumps([label_of(strategy), {name: plain(value) for name, value in sorted(parameters.items())}])


def label_of(strategy: str | Strategy) -> str:
    """Return what a strategy is called in a results file: its name as it was given, or where a function is from."""
    if isinstance(strategy, str):
        return strategy
    function: Any = strategy
    if hasattr(function, "func"):  # a partial
        arguments = (*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items()))
        return f"{label_of(function.func)}({', '.join(arguments)})"
    where = function if hasattr(function, "__qualname__") else type(function)
    return f"{where.__module__}:{where.__qualname__}"


def hand_out(
    configurations: Iterator[tuple[str, Configuration]], executor: Executor | None
) -> Iterator[tuple[str, Row]]:
    """Yield the key and the row of every configuration as they are done.

    Args:
        configurations: with their keys; taken as workers become free.
        executor: who works; a pool of one process a core, for as long as this lasts, by default.

    Raises:
        UsageError: a configuration cannot be sent to another process.
        MinitrainError: a worker died.
    """
    with _workers(executor) as (workers, num_at_once):
        in_flight: set[Future[tuple[float, list[tuple[str, Row]]]]] = set()
        size = 1
        while True:
            while len(in_flight) < num_at_once and (portion := list(islice(configurations, size))):
                in_flight.add(workers.submit(work_off, portion))
            if not in_flight:
                return
            done, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
            for future in done:
                seconds_each, rows = _result(future)
                size = max(1, min(int(_PORTION_S / seconds_each), 2 * size, _MOST_IN_PORTION))
                yield from rows


def _result(future: Future[tuple[float, list[tuple[str, Row]]]]) -> tuple[float, list[tuple[str, Row]]]:
    """Return what a worker did, or say why it did not."""
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
def _workers(executor: Executor | None) -> Iterator[tuple[Executor, int]]:
    """Provide an executor, and how many portions to hand to it at once."""
    if executor is not None:
        yield executor, 2 * int(getattr(executor, "_max_workers", None) or os.cpu_count() or 1)
        return
    num_cores = os.cpu_count() or 1
    own = ProcessPoolExecutor(num_cores, multiprocessing.get_context("spawn"), _leave_interrupts_to_the_caller)
    try:
        yield own, 2 * num_cores
    finally:
        own.shutdown(cancel_futures=True)


def _leave_interrupts_to_the_caller() -> None:
    """Let Ctrl-C end the sweep, and not each worker with a traceback of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def work_off(portion: Portion) -> tuple[float, list[tuple[str, Row]]]:
    """Simulate configurations; return the time of one of them, s, and their rows by key."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        start = time.perf_counter()
        rows = asyncio.run(_rows_of(portion))
        return (time.perf_counter() - start) / len(portion), rows
    with ThreadPoolExecutor(1) as thread:  # an executor that works where it is called, in a notebook
        return thread.submit(work_off, portion).result()


async def _rows_of(portion: Portion) -> list[tuple[str, Row]]:
    """Simulate configurations in one event loop, which is quicker than one each."""
    found = Found()
    return [(key, await row_of(configuration, found)) for key, configuration in portion]


class Found:
    """What the configurations of a portion share: strategies are loaded once, machines priced once, and so on."""

    def __init__(self) -> None:
        self._strategies: dict[str, Strategy] = {}
        self._parted: Parted | None = None
        self._predictors: dict[tuple[str, int, str], Predictor] = {}

    def strategy(self, strategy: str | Strategy) -> Strategy:
        """Return a strategy's function.

        Raises:
            StrategyError: there is no such strategy.
        """
        if not isinstance(strategy, str):
            return strategy
        if strategy not in self._strategies:
            self._strategies[strategy] = load_strategy(strategy)[1]
        return self._strategies[strategy]

    def remembered(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return parameters of `simulate` with what earlier configurations tell about folding in the place of True."""
        if parameters.get("fold") is not True:
            return parameters
        if self._parted is None:
            from minitrain.folding.known_splits import Parted  # noqa: PLC0415  (only where it is asked for)

            self._parted = Parted()
        return {**parameters, "fold": self._parted}

    def priced(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return parameters of `simulate` with the predictor in the place of its hardware's name.

        Predictors know no run: one serves all of a machine, a network and a number of ranks, and remembers prices.

        Raises:
            MinitrainError: the hardware cannot be found or believed, or does not connect so many ranks.
        """
        hardware, world_size, network = machine = tuple(parameters.get(name, _DEFAULTS[name]) for name in _MACHINE)
        if type(hardware) is not str or type(world_size) is not int or type(network) is not str:
            return parameters
        if parameters.get("placement") is not None:
            return parameters
        if machine not in self._predictors:
            self._predictors[machine] = make_predictor(hardware, world_size, network)
        return {**parameters, "hardware": self._predictors[machine]}


async def row_of(configuration: Configuration, found: Found) -> Row:
    """Return the row of one configuration, whatever becomes of it.

    Args:
        configuration: strategy and parameters.
        found: what was found for those before it.
    """
    strategy, parameters = configuration
    name = strategy if isinstance(strategy, str) else load_strategy(strategy)[0]
    try:
        known = found.remembered(found.priced(parameters))
        run: Run | FailedRun = await simulate_async(found.strategy(strategy), **known)
    except Exception as error:  # a strategy may raise anything, and the others go on
        run = FailedRun(name, parameters, error)
    summary = run.summary()
    del summary["options"]  # each has a key of its own
    given = {parameter: plain(value) for parameter, value in parameters.items()}
    return {**given, **summary, "strategy": name, "status": _status(run)}


def _status(run: Run | FailedRun) -> str:
    """Return in a word how a run ended."""
    if isinstance(run, FailedRun):
        return "oom" if isinstance(run.error, OutOfMemoryError) else "failed"
    return "ok" if run.oom is None else "oom"


def succeeded(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of runs that fit into memory, fastest first."""
    return sorted((row for row in rows if row["status"] == "ok"), key=lambda row: row["step_time_s"])
