"""`tune`: which layout trains a workload best on a machine, out of all that can be written.

What `tune` returns: `Tuning`, the findings of a search with their explanation, their page and their table.

Letting Optuna choose which configurations are tried, where there are too many to try all.

Each axis is a categorical parameter. A configuration is found by going through the axes: of those that are left, the
ones with the suggested value stay, if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrain.errors import UsageError, require_count, require_number, typed, typed_methods
from minitrain.files import StrPath
from minitrain.run.figures import data_frame
from minitrain.run.parameters import DEFAULTS
from minitrain.run.strategy_loading import Strategy, choose_strategy, did_you_mean, options_of, takes_option
from minitrain.search.sweeps.batches import Workers
from minitrain.search.sweeps.executors import require_workers
from minitrain.search.sweeps.own_processes import require_time_limit
from minitrain.search.tuning.findings import Findings, require_words
from minitrain.search.tuning.problem import Candidate, Machine, TuningProblem, axes_of, candidates, default_strategies
from minitrain.search.tuning.search import FITS, Row, Search, Task, require_objective, value_of

if TYPE_CHECKING:
    from minitrain.search.tuning.explanation import TuningExplanation


@typed_methods
class Tuning(Findings):
    """What a search has found; see `Findings` for `best`, `front`, `rows` and what else it holds."""

    def explain(self, runners_up: int = 3, factors: Sequence[float] = (1.25, 1.5, 2.0, 4.0, 8.0)) -> TuningExplanation:
        """Return why the best one wins, what the next ones lose, and what would have to change.

        Args:
            runners_up: how many others are compared with it.
            factors: by what each price is multiplied and divided to see who wins then, ascending.
        """
        from minitrain.search.tuning.explanation import explain  # noqa: PLC0415  (only when somebody asks)

        return explain(self, runners_up, factors)

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame.

        Raises:
            UsageError: pandas is not installed, which is no dependency.
        """
        return data_frame(self.rows)

    def write_html(
        self, path: StrPath, pictures: int = 10, progress: Callable[[int, int], None] = lambda *_: None
    ) -> Path:
        """Write a page that opens without internet: parallel coordinates, the front, and any layout at a click.

        Args:
            path: where to.
            pictures: how many of the best are drawn: each is simulated once more, on workers if the search had some.
            progress: called with how many are drawn, and of how many.
        """
        from minitrain.search.tuning.explanation import write_tuning_page  # noqa: PLC0415  (only when somebody looks)

        return write_tuning_page(Path(path), self, pictures, progress)

    def __repr__(self) -> str:
        if not self.ranked:
            return f"<Tuning: {self.verdicts()}>"
        step = self.best.row["step_time_s"]
        return f"<Tuning: {self.verdicts()}; best {self.best}, {step:.4g} s>"

    def _repr_html_(self) -> str:
        """Show the best rows in a notebook."""
        from minitrain.search.page import html_of_rows  # noqa: PLC0415

        names = list(dict.fromkeys(name for row in self.ranked[:10] for name in self.choice(row).options))
        rows = [{"bubble_fraction": None, "exposed_comm_fraction": None, **row} for row in self.ranked[:10]]
        return f"<p>{escape(self.verdicts())}</p>{html_of_rows(rows, names)}"


_AT_ONCE = 16
_PENALTY = 1e6  # of what does not fit, times how much too large it is


def sample_with_optuna(search: Search, num_samples: int, seed: int = 0) -> None:
    """Try configurations that Optuna's TPE sampler chooses.

    Args:
        search: the search.
        num_samples: how many are tried.
        seed: of the sampler.

    Raises:
        UsageError: Optuna is not installed.
    """
    try:
        optuna: Any = import_module("optuna")
    except ImportError as error:
        raise UsageError(
            'sampler="optuna" needs Optuna, which is not installed; `pip install "minitrain[tune]"` installs it'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    search.run(lambda missing: _sampled(search, study, missing, num_samples))


def _sampled(search: Search, study: Any, missing: Task, num_samples: int) -> Iterator[Task]:
    """Yield the configurations that Optuna suggests, and report their losses to it."""
    axes = _axes(missing)
    left = min(num_samples, len(missing))
    tried: set[int] = set()
    while left > 0:
        asked = [study.ask() for _ in range(min(_AT_ONCE, left))]
        found = [_suggested(trial, axes, missing) for trial in asked]
        yield [one for one in dict(found).items() if one[0] not in search.rows]
        for trial, (place, _) in zip(asked, found, strict=True):
            if place in search.rows:
                study.tell(trial, _loss(search.rows[place], search))
        new = {place for place, _ in found} - tried
        tried |= new
        left -= max(1, len(new))


def _axes(missing: Task) -> dict[str, list[str]]:
    """Return the values of each axis, as text."""
    axes: dict[str, dict[str, None]] = {"strategy": {}}
    for _, candidate in missing:
        axes["strategy"][candidate.label] = None
        for name, value in candidate.options.items():
            axes.setdefault(name, {})[repr(value)] = None
    return {name: list(values) for name, values in axes.items()}


def _suggested(trial: Any, axes: dict[str, list[str]], missing: Task) -> tuple[int, Candidate]:
    """Return the configuration that a trial suggests."""
    left = missing
    for name, values in axes.items():
        if name != "strategy" and not any(name in one.options for _, one in left):
            continue
        value = trial.suggest_categorical(name, values)
        left = [one for one in left if _value(one[1], name) == value] or left
    return left[0]


def _value(candidate: Candidate, name: str) -> str:
    return candidate.label if name == "strategy" else repr(candidate.options.get(name))


def _loss(row: Row, search: Search) -> float:
    """Return how bad a configuration is."""
    if row["status"] == FITS:
        return value_of(row, search.objective)
    return _PENALTY * (row["peak_memory_bytes"] or 2**50)


PRUNING = ("auto", "none", "front", "best")
SAMPLERS = ("exhaustive", "optuna")
HEAD_ROOM = 0.05
"""What stays free by default: an estimate of blocks of the allocator that fit nothing, without expandable segments."""


@typed
def tune(
    workload: Any = None,
    hardware: Any = DEFAULTS["hardware"],
    *,
    world_size: int | Sequence[int] = DEFAULTS["world_size"],
    global_batch_size: int = DEFAULTS["global_batch_size"],
    precision: Any = None,
    objective: str = "step_time",
    strategies: str | Strategy | Iterable[str | Strategy] | None = None,
    space: Mapping[str, Sequence[Any]] | None = None,
    head_room: float = HEAD_ROOM,
    min_microbatches: int = 1,
    prune: str = "auto",
    sampler: str = "exhaustive",
    num_samples: int = 200,
    budget_s: float | None = None,
    executor: Workers = None,
    jobs: int | None = None,
    results: StrPath | None = None,
    progress: Callable[[int, int, Row | None], None] | None = None,
    time_limit_s: float | None = None,
    words: str | None = None,
    **parameters: Any,
) -> Tuning:
    """Search the layouts of a workload, and return the best, those that nothing beats, and every one that was tried.

    Args:
        workload: what is trained, as `simulate` takes it; the specified layers if None.
        hardware: where, as `simulate` takes it; a list searches several machines.
        world_size: number of ranks; a list searches several.
        global_batch_size: samples of a step.
        precision: of a transformer, as `simulate` takes it; a list searches several.
        objective: what is wanted: "step_time", "tokens_per_second", "tokens_per_dollar" or "energy".
        strategies: what is searched, shipped names or one's own; those that suit the workload if None.
        space: values by option, in the place of the usual ones: `{"tp": [8], "recompute": ["none", "full"]}`. On TPUs
            usual layouts have no stages; give values for "pp".
        head_room: the share of the devices' memory that must stay free beside all that is known to be held.
        min_microbatches: the fewest microbatches that a pipeline may have.
        prune: "none" prices everything; "best" leaves out what is worse for sure than the best one known; "front"
            leaves out, of what is simulated one by one, what something known beats in time, memory, money and energy;
            "auto" prices all layouts that are put together from pieces, and is "best" for the others, but for the most
            promising ones of each strategy.
        sampler: "exhaustive", or "optuna" to let Optuna choose `num_samples` of the configurations.
        num_samples: how many configurations Optuna tries.
        budget_s: after how many seconds no more configurations are begun.
        executor: where to run: any `concurrent.futures` executor, a `dask.distributed` client, the module `ray`, or the
            address of a cluster, as `sweep` takes it; processes of its own by default.
        jobs: number of these processes, one a core by default; with 1, the caller does all itself.
        results: a JSON Lines file; what it holds is not priced again, and new rows are added to it.
        progress: called with the number of configurations done and of all, and the best row so far.
        time_limit_s: how long a configuration may be simulated, s; one that takes longer has failed.
        words: a tool that must have words for one configuration at least, which is looked at before the search.
        parameters: further ones of `simulate`, such as `seq_len`, `fidelity` or `network`.

    Returns:
        What was found. Ctrl-C ends the search, and what was found by then is returned.

    Raises:
        UsageError: a parameter is outside its rule, an option is none of any strategy, or `words` has none for any.
        StrategyError: a strategy cannot be found.
        HardwareConfigError: the hardware cannot be found or read, or is invalid.

    >>> found = tune("tiny", world_size=4, global_batch_size=8, space={"tp": [1, 2], "overlap_parts": [False]}, jobs=1)
    >>> found.best.strategy, found.best.status
    ('fsdp', 'fits')
    """
    require_objective(objective)
    require_workers(executor)
    require_count("num_samples", num_samples)
    require_time_limit(time_limit_s)
    if budget_s is not None:
        require_number("budget_s", budget_s, " of seconds", or_zero=True)
    _require_limits(head_room, min_microbatches, prune, sampler)
    problems = [
        TuningProblem(workload, machine, size, global_batch_size, more)
        for machine in _listed(hardware)
        for size in _listed(world_size)
        for more in _by_precision(_checked(parameters), _listed(precision))
    ]
    if not problems:
        raise UsageError("tune needs a machine and a number of ranks, got an empty list; name one")
    chosen = _chosen(strategies, problems[0].machine)
    _require_known(space or {}, chosen)
    found = [
        candidate for problem in problems for candidate in _candidates(problem, chosen, space or {}, min_microbatches)
    ]
    if words is not None:
        require_words(words, found)
    search = Search(
        found,
        objective=objective,
        head_room=head_room,
        prune=prune,
        executor=executor,
        jobs=jobs,
        results=None if results is None else Path(results),
        progress=progress,
        budget_s=budget_s,
        time_limit_s=time_limit_s,
    )
    if sampler == "optuna":
        sample_with_optuna(search, num_samples)
    else:
        search.run()
    return Tuning(search)


def _candidates(
    problem: TuningProblem,
    strategies: Sequence[str | Strategy],
    space: Mapping[str, Sequence[Any]],
    min_microbatches: int,
) -> Iterator[Candidate]:
    """Yield the configurations of all strategies on one machine."""
    for strategy in strategies:
        machine = problem.by(strategy).machine
        yield from candidates(strategy, machine, axes_of(strategy, machine, space), min_microbatches, space)


def _by_precision(parameters: Mapping[str, Any], precisions: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield parameters in each precision; without any, where it is the model's own."""
    if not precisions:
        raise UsageError("precision must name at least one precision, got none")
    for precision in precisions:
        yield parameters if precision is None else {**parameters, "precision": precision}


def _listed(value: Any) -> list[Any]:
    """Return one or several values as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _chosen(strategies: Any, machine: Machine) -> list[str | Strategy]:
    """Return the strategies to search, each of which was found."""
    if strategies is None:
        return list(default_strategies(machine))
    listed = [strategies] if isinstance(strategies, str) or callable(strategies) else list(strategies)
    for strategy in listed:
        choose_strategy(strategy)
    if not listed:
        raise UsageError("strategies must name at least one strategy, got none")
    return listed


def _checked(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return further parameters of `simulate`.

    Raises:
        UsageError: one is none, or is chosen by the search.
    """
    for name in parameters:
        if name in ("fold", "check", "log", "strict", "numerics", "execution", "observers", "memory_by_kind"):
            raise UsageError(f"{name} is not for a search, which simulates steps as it needs; leave it out")
        if name not in DEFAULTS:
            raise UsageError(
                f"{name} is no parameter of `simulate`; give options of strategies as values, in "
                f"space={{{name!r}: [...]}}{did_you_mean(name, list(DEFAULTS))}"
            )
    return dict(parameters)


def _require_known(space: Mapping[str, Sequence[Any]], strategies: Sequence[str | Strategy]) -> None:
    """Require that each axis is an option of a strategy, with at least one value."""
    functions = [choose_strategy(strategy).function for strategy in strategies]
    for name, values in space.items():
        if not any(takes_option(function, name) for function in functions):
            known = [option for function in functions for option in options_of(function)]
            raise UsageError(f"{name} is no option of any strategy that is searched{did_you_mean(name, known)}")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise UsageError(f"space must have a list of at least one value for {name}, got {values!r}")


def _require_limits(head_room: float, min_microbatches: int, prune: str, sampler: str) -> None:
    """Require limits that make sense."""
    is_share = isinstance(head_room, int | float) and not isinstance(head_room, bool)
    if not is_share or not 0 <= head_room < 1:
        raise UsageError(f"head_room must be a share of at least 0 and below 1, such as 0.1, got {head_room!r}")
    require_count("min_microbatches", min_microbatches)
    for name, value, known in (("prune", prune, PRUNING), ("sampler", sampler, SAMPLERS)):
        if value not in known:
            raise UsageError(f"{name} must be one of {', '.join(known)}, got {value!r}")
