"""The kinds of run that `simulate` can choose: which class of model and of run, and what is done beside them.

| parameter | what differs | where |
|---|---|---|
| (none) | every rank a `Model`, every event kept in a `Run` | `engine`, `result` |
| `log="summary"` | logs add their events to totals, and the run holds totals | `accounting.summary` |
| likewise, of alike steps | a loop is simulated until its steps repeat | `alike_steps` |
| `strict` | every tensor is followed, by an observer | `accounting.strict` |
| `observers` | a caller's own are told of all that ranks do | `engine.observers` |
| `execution` | a caller's own decides what operations do beside | `engine.executors` |
| `numerics` | tensors carry arrays, by an executor | `proof` |
| `memory_by_kind` | stores keep a journal of their changes | `engine.stores` |
| `contention` | the finished run is timed again | `contention` |
| `contention="exact"` | transfers share links when it is timed again | `whatif` |
| `faults` | devices die, and the step is simulated until it comes through | `whatif.faults` |
| `fold` | one rank is simulated for each class of ranks that do the same | `folding` |

`strict` and `observers` work together with an executor. What excludes each other is in `minitrain.run.parameters`. What
rooms above this one do is imported when a run needs it (`above`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from minitrain.engine.model import Model
from minitrain.engine.observers import Executor, Observer, together
from minitrain.engine.watched import watched
from minitrain.errors import UsageError
from minitrain.operations import TIME, UNITS_PER_ELEMENT
from minitrain.run.above import above
from minitrain.run.contention import EXACT, with_contention
from minitrain.run.device_memory import MemoryOutsideStores, kinds_of_journals
from minitrain.run.event_loops import sharing_sizes, unseen
from minitrain.run.parameters import EXCLUSIONS, RunParameters, asks_to_fold
from minitrain.run.rank_tasks import PreparedRun
from minitrain.run.result import Run
from minitrain.run.strategy_loading import is_shipped

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


def choose_variant(parameters: RunParameters) -> Variant:
    """Return how a run with these parameters is simulated, all of its ranks."""
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
        functools.partial(_fields_of_full, parameters),
    )


async def simulate_with_folding(prepared: PreparedRun, simulate_fully: Callable[[], Awaitable[Run]]) -> Run:
    """Simulate one rank of each class of ranks that do the same, where that is asked for or surely gives the same run.

    Args:
        prepared: what is to be simulated.
        simulate_fully: simulates every rank.
    """
    is_asked_for = asks_to_fold(prepared.parameters.fold)
    if not is_asked_for and not _may_fold(prepared):
        return await simulate_fully()
    from minitrain.run.folding import driver, microbatches  # noqa: PLC0415  (only where it is asked for, as all below)

    run = await microbatches.simulate_few(prepared, driver.simulate_where_it_folds)
    if run is not None:
        return run
    if is_asked_for:
        return await driver.simulate_folded(prepared, simulate_fully)
    return await driver.simulate_where_it_folds(prepared) or await simulate_fully()


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
        or parameters.contention
    ):
        return False
    return is_shipped(prepared.function) and not EXCLUSIONS["fold"].found({**parameters.by_name(), "fold": True})


async def simulate_with_faults(prepared: PreparedRun, simulate: Callable[[PreparedRun], Awaitable[Run]]) -> Run:
    """Simulate a step until it comes through; see `minitrain.whatif.faults.disturbed_run.simulate_with_faults`."""
    run: Run = await above("faults").simulate_with_faults(prepared, simulate)
    return run


async def simulate_summary(prepared: PreparedRun, simulate: Callable[[PreparedRun], Awaitable[Run]]) -> Run | None:
    """Simulate a long loop of alike steps by a few of them; None of what else keeps no events."""
    if prepared.variant is not None:
        return None
    from minitrain.run.alike_steps import simulate_alike  # noqa: PLC0415  (only where it is asked for)

    return await simulate_alike(prepared, simulate)


def _summary() -> Variant:
    """Return the way to keep totals instead of events."""
    from minitrain.run.accounting.summary_log import SummaryRun, keeping_totals  # noqa: PLC0415  (only where it is asked for)

    return Variant(Model, SummaryRun, keeping_totals, lambda _: {})


def _observers(parameters: RunParameters) -> Sequence[Observer]:
    """Return what watches the ranks."""
    if not parameters.strict:
        return parameters.observers
    from minitrain.run.accounting.strict.observer import StrictAccounting  # noqa: PLC0415

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


def _fields_of_full(parameters: RunParameters, models: Sequence[Any]) -> dict[str, Any]:
    """Return what the parameters add to a run whose events are kept."""
    fields: dict[str, Any] = {}
    if parameters.contention == EXACT:
        fields["logs"], fields["links"] = _on_shared_links(parameters, models)
    elif parameters.contention:
        fields["logs"] = with_contention([model._log for model in models])
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
