"""Simulating one training step of a strategy: `simulate`, `simulate_async` for async callers, `compare` for several.

All ranks run in one asyncio event loop, each on a logical clock that the hardware's prices move. The columns that are
shown of a `Comparison` are in `minitrain.view.tables` (terminal) and `minitrain.view.run_folder` (page).

**Kinds of run** (`Variant`): which class of model and of run, and what is done beside them. `strict` and `observers`
work together with an executor. What excludes each other is in `minitrain.run.parameters`. What rooms above this one do
is imported when a run needs it (`above`).

| parameter | what differs | where |
|---|---|---|
| (none) | every rank a `Model`, every event kept in a `Run` | `engine`, `result` |
| `log="summary"` | logs add their events to totals, and the run holds totals | `summary_log` |
| likewise, of alike steps | a loop is simulated until its steps repeat | `summary_log` |
| `strict` | every tensor is followed, by an observer | `strict` |
| `observers` | a caller's own are told of all that ranks do | `engine.observers` |
| `execution` | a caller's own decides what operations do beside | `engine.observers` |
| `numerics` | tensors carry arrays, by an executor | `proof` |
| `memory_by_kind` | stores keep a journal of their changes | `engine.stores` |
| `contention` | the finished run is timed again | `contention` |
| `contention="exact"` | transfers share links when it is timed again | `whatif` |
| `faults` | devices die, and the step is simulated until it comes through | `whatif.disturbed_run` |
| `fold` | one rank is simulated for each class of ranks that do the same | `folding` |

**Signatures** of functions that take a strategy and the parameters of a run. Type checkers read them from the
constructor of a dataclass, `StepKeywords`, so that no parameter is written twice. `help` and completion read
`__signature__`, which has every parameter of `RunParameters`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from minitrain.engine.dist import Dist
from minitrain.engine.model import Model, watched
from minitrain.engine.observers import Executor, Observer, together
from minitrain.engine.semantics import require_handed_on
from minitrain.errors import HardwareConfigError, UsageError, reason_of, require_count, typed, typed_methods
from minitrain.files import StrPath
from minitrain.machine.predictor import network_of
from minitrain.operations import TIME, UNITS_PER_ELEMENT
from minitrain.run.above import above
from minitrain.run.contention import EXACT, slow_down
from minitrain.run.device_memory import MemoryOutsideStores, kinds_of_journals, watching_memory
from minitrain.run.event_loops import LoopFactory, rare_collections, run_to_end, sharing_sizes, unseen
from minitrain.run.facts import Steps, described, name_of_workload, period_of, trained_model_of
from minitrain.run.figures import data_frame, summary_of
from minitrain.run.parameters import (
    DEFAULTS,
    EXCLUSIONS,
    OF_TRANSFORMER,
    SIZES,
    RunParameters,
    split_keywords,
    with_own_options,
)
from minitrain.run.rank_tasks import PreparedRun, Watch, prepare, require_nothing_left, run_ranks
from minitrain.run.result import Run
from minitrain.run.run_file import plain
from minitrain.run.strategy_loading import ChosenStrategy, Strategy, choose_strategy, is_shipped

if TYPE_CHECKING:
    from rich.table import Table

    from minitrain.run.parameters import Hardware


LEAST_RANKS = 8
"""The fewest ranks of a run for which `fold="auto"` attempts to fold; of a class, see `minitrain.run.folding.driver`.

A failed attempt costs as much as some thirty events, which would make a smaller run a tenth slower.
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to simulate all ranks.

    Args:
        make_model: makes the model of a rank; called as `Model` is.
        run_kind: class of the run.
        around: what is done around the ranks' work, with the models.
        fields: what fields of the run it determines, from the models at their end.
    """

    make_model: Callable[..., Model]
    run_kind: type[Run]
    around: Callable[[Sequence[Model]], AbstractContextManager[None]]
    fields: Callable[[Sequence[Any]], dict[str, Any]]


def choose_variant(parameters: RunParameters, contention: bool | str = False) -> Variant:
    """Return how a run with these parameters is simulated, all of its ranks.

    Args:
        parameters: those of the run.
        contention: what times it again.
    """
    if parameters.log == "summary":
        return _summary()
    observers, executor = _observers(parameters), _executor(parameters)
    makes: dict[str, Any] = {"memory_by_kind": parameters.memory_by_kind}
    kind: Callable[..., Model] = Model
    if observers or executor is not None:
        kind = watched(Model, executor)
        makes["observer"] = together(observers) if observers else None
    return Variant(
        functools.partial(kind, **makes),
        Run,
        functools.partial(_around_hooked, parameters, [*observers, *([] if executor is None else [executor])]),
        functools.partial(_fields_of_full, parameters, contention),
    )


async def simulate_with_folding(prepared: PreparedRun) -> Run | None:
    """Simulate one rank of each class of ranks that do the same, where that is asked for or surely gives the same run.

    Returns:
        The run; None where every rank is to be simulated.
    """
    is_asked_for = prepared.parameters.fold is True
    if not is_asked_for and not _may_fold(prepared):
        return None
    from minitrain.run.folding import driver, microbatches  # noqa: PLC0415  (only where it is asked for, as all below)

    simulate = driver.simulate_folded if is_asked_for else driver.simulate_where_it_folds
    return await microbatches.simulate_few(prepared, driver.simulate_where_it_folds) or await simulate(prepared)


def _may_fold(prepared: PreparedRun) -> bool:
    """Return whether a run may be folded without being asked: that of a shipped strategy with enough ranks.

    What another strategy does may depend on the rank in ways that folding does not see: by a global counter, a random
    number, or `isinstance(model.rank, int)`.
    """
    parameters = prepared.parameters
    if (
        prepared.has_stragglers
        or parameters.fold is False
        or parameters.world_size < LEAST_RANKS
        or parameters.log != "full"
        or parameters.contention == EXACT
    ):
        return False
    return is_shipped(prepared.function) and not EXCLUSIONS["fold"].found({**parameters.by_name(), "fold": True})


async def simulate_summary(prepared: PreparedRun, simulate: Callable[[PreparedRun], Awaitable[Run]]) -> Run | None:
    """Simulate a long loop of alike steps by a few of them; None of what else keeps no events."""
    if prepared.variant is not None:
        return None
    from minitrain.run.summary_log import simulate_alike  # noqa: PLC0415  (only where it is asked for)

    return await simulate_alike(prepared, simulate)


def _summary() -> Variant:
    """Return the way to keep totals instead of events."""
    from minitrain.run.summary_log import SummaryRun, keeping_totals  # noqa: PLC0415  (only where it is asked for)

    return Variant(Model, SummaryRun, keeping_totals, lambda _: {})


def _observers(parameters: RunParameters) -> Sequence[Observer]:
    """Return what watches the ranks."""
    if not parameters.strict:
        return parameters.observers
    from minitrain.run.strict.observer import StrictAccounting  # noqa: PLC0415

    return [StrictAccounting(), *parameters.observers]


def _executor(parameters: RunParameters) -> Executor | None:
    """Return what operations do beside what a model does; None for nothing."""
    if parameters.numerics is None:
        return parameters.execution
    executor: Executor = above("numerics").ArraysExecutor(parameters.numerics)
    return executor


@contextlib.contextmanager
def _around_hooked(
    parameters: RunParameters, hooks: Sequence[Observer | Executor], models: Sequence[Any]
) -> Iterator[None]:
    """Do what goes with keeping every event, and tell observers and executor when the run has ended."""
    with sharing_sizes(models), unseen() if parameters.strict else contextlib.nullcontext():
        yield
    for hook in hooks:
        hook.finish(models)


def _fields_of_full(parameters: RunParameters, contention: bool | str, models: Sequence[Any]) -> dict[str, Any]:
    """Return what the parameters add to a run whose events are kept."""
    fields: dict[str, Any] = {}
    if contention == EXACT:
        fields["logs"], fields["links"] = _on_shared_links(parameters, models)
    elif contention:
        slow_down(models)
    if parameters.memory_by_kind:
        fields["memory_journals"] = journals = [model.memory_journal for model in models]
        fields["memory_by_kind"] = kinds_of_journals(journals, models[0].runtime_predictor.workload.bytes_per_element)
    if parameters.strict:
        fields["held_outside"] = _outside_stores(models)
    return fields


def _on_shared_links(parameters: RunParameters, models: Sequence[Any]) -> tuple[Any, Any]:
    """Return the logs of a run whose transfers share the links of its hardware, and what these carried."""
    replayed_logs = above("shared links").replayed_logs
    logs = [model._log for model in models]
    hardware: Any = parameters.hardware
    if hasattr(hardware, "profile"):
        on_platform: tuple[Any, Any] = replayed_logs(logs, hardware, None)
        return on_platform
    system = getattr(models[0]._runtime_predictor, "system", None)
    if system is None:
        raise UsageError(
            'contention="exact" needs the links of a hardware config, and this run is priced by a predictor without '
            "one; name a config, or use contention=True"
        )
    on_links: tuple[Any, Any] = replayed_logs(logs, system, parameters.placement)
    return on_links


def _outside_stores(models: Sequence[Any]) -> MemoryOutsideStores:
    """Return what was held outside the stores, on the rank that held the most."""
    model = max(models, key=lambda model: model._meter.most_outside)
    lines = model._meter.held_outside()
    rows, place = model._log._rows, model._meter.at_row + TIME
    time = 0.0 if not lines else rows[place] if place < len(rows) else model._time
    waiting = max([model._meter.most_waiting for model in models]) / UNITS_PER_ELEMENT
    return MemoryOutsideStores(model._rank, time, sum(lines.values()), lines, waiting)


F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
_STRATEGYS: Any = None  # the strategy has the default


@dataclass(frozen=True, kw_only=True)
class StepKeywords(RunParameters):
    """The keywords of a function that simulates: parameters of the run, and options of shipped strategies.

    Nothing is made of this class: type checkers read it. Another strategy's options, where none of the shipped ones has
    them, are given as `options={"depth": 2}`, in its name ("mine.py:mine:depth=2"), or by `functools.partial`.

    Args:
        options: options of the strategy by name.
        watch: as for `simulate`.
    """

    options: Mapping[str, Any] | None = None
    watch: Watch | None = None
    balance: bool = _STRATEGYS
    balanced: bool = _STRATEGYS
    batch_messages: bool = _STRATEGYS
    bucket_size: int = _STRATEGYS
    capacity_factor: float | None = _STRATEGYS
    cp: int | None = _STRATEGYS
    cp_comm_type: str = _STRATEGYS
    cut: str = _STRATEGYS
    ep: int = _STRATEGYS
    fragments: int = _STRATEGYS
    imbalance: float | str | Sequence[float] = _STRATEGYS
    layers_per_stage: Sequence[int] | None = _STRATEGYS
    local_steps: int = _STRATEGYS
    num_steps: int = _STRATEGYS
    compression: str = _STRATEGYS
    lookahead: int = _STRATEGYS
    microbatch_size: int | None = _STRATEGYS
    mixing: float = _STRATEGYS
    no_sync: bool = _STRATEGYS
    num_chunks: int = _STRATEGYS
    offload: str | None = _STRATEGYS
    offloaded_layers: int | None = _STRATEGYS
    optimizer_offload_fraction: float = _STRATEGYS
    overlap: int = _STRATEGYS
    overlap_cpu_optimizer_d2h_h2d: bool = _STRATEGYS
    overlap_experts: bool = _STRATEGYS
    overlap_messages: bool = _STRATEGYS
    overlap_parts: bool = _STRATEGYS
    overlap_replicas: bool = _STRATEGYS
    pass_costs: Sequence[float] | None = _STRATEGYS
    pp: int | None = _STRATEGYS
    recompute: str = _STRATEGYS
    replicas: int | None = _STRATEGYS
    reshard_after_forward: bool = _STRATEGYS
    scatter_gather: bool = _STRATEGYS
    schedule: str = _STRATEGYS
    sequence_parallel: bool = _STRATEGYS
    shard_size: int | None = _STRATEGYS
    sum_tied: bool = _STRATEGYS
    tp: int = _STRATEGYS
    whole: int = _STRATEGYS
    zero: int = _STRATEGYS


@dataclass(frozen=True, kw_only=True)
class SimulateKeywords(StepKeywords):
    """Those of `simulate`.

    Args:
        loop_factory: as there.
    """

    loop_factory: LoopFactory | None = None


@dataclass(frozen=True, kw_only=True)
class CompareKeywords(StepKeywords):
    """Those of `compare`.

    Args:
        progress: as there.
    """

    progress: Callable[[str], None] | None = None


@dataclass(frozen=True, kw_only=True)
class PriceKeywords(StepKeywords):
    """Those of `price`, which alone takes several machines.

    Args:
        vary: as there.
        grid: as there.
    """

    vary: Mapping[str, Sequence[Any]] | None = None
    grid: Mapping[str, Sequence[Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class ProveKeywords(StepKeywords):
    """Those of `prove`.

    Args:
        backend: as there.
    """

    backend: str | Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class GoodputKeywords(StepKeywords):
    """Those of `goodput`; all are described there."""

    days: float = 30.0
    checkpoint_interval_s: float | None = None
    checkpoint_bytes: float | None = None
    asynchronous: bool = False
    saving: Mapping[str, Any] | None = None
    mtbf_hours: float | Mapping[str, float] | None = None
    samples: int = 200
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class SweepKeywords(StepKeywords):
    """Those of `sweep`; all are described there."""

    jobs: int | None = None
    results: StrPath | None = None
    progress: Callable[[int, int | None], None] | None = None
    time_limit_s: float | None = None


class OfStrategy(Protocol[P, R_co]):
    """A function of a strategy and keywords."""

    def __call__(self, strategy: str | Strategy, *args: P.args, **keywords: P.kwargs) -> R_co:
        """Simulate a strategy with parameters of the run and options of its own."""


class OfStrategies(Protocol[P, R_co]):
    """A function of several strategies and keywords."""

    def __call__(
        self, strategies: str | Iterable[str | Strategy] | None = None, *args: P.args, **keywords: P.kwargs
    ) -> R_co:
        """Simulate strategies with the same parameters."""


class OverGrid(Protocol[P, R_co]):
    """A function of strategies, a grid of parameters, somewhere to run, and keywords."""

    def __call__(
        self,
        strategies: str | Strategy | Iterable[str | Strategy],
        grid: Any,
        executor: Any = None,
        *args: P.args,
        **keywords: P.kwargs,
    ) -> R_co:
        """Simulate every strategy with every configuration."""


class OnMachines(Protocol[P, R_co]):
    """A function of a strategy, several machines and keywords."""

    def __call__(
        self,
        strategy: str | Strategy,
        hardware: Hardware | Sequence[Hardware] | None = None,
        *args: P.args,
        **keywords: P.kwargs,
    ) -> R_co:
        """Simulate a strategy on each of several machines."""


def of_strategy(_keywords: Callable[P, RunParameters]) -> Callable[[Callable[..., R_co]], OfStrategy[P, R_co]]:
    """Let a function of a strategy and `**parameters` have the keywords of a class in its signature."""
    return shows_run_parameters


def of_strategies(_keywords: Callable[P, RunParameters]) -> Callable[[Callable[..., R_co]], OfStrategies[P, R_co]]:
    """Do the same for a function of several strategies."""
    return shows_run_parameters


def over_grid(_keywords: Callable[P, RunParameters]) -> Callable[[Callable[..., R_co]], OverGrid[P, R_co]]:
    """Do the same for a function of strategies and a grid."""
    return shows_run_parameters


def on_machines(_keywords: Callable[P, RunParameters]) -> Callable[[Callable[..., R_co]], OnMachines[P, R_co]]:
    """Do the same for a function of a strategy on several machines."""
    return shows_run_parameters


def shows_run_parameters(function: F) -> F:
    """Let a function of `**parameters` show each parameter of a run in its signature (for help and completion)."""
    signature = inspect.signature(function)
    own = [known for known in signature.parameters.values() if known.kind is not inspect.Parameter.VAR_KEYWORD]
    taken = {known.name for known in own}
    listed = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in fields(RunParameters)
        if each.name not in taken
    ]
    options = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD, annotation="Any")
    function.__signature__ = signature.replace(parameters=[*own, *listed, options])  # type: ignore[attr-defined]
    return function


@of_strategy(SimulateKeywords)
@typed
def simulate(
    strategy: str | Strategy, *, loop_factory: LoopFactory | None = None, watch: Watch | None = None, **parameters: Any
) -> Run:
    """Simulate one training step of a strategy.

    Inside a running event loop (a notebook) the ranks get a loop of their own, in a thread.

    Args:
        strategy: a coroutine function of one rank's `Model`, a shipped name, or "path.py:function"; a name may have
            options ("pp_dp:pp=4").
        loop_factory: makes the event loop, `uvloop.new_event_loop` for example; the log does not depend on it.
        watch: called when the ranks begin, with a `minitrain.run.rank_tasks.RunProgress` that another thread may ask
            how far they are.
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
@typed
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
        disturbed: Run = await above("faults").simulate_with_faults(prepared, _simulate_every_rank)
        return disturbed
    if prepared.parameters.log == "summary":
        return await simulate_summary(prepared, simulate_prepared) or await _simulate_every_rank(prepared)
    return await simulate_with_folding(prepared) or await _simulate_every_rank(prepared)


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
    variant: Variant = prepared.variant or choose_variant(parameters, prepared.contention)
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


def _models(prepared: PreparedRun, variant: Variant, dist: Dist) -> list[Model]:
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


@typed_methods
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

    def write_html(self, path: StrPath) -> Path:
        """Write table and figure as one page that opens without internet, and return its path."""
        page: Path = above("words").write_comparison_page(self, path)
        return page


@of_strategies(CompareKeywords)
@typed
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
        UsageError: there is none, or a parameter is outside its rule.
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
    if not found:
        raise UsageError("compare needs at least one strategy, got none")
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
