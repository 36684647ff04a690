"""Tables of measured times of layers: forward and backward of a layer, or forward and both backward halves of a stage.

Columns of the first kind: hidden, n_heads, seq_len, tp, mbs, sp, recompute, fwd_ms, bwd_ms. A model of two layers and
one of one layer are trained by `megatron`; what the second layer adds to forward and to backward is the layer's time.
Sums over parts are hidden behind gradients of weights, and slow these by the share of the device that they need.

Columns of the second kind: n_layers, hidden, n_heads, seq_len, mbs, pp, T_F_ms, T_B_ms, T_W_ms. A middle stage has
(n_layers + 2) / pp layers, which embedding and head are counted among; its times are sums of prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from minitrain.hardware.platforms import Platform, find_platform
from minitrain.run.parameters import RunParameters
from minitrain.run.simulation import simulate
from minitrain.validation.errors_by_table import RowResult
from minitrain.validation.machines import machine_of
from minitrain.validation.rows import LackingError, Row
from minitrain.workloads.precision import PRECISIONS
from minitrain.workloads.transformer import Transformer

_VOCABULARY = 51200  # of embedding and head, whose times are left out
_STAGE_PLATFORM = "zero-bubble"
_PASSES = (("T_F_ms", "forward"), ("T_B_ms", "backward_input"), ("T_W_ms", "backward_weight"))


def layer_results(row: Row, platform: str | Platform | None, without: Sequence[str]) -> Iterator[RowResult]:
    """Yield the results of a row of the first kind: forward and backward.

    Raises:
        LackingError: a size is missing.
        MinitrainError: it cannot be simulated.
    """
    tp, mbs = row.count("tp", 1), row.count("mbs")
    recompute = row.text("recompute") or "none"
    options: dict[str, Any] = {
        "tp": tp,
        "sequence_parallel": row.text("sp") == "1",
        "recompute": recompute,
        "overlap_parts": True,
        "microbatch_size": mbs,
        "global_batch_size": mbs,
        "world_size": tp,
        "hardware": machine_of(row),
        "platform": find_platform(platform),
        "without": tuple(without),
        "contention": True,
        "check": False,
    }
    one, two = (_pass_seconds(simulate("megatron", workload=_model(row, count), **options)) for count in (1, 2))
    for place, (name, column) in enumerate((("forward", "fwd_ms"), ("backward", "bwd_ms"))):
        yield _result(row, name, row.positive(column) / 1e3, two[place] - one[place], tp, _name_of(platform))


def stage_results(row: Row, platform: str | Platform | None, without: Sequence[str]) -> Iterator[RowResult]:
    """Yield the result of a row of the second kind: forward, and the gradients of inputs and of weights, together.

    Raises:
        LackingError: a size is missing, or stages do not divide.
        MinitrainError: it cannot be simulated.
    """
    num_layers, pp, mbs = row.count("n_layers"), row.count("pp"), row.count("mbs")
    if (num_layers + 2) % pp:
        raise LackingError(f"n_layers + 2 ({num_layers + 2}) is no multiple of pp ({pp})")
    chosen = find_platform(_STAGE_PLATFORM if platform is None else platform)
    parameters = RunParameters(
        world_size=1,
        hardware=machine_of(row),
        workload=_model(row, 1),
        global_batch_size=mbs,
        platform=chosen,
        without=tuple(without),
    )
    prices: Any = parameters.predictor()  # one for all ranks
    num_here = (num_layers + 2) // pp
    terms = {typ: num_here * sum(prices.compute(typ, mbs, layer).seconds for layer in (1, 2)) for _, typ in _PASSES}
    measured_s = sum(row.positive(column) for column, _ in _PASSES) / 1e3
    yield replace(_result(row, "stage", measured_s, sum(terms.values()), 1, chosen.name), terms=terms)


def _model(row: Row, num_layers: int) -> Transformer:
    """Return a model of some layers like those of a row."""
    return Transformer(
        num_layers=num_layers,
        hidden_size=row.count("hidden"),
        num_heads=row.count("n_heads"),
        vocab_size=_VOCABULARY,
        seq_len=row.count("seq_len"),
        attention="unfused",
        dropout=0.1,
        precision=PRECISIONS["fp16"],
        name=row.text("model") or "custom",
    )


def _pass_seconds(run: Any) -> tuple[float, float]:
    """Return how long forward and backward of a step took on rank 0, s."""
    log = run.logs[0]
    loss = next(event for event in log if event.typ == "loss")
    update = next(event for event in log if event.typ == "update")
    return loss.time, update.time - loss.time - loss.duration


def _result(row: Row, name: str, measured_s: float, predicted_s: float, tp: int, platform: str | None) -> RowResult:
    """Return the result of one figure of a row."""
    sizes = f"hidden {row.text('hidden')}, batch {row.text('mbs')}"
    experiment = f", {row.text('experiment')}" if row.text("experiment") else ""
    return RowResult(
        table=row.table,
        row_id=f"{row.row_id}-{name}",
        about=f"{row.text('model')} {name}, {sizes}{experiment}",
        group=name,
        device=machine_of(row).name,
        model=row.text("model"),
        world_size=tp,
        measured_s=measured_s,
        predicted_s=predicted_s,
        platform=platform,
    )


def _name_of(platform: str | Platform | None) -> str | None:
    """Return a platform's name."""
    return None if platform is None else find_platform(platform).name
