"""Simulating one training step of a strategy: `simulate`, and `simulate_async` for async callers.

All ranks run in one asyncio event loop, each on a logical clock that the hardware's prices move. Which class of model
and of run is taken is chosen in `minitrain.run.variants`.

Several strategies simulated with the same parameters: `compare` -> `Comparison`.

The columns that are shown of it are in `minitrain.view.tables` (terminal) and `minitrain.view.run_folder` (page).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from minitrain.engine.final_weights import require_handed_on
from minitrain.engine.model import Model
from minitrain.engine.transport.dist import Dist
from minitrain.errors import HardwareConfigError, UsageError, reason_of, require_count
from minitrain.machine.predictor import network_of
from minitrain.run import variants
from minitrain.run.above import above
from minitrain.run.device_memory import watching_memory
from minitrain.run.event_loops import LoopFactory, rare_collections, run_to_end
from minitrain.run.figures import data_frame, summary_of
from minitrain.run.parameters import DEFAULTS, OF_TRANSFORMER, SIZES, split_keywords, with_own_options
from minitrain.run.progress import Watch
from minitrain.run.rank_tasks import PreparedRun, prepare, require_nothing_left, run_ranks
from minitrain.run.result import Run
from minitrain.run.saved_runs import plain
from minitrain.run.signatures import CompareKeywords, SimulateKeywords, StepKeywords, of_strategies, of_strategy
from minitrain.run.steps import Steps, period_of
from minitrain.run.strategy_loading import ChosenStrategy, Strategy, choose_strategy
from minitrain.run.trained_model import described, name_of_workload, trained_model_of

if TYPE_CHECKING:
    from rich.table import Table


@of_strategy(SimulateKeywords)
def simulate(
    strategy: str | Strategy,
    *,
    loop_factory: LoopFactory | None = None,
    watch: Watch | None = None,
    **parameters: Any,
) -> Run:
    """Simulate one training step of a strategy.

    Inside a running event loop (a notebook) the ranks get a loop of their own, in a thread.

    Args:
        strategy: a coroutine function of one rank's `Model`, a shipped name, or "path.py:function"; a name may have
            options ("pp_dp:pp=4").
        loop_factory: makes the event loop, `uvloop.new_event_loop` for example; the log does not depend on it.
        watch: called when the ranks begin, with a `minitrain.run.progress.RunProgress` that another thread may ask how
            far they are.
        parameters: those of `minitrain.run.parameters.RunParameters`, and the strategy's own options, also as
            `options={"depth": 2}`, which type checkers let pass whatever the strategy is.

    Returns:
        The run.

    Raises:
        UsageError: a parameter is outside its rule.
        MinitrainError: of the kind that says what went wrong in the strategy; its own exceptions pass unchanged.
    """
    return run_to_end(lambda: simulate_async(strategy, watch=watch, **parameters), loop_factory)


@of_strategy(StepKeywords)
async def simulate_async(strategy: str | Strategy, *, watch: Watch | None = None, **parameters: Any) -> Run:
    """Simulate one training step of a strategy in the running event loop.

    Args:
        strategy: a coroutine function of one rank's `Model`, a shipped name, or "path.py:function"; a name may have
            options ("pp_dp:pp=4").
        watch: called when the ranks begin, with a `RunProgress`.
        parameters: those of `minitrain.run.parameters.RunParameters`, and the strategy's own options, also as
            `options={"depth": 2}`, which type checkers let pass whatever the strategy is.

    Returns:
        The run.

    Raises:
        UsageError: a parameter is outside its rule.
        HardwareConfigError: the hardware config cannot be found or read, or is invalid.
        StrategyError: the strategy cannot be called so, or leaves something undone.
        LawError: the strategy breaks a law of training.
        OutOfMemoryError: with `strict_memory`, a rank held too much.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "simulate_async runs in the event loop of asyncio, and none runs here (Trio has a loop of its own); call "
            "simulate, in a thread where others must go on"
        ) from None
    return await simulate_prepared(prepare(strategy, parameters, watch))


async def simulate_prepared(prepared: PreparedRun) -> Run:
    """Simulate a run that is ready, all of its ranks or folded ones; raises what `simulate_async` does."""
    prepared = replace(prepared, simulate=simulate_prepared)
    if prepared.parameters.steps > 1 and prepared.entry_clocks is None:
        return await _simulate_steps(prepared)
    if prepared.parameters.faults:
        return await variants.simulate_with_faults(prepared, _simulate_every_rank)
    if prepared.parameters.log == "summary":
        return await variants.simulate_summary(prepared, simulate_prepared) or await _simulate_every_rank(prepared)
    return await variants.simulate_with_folding(prepared, lambda: _simulate_every_rank(prepared))


async def _simulate_steps(prepared: PreparedRun) -> Run:
    """Simulate steps until they repeat, and return the last one, which knows of all.

    Raises:
        LawError: a rank does not hand in what it begins the next step with.
    """
    count, world_size = prepared.parameters.steps, prepared.parameters.world_size
    clocks: Sequence[float] = [0.0] * world_size
    begin = 0.0
    ends: list[float] = []
    runs: list[Run] = []
    seen: list[Sequence[float]] = []
    period = None
    for step in range(count):
        run = await simulate_prepared(replace(prepared, entry_clocks=clocks, is_later=step > 0))
        runs = [*runs[:1], run]
        left = run.clocks
        ends.append(begin + max(left))
        earliest = min(left)
        begin, clocks = begin + earliest, [clock - earliest for clock in left]
        seen.append(clocks)
        period = period_of(seen, begin)
        if period is not None:
            break
    return replace(runs[-1], steps=Steps(count, runs[0].load_time, tuple(ends), period, runs[0]))


async def _simulate_every_rank(prepared: PreparedRun) -> Run:
    """Simulate all ranks and return their run."""
    parameters = prepared.parameters
    variant: variants.Variant = prepared.variant or variants.choose_variant(parameters)
    dist = prepared.transport()
    with rare_collections():  # from the set-up on: a rank is a few dozen objects too
        models = _models(prepared, variant, dist)
        prepared.give_shares(models)
        for model in models:
            prepared.enter(model)
        with watching_memory(models, strict=parameters.strict_memory) as excesses, variant.around(models):
            await run_ranks(prepared, models)
            require_nothing_left(dist, models)
            prepared.require_shares_read(models)
        if parameters.check:
            Model.check(models)
        require_handed_on(models)
        fields = variant.fields(models)
    return prepared.result(variant.run_kind, models, excesses, **fields)


def _models(prepared: PreparedRun, variant: variants.Variant, dist: Dist) -> list[Model]:
    """Return the model of each rank."""
    num_layers, global_batch_size = prepared.parameters.num_layers, prepared.parameters.global_batch_size
    return [
        variant.make_model(rank, dist, num_layers, global_batch_size, runtime_predictor=prepared.predictor_of(rank))
        for rank in range(prepared.parameters.world_size)
    ]


DEFAULT_STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "gpipe", "1f1b")


@dataclass(frozen=True)
class FailedRun:
    """A strategy whose simulation failed.

    Args:
        strategy: its name.
        parameters: the keywords that it was simulated with.
        error: why it failed.
    """

    strategy: str
    parameters: Mapping[str, Any]
    error: Exception = field(compare=False)

    def summary(self) -> dict[str, Any]:
        """Return the keys of `Run.summary`, None where there is no figure, and the error."""
        given = {**DEFAULTS, **self.parameters}
        hardware, workload = given["hardware"], _known_workload(given)
        trained = trained_model_of(workload)
        known = {
            "strategy": self.strategy,
            **{name: plain(getattr(workload, name, given[name])) for name in SIZES},
            "hardware": str(getattr(getattr(hardware, "system", hardware), "name", None) or hardware),
            "network": network_of(hardware) or plain(given["network"]),
            "workload": described(name_of_workload(workload)),
            "options": {name: plain(value) for name, value in self.parameters.items() if name not in DEFAULTS},
            **{name: getattr(trained, name, None) for name in ("seq_len", "precision")},
            "model": getattr(trained, "name", None),
            "error": reason_of(self.error),
        }
        return summary_of(SimpleNamespace(trained_model=trained, device_kinds=()), known)


def _known_workload(given: Mapping[str, Any]) -> Any:
    """Return what was to be trained, or None where that cannot be found."""
    try:
        return split_keywords({name: given[name] for name in ("workload", *OF_TRANSFORMER, "hardware")})[0].workload
    except UsageError:  # which is why the run failed
        return None


@dataclass(frozen=True, repr=False)
class Comparison:
    """The runs of several strategies, in the order in which these were given.

    Args:
        runs: run by strategy name; a strategy that failed stays, with its error.
    """

    runs: Mapping[str, Run | FailedRun]

    @property
    def succeeded(self) -> list[Run]:
        """The successful runs, fastest first."""
        runs = [run for run in self.runs.values() if isinstance(run, Run)]
        return sorted(runs, key=lambda run: run.step_time)

    @property
    def failed(self) -> list[FailedRun]:
        """The strategies whose simulation failed."""
        return [run for run in self.runs.values() if isinstance(run, FailedRun)]

    @property
    def winner(self) -> Run | None:
        """The fastest run that stays within the device's memory."""
        return next((run for run in self.succeeded if run.oom is None), None)

    def summary(self) -> list[dict[str, Any]]:
        """Return one summary a strategy, ready for JSON."""
        return [run.summary() for run in self.runs.values()]

    def table(self) -> Table:
        """Return the comparison as a rich table, fastest first; `rich.print` shows it."""
        table: Table = above("tables").comparison_table(self)
        return table

    def to_pandas(self) -> Any:
        """Return the summaries as a pandas DataFrame, a row a strategy.

        Raises:
            UsageError: pandas is not installed, which is no dependency.
        """
        return data_frame(self.summary())

    def __repr__(self) -> str:
        return str(above("tables").table_text(self.table()))

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        words = above("words")
        return f"<p><b>{escape(words.title_of(self))}</b></p>{above('page').html_table(words.table_rows(self), {})}"

    def figure(self) -> Any:
        """Return a Plotly figure: the successful runs, above one another on one time axis."""
        return above("notebook").NotebookFigure(above("words").draw_comparison(self), self._repr_html_)

    def write_html(self, path: str | PathLike[str]) -> Path:
        """Write table and figure as one page that opens without internet, and return its path."""
        page: Path = above("words").write_comparison_page(self, path)
        return page


@of_strategies(CompareKeywords)
def compare(
    strategies: str | Iterable[str | Strategy] | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    watch: Watch | None = None,
    **parameters: Any,
) -> Comparison:
    """Simulate several strategies with the same parameters.

    Args:
        strategies: what `simulate` takes, each (one name may stand alone); the shipped ddp, zero1, zero2, zero3, gpipe
            and 1f1b by default. A name may have options of its own, "pp_dp:pp=4", and is shown with them.
        progress: called with each strategy's name before it is simulated.
        watch: called as that of `simulate`, for each strategy.
        parameters: those of `simulate` (8 ranks, 32 layers and a batch of 64 on an H100 server by default).

    Returns:
        The comparison; a strategy that fails stays in it with its error.

    Raises:
        StrategyError: a strategy cannot be found.
    """
    parameters = with_own_options(parameters)
    for name in SIZES:
        require_count(name, parameters.get(name, 1))
    if parameters.get("workload") is not None:  # found once for all strategies
        found_workload = split_keywords(parameters)[0].workload
        parameters = {**parameters, "workload": found_workload, **dict.fromkeys(OF_TRANSFORMER)}
    if strategies is None or isinstance(strategies, str):
        strategies = DEFAULT_STRATEGIES if strategies is None else (strategies,)
    found = [choose_strategy(strategy) for strategy in strategies]
    runs: dict[str, Run | FailedRun] = {}
    for chosen in found:
        unique = _unused(chosen.label, runs)
        if progress is not None:
            progress(unique)
        runs[unique] = _simulate(unique, chosen, parameters, watch)
    return Comparison(runs)


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    """Return a name that no other run has: "ddp", "ddp (2)" ..."""
    unique, count = name, 1
    while unique in taken:
        count += 1
        unique = f"{name} ({count})"
    return unique


def _simulate(name: str, chosen: ChosenStrategy, parameters: Mapping[str, Any], watch: Watch | None) -> Run | FailedRun:
    """Return a run under a name, or its failure."""
    try:
        return replace(simulate(chosen, watch=watch, **parameters), strategy=name)
    except HardwareConfigError:
        raise  # of no use to any of the strategies
    except Exception as error:  # a user's strategy may raise anything, and the others go on
        return FailedRun(name, {**parameters, **chosen.options}, error)
