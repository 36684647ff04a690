"""The audit of a finished run: that its parts, logs, clocks and final weights are what the operations made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitrain.accounting.strict.clock_recomputation import ClockRecomputation
from minitrain.accounting.strict.model import StrictModel
from minitrain.accounting.strict.price_recomputation import PriceRecomputation
from minitrain.accounting.strict.unusable_tensors import HandedIn
from minitrain.errors import LawError, StrategyError
from minitrain.events import NOTE, STRIDE, EventLog
from minitrain.tensors import FIELDS
from minitrain.transport.collectives import describe


def audit(models: Sequence[StrictModel]) -> None:
    """Check that only operations have changed transport, clocks, logs, stores and final weights.

    Args:
        models: the model of each rank, after the run.

    Raises:
        StrategyError: the transport was called directly, a clock or a log was written, or a model's parts exchanged.
        LawError: a final weight is not what was handed in.
    """
    for model in models:
        _require_classes(model)
        _require_untouched(model)
        _require_awaited(model)
    _check_prices(models)
    clocks = ClockRecomputation(models[0].world_size)
    for model in models:
        clocks.add(model)
    _require_all_logged(models[0].dist.num_operations, clocks.num_operations)
    clocks.check_collectives()
    clocks.check_messages()
    for model in models:
        _check_final_weights(model)


def _require_classes(model: Any) -> None:
    """Require that model and log are still of the classes that they were made of."""
    for name, value, kind in (("model", model, model._kind), ("model.log", model._log, EventLog)):
        if type(value) is not kind:
            raise StrategyError(
                f"the class of {name} of rank {model._rank} was changed during the run; leave it as it is",
                rank=model._rank,
            )


def _require_untouched(model: StrictModel) -> None:
    """Require the parts that the model was made of, and an account that agrees with the stores."""
    names = ("dist", "log", "runtime_predictor", "rank", "world_size", "num_layers", "global_batch_size")
    for name, given, present in zip(names, model._given, model._given_now(), strict=True):
        if given is not present and (not isinstance(given, int) or given != present):
            raise StrategyError(
                f"model.{name} of rank {model._given[3]} was exchanged during the run; leave it as it is",
                rank=model._given[3],
            )
    held = sum(model._account.units_of(value) for store in model.storage() for value in store.values())
    if held != model._account.units or len(model._log._rows) % STRIDE:
        raise StrategyError(
            f"rank {model._rank} changed its account of memory or its log; only stores and operations may",
            rank=model._rank,
        )


def _check_prices(models: Sequence[StrictModel]) -> None:
    """Price every operation again; ranks may have predictors of their own."""
    prices: dict[int, PriceRecomputation] = {}
    for model in models:
        predictor = model._runtime_predictor
        if id(predictor) not in prices:
            prices[id(predictor)] = PriceRecomputation(predictor)
        prices[id(predictor)].check(model)


def _require_awaited(model: StrictModel) -> None:
    """Require that what was launched was awaited, by the log: a step does not end before its operations do."""
    for note in filter(None, model._log._rows[NOTE::STRIDE]):
        if note.overlaps and note.awaited is None:
            raise StrategyError(
                f"rank {model._rank} launched an operation and never awaited it; `await work` before returning",
                rank=model._rank,
            )


def _require_all_logged(done: int, logged: int) -> None:
    """Require that the transport did as many operations as the logs have."""
    if done != logged:
        raise StrategyError(
            f"the transport carried out {done} operations and the logs have {logged}; use the operations of the model, "
            "not those of model.dist, which cost no time",
            operations=done,
            logged=logged,
        )


def _check_final_weights(model: StrictModel) -> None:
    """Check that every final weight is one that was handed in for its layer, and is what it was then."""
    for layer, weight in model.final_weights.items():
        origin = getattr(weight, "_origin", None)
        if not isinstance(origin, HandedIn) or origin.ledger is not model._ledger:
            raise LawError(
                f"the final weight of layer {layer} on rank {model._rank} was not handed in there, got "
                f"{describe(weight)}; call model.set_final_weight",
                rank=model._rank,
                layer=layer,
            )
        if FIELDS[type(weight)](weight) != origin.fields or weight.layer != layer:
            raise LawError(
                f"the final weight of layer {layer} on rank {model._rank} was altered after it was handed in "
                f"(made at {origin.line}), got {describe(weight)}",
                rank=model._rank,
                layer=layer,
            )
