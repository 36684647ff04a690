"""The signature of functions that take a strategy and the parameters of a run, for editors and type checkers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from minitrain.run.parameters import RunParameters

if TYPE_CHECKING:
    from minitrain.hardware.measured_layers import MeasuredLayers
    from minitrain.rank.executors import Executor
    from minitrain.rank.observers import Observer
    from minitrain.run.progress import Watch
    from minitrain.run.strategy_loading import Strategy

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class TakesRunParameters(Protocol[R_co]):
    """`simulate`, as editors and type checkers see it: the fields of `RunParameters` by name, and a strategy's options.

    It must agree with the fields, which tests/run/test_parameters.py checks.
    """

    def __call__(
        self,
        strategy: str | Strategy,
        *,
        watch: Watch | None = None,
        world_size: int = ...,
        num_layers: int = ...,
        global_batch_size: int = ...,
        hardware: Any = ...,
        workload: Any = ...,
        seq_len: int | None = ...,
        precision: Any = ...,
        network: str = ...,
        placement: Sequence[int] | None = ...,
        fidelity: str | None = ...,
        platform: Any = ...,
        without: Sequence[str] = ...,
        prices: MeasuredLayers | None = ...,
        slowdown: Mapping[int, float] | None = ...,
        shares: Any = ...,
        faults: Any = ...,
        recovery: Any = ...,
        contention: bool | str = ...,
        p2p_buffer: int | None = ...,
        check: bool = ...,
        strict: bool = ...,
        strict_memory: bool = ...,
        memory_by_kind: bool = ...,
        numerics: Any = ...,
        execution: Executor | None = ...,
        observers: Sequence[Observer] = ...,
        fold: bool | str | Any = ...,
        log: str = ...,
        **options: Any,
    ) -> R_co:
        """Simulate a strategy with parameters of the run and options of its own."""
        ...


def lists_run_parameters(function: Callable[..., R]) -> TakesRunParameters[R]:
    """Let a function of a strategy and `**parameters` have the signature of `TakesRunParameters`."""
    return cast("TakesRunParameters[R]", shows_run_parameters(function))


def shows_run_parameters(function: F) -> F:
    """Let a function of `**parameters` show each parameter of a run in its signature (for help and completion)."""
    signature = inspect.signature(function)
    own = [known for known in signature.parameters.values() if known.kind is not inspect.Parameter.VAR_KEYWORD]
    listed = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(RunParameters)
    ]
    options = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD, annotation="Any")
    function.__signature__ = signature.replace(parameters=[*own, *listed, options])  # type: ignore[attr-defined]
    return function
