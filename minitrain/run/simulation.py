"""Simulating one training step of a strategy: `simulate`, and `simulate_async` for async callers.

All ranks run in one asyncio event loop, each on a logical clock that the hardware's prices move. Which class of model
and of run is taken is chosen in `minitrain.run.variants`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minitrain.engine.final_weights import require_handed_on
from minitrain.engine.model import Model
from minitrain.engine.transport.dist import Dist
from minitrain.errors import UsageError
from minitrain.run import variants
from minitrain.run.device_memory import watching_memory
from minitrain.run.event_loops import LoopFactory, rare_collections, run_to_end
from minitrain.run.progress import Watch
from minitrain.run.rank_tasks import PreparedRun, prepare, require_nothing_left, run_ranks
from minitrain.run.result import Run
from minitrain.run.signatures import SimulateKeywords, StepKeywords, of_strategy
from minitrain.run.steps import Steps, period_of
from minitrain.run.strategy_loading import Strategy


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
