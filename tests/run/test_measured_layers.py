"""Prices from measured times of layers: `simulate(..., prices=mt.MeasuredLayers.read(...))`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.machine import load_config
from minitrain.machine.measured_layers import LayerTime, write_layers
from minitrain.machine.topology import FlatTopology

MODEL = mt.Transformer(num_layers=2, hidden_size=64, num_heads=4, vocab_size=512, seq_len=32, attention="unfused")
ROWS = tuple(
    LayerTime(size, tp, first, last, ahead * size / tp, 2.5 * ahead * size / tp, 0.004 / tp, "X", "tiny")
    for tp in (1, 2)
    for size in (1, 4)
    for first, last, ahead in ((0, 0, 0.001), (1, 2, 0.010), (3, 3, 0.005))
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_layers(ROWS, tmp_path / "layers.csv")


def simulated(layers: Any, strategy: str = "ddp", **changes: Any) -> mt.Run:
    """Return a run on one rank with measured layers."""
    sizes = {"world_size": 1, "workload": MODEL, "global_batch_size": 4}
    return mt.simulate(strategy, **{**sizes, "prices": layers, **changes})


def total(run: mt.Run, typ: str) -> float:
    """Return how long rank 0 takes for all operations of a kind."""
    return sum(event.duration for event in run.logs[0] if event.typ == typ)


def test_a_step_takes_the_times_of_the_table(table: Path) -> None:
    run = simulated(mt.MeasuredLayers.read(table))
    assert total(run, "forward") == pytest.approx(4 * (0.001 + 2 * 0.010 + 0.005), rel=1e-12)
    assert total(run, "backward") == pytest.approx(10 * (0.001 + 2 * 0.010 + 0.005), rel=1e-12)
    assert total(run, "update") == pytest.approx(4 * 0.004, rel=1e-12)
    assert total(run, "loss") == 0


def test_attention_and_mlp_share_a_layer_by_flops(table: Path) -> None:
    run = simulated(mt.MeasuredLayers.read(table))
    times = {event.layer: event.duration for event in run.logs[0] if event.typ == "forward"}
    flop = [unit.forward_flop(32) for unit in MODEL.units()]
    assert times[1] / times[2] == pytest.approx(flop[1] / flop[2])
    assert times[1] + times[2] == pytest.approx(0.04)


def test_between_two_microbatches_a_time_is_on_the_line(table: Path) -> None:
    layers = mt.MeasuredLayers.read(table)
    assert layers.seconds("forward_s", 1, 3, 1) == pytest.approx(0.030)
    assert layers.seconds("forward_s", 1, 4, 2) == pytest.approx(0.020)


@pytest.mark.parametrize(("num_samples", "tp"), [(5, 1), (0, 1), (1, 3)])
def test_what_was_not_measured_is_refused_with_what_was(table: Path, num_samples: int, tp: int) -> None:
    layers = mt.MeasuredLayers.read(table)
    words = (
        f"layers.csv has no time of layer 1 for a microbatch of {num_samples} and tensor-parallel degree {tp}, .* "
        r"layers 0\.\.3, tp 1 with microbatches 1, 4; tp 2 with microbatches 1, 4; measure it"
    )
    with pytest.raises(UsageError, match=words):
        layers.seconds("forward_s", 1, num_samples, tp)


def test_recomputation_repeats_forward_or_its_attention_core(table: Path) -> None:
    layers = mt.MeasuredLayers.read(table)
    none, selective, full = (
        total(simulated(layers, recompute=kind), "backward") for kind in ("none", "selective", "full")
    )
    assert full - none == pytest.approx(4 * 2 * 0.010)
    attention = MODEL.units()[1]
    layer_flop = sum(unit.forward_flop(32) for unit in MODEL.units()[1:3])
    assert selective - none == pytest.approx(0.08 * attention.recomputed_flop(32, "selective") / layer_flop)


def test_shards_are_updated_in_their_share_of_the_time(table: Path) -> None:
    layers = mt.MeasuredLayers.read(table)
    whole, shards = (total(simulated(layers, kind, world_size=4), "update") for kind in ("ddp", "zero1"))
    assert shards == pytest.approx(whole / 4)


def test_halves_of_a_split_backward_take_half_of_it(table: Path) -> None:
    run = simulated(mt.MeasuredLayers.read(table), "zb_h1", world_size=2, microbatch_size=4, global_batch_size=8)
    times = [total(run, typ) for typ in ("backward_input", "backward_weight")]
    assert times[0] == pytest.approx(times[1])


def test_transfers_stay_those_of_the_config(table: Path) -> None:
    run = simulated(mt.MeasuredLayers.read(table), world_size=4)
    event = next(event for event in run.logs[0] if event.typ == "all_reduce" and event.layer == 1)
    flat = FlatTopology(load_config("h100_80g_nvl8").networks[0])
    size_bytes = 4 * MODEL.units()[1].num_held_parameters()
    assert event.duration == flat.collective("all_reduce", size_bytes, range(4)).seconds


def test_transfers_that_a_table_contains_are_taken_off_once(table: Path) -> None:
    given: dict[str, Any] = {"world_size": 2, "global_batch_size": 1, "microbatch_size": 1, "tp": 2}
    run = simulated(mt.MeasuredLayers.read(table, includes_transfers=True), "megatron", **given)
    layers = [e for e in run.logs[0] if e.typ in ("forward", "backward") and e.layer in range(1, 5)]
    reduced = run.models[0]._runtime_predictor.collective("all_reduce", 2 * 32 * 64, range(2)).seconds
    assert sum(e.duration for e in layers) + 8 * reduced == pytest.approx(3.5 * 2 * 0.010 / 2)


def test_folding_gives_the_same_floats(table: Path) -> None:
    layers = mt.MeasuredLayers.read(table)
    for strategy in ("ddp", "zero3", "megatron:tp=2", "1f1b"):
        given: dict[str, Any] = {"world_size": 4, "global_batch_size": 8, "microbatch_size": 1}
        full, folded = (simulated(layers, strategy, **given, fold=fold).step_time for fold in (False, True))
        assert full == folded


def test_the_default_layers_take_a_table_too(table: Path) -> None:
    run = mt.simulate(
        "ddp", world_size=1, num_layers=4, global_batch_size=4, prices=mt.MeasuredLayers.read(table), fidelity="kernels"
    )
    assert total(run, "forward") == pytest.approx(4 * (0.001 + 2 * 0.010 + 0.005))


def test_a_table_of_another_model_is_refused(table: Path) -> None:
    with pytest.raises(UsageError, match=r"has layers 0\.\.3, embedding and head included, but .*gpt2.* has 0\.\.13"):
        simulated(mt.MeasuredLayers.read(table), workload="gpt2")


def test_rows_are_chosen_by_device_and_model(tmp_path: Path) -> None:
    other = [LayerTime(1, 1, 0, 3, 1.0, 2.0, 0.0, "Y", "tiny")]
    path = write_layers([*ROWS, *other], tmp_path / "both.csv")
    with pytest.raises(
        UsageError, match=r'both.csv has rows of several kinds of gpu \(X, Y\); choose one, as in gpu="X"'
    ):
        mt.MeasuredLayers.read(path)
    assert mt.MeasuredLayers.read(path, gpu="Y").seconds("forward_s", 2, 1, 1) == 1.0
    with pytest.raises(UsageError, match=r"both.csv has no rows whose gpu is 'Z'; it has X, Y; use one of them"):
        mt.MeasuredLayers.read(path, gpu="Z")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("microbatch,tp\n1,1\n", "expected the columns .*, found none called first_layer, last_layer, forward_s"),
        ("head\n", "found none called microbatch"),
        ("{}\n1,1,0,0,x,1,1\n", "bad.csv, line 2: forward_s must be a number of seconds of at least 0, got 'x'"),
        ("{}\n1.5,1,0,0,1,1,1\n", "line 2: microbatch must be a whole number of at least 0, got '1.5'"),
        (
            "{}\n1,1,2,1,1,1,1\n",
            "line 2: microbatch and tp must be at least 1, and first_layer no more than last_layer",
        ),
        ("{}\n1,1,0\n", "line 2: last_layer must be a whole number of at least 0, got ''"),
        ("{}\n", "bad.csv has no rows"),
    ],
)
def test_a_faulty_table_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text.format("microbatch,tp,first_layer,last_layer,forward_s,backward_s,update_s"))
    with pytest.raises(UsageError, match=words):
        mt.MeasuredLayers.read(path)


def test_prices_must_be_a_table(table: Path) -> None:
    with pytest.raises(UsageError, match="prices must be measured times of layers, a MeasuredLayers, got '/"):
        simulated(str(table))
    with pytest.raises(UsageError, match=r"nothing.csv cannot be read"):
        mt.MeasuredLayers.read(table.with_name("nothing.csv"))


def test_tables_of_one_name_are_told_apart(table: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write_layers(ROWS[:6], tmp_path / "other" / "layers.csv")
    assert repr(mt.MeasuredLayers.read(table)) != repr(mt.MeasuredLayers.read(other))
    assert repr(mt.MeasuredLayers.read(table)) == repr(mt.MeasuredLayers.read(table))


def test_a_straggler_takes_longer(table: Path) -> None:
    layers = mt.MeasuredLayers.read(table)
    slow = simulated(layers, slowdown={0: 2.0})
    assert total(slow, "forward") == pytest.approx(2 * total(simulated(layers), "forward"))
