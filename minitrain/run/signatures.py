"""The signature of functions that take a strategy and the parameters of a run, for editors and type checkers.

Type checkers read it from the constructor of a dataclass, `StepKeywords`, so that no parameter is written twice. `help`
and completion read `__signature__`, which has every parameter of `RunParameters`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from minitrain.run.parameters import RunParameters

if TYPE_CHECKING:
    from minitrain.run.event_loops import LoopFactory
    from minitrain.run.parameters import Hardware
    from minitrain.run.progress import Watch
    from minitrain.run.strategy_loading import Strategy

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
    num_chunks: int = _STRATEGYS
    offload: str | None = _STRATEGYS
    overlap: int = _STRATEGYS
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
    results: str | PathLike[str] | None = None
    progress: Callable[[int, int | None], None] | None = None
    time_limit_s: float | None = None


class OfStrategy(Protocol[P, R_co]):
    """A function of a strategy and keywords."""

    def __call__(self, strategy: str | Strategy, *args: P.args, **keywords: P.kwargs) -> R_co:
        """Simulate a strategy with parameters of the run and options of its own."""
        ...


class OfStrategies(Protocol[P, R_co]):
    """A function of several strategies and keywords."""

    def __call__(
        self, strategies: str | Iterable[str | Strategy] | None = None, *args: P.args, **keywords: P.kwargs
    ) -> R_co:
        """Simulate strategies with the same parameters."""
        ...


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
        ...


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
        ...


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
