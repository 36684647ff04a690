"""What a run of a transformer says of itself: tokens, utilization, memory by kind, communication by axis."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.engine.stores import MEMORY_KINDS
from minitrain.run.analysis.memory_over_time import curves_by_kind

V = 256
GPT = mt.Transformer(num_layers=4, hidden_size=128, num_heads=8, vocab_size=V, seq_len=96, attention="unfused")
MANY_WORDS = replace(GPT, vocab_size=4096)
GRID: list[tuple[str, dict[str, Any]]] = [
    ("ddp", {}),
    ("zero3_prefetch", {"recompute": "selective"}),
    ("fsdp", {"replicas": 2, "recompute": "full"}),
    ("megatron", {"tp": 2, "pp": 2, "recompute": "full", "sequence_parallel": True}),
    ("megatron", {"tp": 4, "pp": 2, "num_chunks": 2, "recompute": "selective", "zero": 1}),
    ("zbv", {"pp": 2}),
    ("1f1b", {"recompute": "full"}),
]


def train(strategy: str, **options: Any) -> mt.Run:
    usual: dict[str, Any] = {"workload": GPT, "world_size": 8, "global_batch_size": 32, "microbatch_size": 2}
    return mt.simulate(strategy, **usual | options)


@pytest.mark.few(2)
@pytest.mark.parametrize(("strategy", "options"), GRID, ids=str)
def test_kinds_add_up_to_the_peak_and_are_those_of_the_journals(strategy: str, options: dict[str, Any]) -> None:
    run, with_journals = train(strategy, **options), train(strategy, memory_by_kind=True, **options)
    assert run.memory_by_kind is not None
    assert tuple(run.memory_by_kind) == MEMORY_KINDS
    assert sum(run.memory_by_kind.values()) == run.peak_memory_bytes
    assert with_journals.memory_by_kind == run.memory_by_kind
    assert with_journals.peak_memory_per_rank == run.peak_memory_per_rank


@pytest.mark.few(1)
@pytest.mark.parametrize(("strategy", "options"), GRID, ids=str)
def test_folded_summarized_and_saved_runs_say_the_same(strategy: str, options: dict[str, Any], tmp_path: Path) -> None:
    options = {**options, "contention": False}  # of which totals know nothing
    run = train(strategy, fold=False, **options)
    assert run.summary()["memory_by_kind_bytes"] == run.memory_by_kind
    assert train(strategy, fold=True, **options).summary() == run.summary()
    assert train(strategy, log="summary", **options).summary() == run.summary()
    run.save(tmp_path / "run.jsonl")
    assert mt.load_run(tmp_path / "run.jsonl").summary() == run.summary()
    with_journals = train(strategy, memory_by_kind=True, **options)
    with_journals.save(tmp_path / "run.jsonl")
    assert mt.load_run(tmp_path / "run.jsonl").memory_by_kind == run.memory_by_kind


def test_a_single_device_holds_18_bytes_a_parameter_and_the_logits_in_single_precision() -> None:
    run = train("ddp", world_size=1, global_batch_size=8, microbatch_size=8, workload=MANY_WORDS)
    assert run.memory_by_kind is not None
    held = run.memory_by_kind
    parameters = MANY_WORDS.num_parameters  # one table for embedding and head
    assert held["weights"] == 2 * parameters
    assert held["optimizer"] == 12 * parameters
    assert held["gradients"] == 4 * MANY_WORDS.units()[-1].num_held_parameters()  # the head's alone when most is held
    assert held["logits"] == 4 * 96 * 8 * 4096
    assert held["buffers"] == 0


@pytest.mark.parametrize("tp", [2, 4])
def test_parts_share_the_logits(tp: int) -> None:
    run = train("megatron", world_size=tp, global_batch_size=8, microbatch_size=8, tp=tp, workload=MANY_WORDS)
    assert run.memory_by_kind is not None
    assert run.memory_by_kind["logits"] == 4 * 96 * 8 * 4096 / tp


def test_curves_over_time_tell_logits_from_activations() -> None:
    run = train("ddp", memory_by_kind=True)
    curves = curves_by_kind(run.timeline, run.memory_journals, 0, run.step_time)
    assert {"weights", "optimizer state", "gradients", "activations", "logits"} <= set(curves)
    assert curves["logits"].memory.max() == 4 * 96 * 2 * V
    assert curves["logits"].memory[-1] == 0
    assert all(curve.memory.min() >= 0 for curve in curves.values())


def test_a_journal_has_what_backward_computes_again() -> None:
    run = train("ddp", recompute="full", memory_by_kind=True)
    totals = (accumulate(change.elements for change in journal) for journal in run.memory_journals)
    assert list(map(max, totals)) == run.peak_memory_per_rank


def test_layers_that_are_alike_tell_kinds_where_journals_are_kept() -> None:
    sizes: dict[str, Any] = {"workload": None, "num_layers": 8}
    assert train("ddp", **sizes).memory_by_kind is None
    kinds = train("ddp", memory_by_kind=True, **sizes).memory_by_kind
    assert kinds is not None
    assert sum(kinds.values()) == train("ddp", **sizes).peak_memory_bytes


def test_a_strict_run_knows_no_kinds_of_what_is_outside_stores() -> None:
    assert train("ddp", strict=True).memory_by_kind is None


def test_model_flop_over_time_is_mfu_and_what_is_computed_again_is_hfu() -> None:
    plain, again = train("ddp"), train("ddp", recompute="full")
    assert again.useful_flop == plain.useful_flop
    assert plain.hfu == plain.mfu
    assert again.mfu is not None
    assert again.hfu is not None
    layers = sum(unit.forward_flop(96) for unit in GPT.units() if unit.layer is not None)
    assert again.hfu / again.mfu == pytest.approx(1 + 32 * layers / again.useful_flop, rel=1e-12)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("ddp", {}),
        ("fsdp", {"replicas": 2}),
        ("megatron", {"tp": 2, "pp": 2, "sequence_parallel": True}),
        ("megatron", {"tp": 4, "pp": 2, "num_chunks": 2}),
        ("zbv", {"pp": 2}),
    ],
    ids=str,
)
def test_a_step_costs_what_narayanan_says_however_it_is_divided(strategy: str, options: dict[str, Any]) -> None:
    b, s, layers, h = 32, 96, 4, 128
    plain, again = (train(strategy, recompute=recompute, **options) for recompute in ("none", "full"))
    whole = 96 * b * s * layers * h**2 * (1 + Fraction(s, 6 * h) + Fraction(V, 16 * layers * h))
    once = 72 * b * s * layers * h**2 * (1 + Fraction(s, 6 * h) + Fraction(V, 12 * layers * h))
    assert plain.useful_flop == again.useful_flop == once
    assert plain.trained_model is not None
    assert plain.trained_model.recomputed_flop == 0
    assert again.trained_model is not None
    assert again.useful_flop + again.trained_model.recomputed_flop == whole


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_sequence_parallelism_moves_the_bytes_of_tensor_parallelism_as_pairs(tp: int) -> None:
    sbh, microbatches = 2 * 96 * 2 * 128, 2  # bytes of an activation of a microbatch
    sizes: dict[str, Any] = {"world_size": tp, "global_batch_size": 4, "tp": tp}
    whole, shards = (train("megatron", sequence_parallel=each, **sizes) for each in (False, True))
    sums = [event.size_bytes for event in whole.logs[0] if event.typ == "all_reduce" and event.size_bytes == sbh]
    assert len(sums) == microbatches * (4 * 4 + 2)  # four a transformer layer; embedding forward, head backward
    for typ, again in (("reduce_scatter", 0), ("all_gather", microbatches * (2 * 4 + 1))):  # inputs, for backward
        moved = [event.size_bytes for event in shards.logs[0] if event.typ == typ]
        assert moved == [sbh] * (len(sums) + again)


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_fsdp_moves_each_parameter_three_times_a_microbatch(shards: int) -> None:
    for model in (GPT, replace(GPT, tied_embeddings=False)):
        sizes = {"world_size": shards, "global_batch_size": 2 * shards, "microbatch_size": 1}
        run = train("fsdp", workload=model, **sizes)
        held = [sum(model.units()[layer].num_held_parameters() for layer in unit) for unit in run.models[0].blocks]
        gathers, sums = (
            sum(e.size_bytes for e in run.logs[0] if e.typ == typ) for typ in ("all_gather", "reduce_scatter")
        )
        assert gathers == 2 * 2 * (2 * sum(held) - held[-1])  # the last unit stays whole between the passes
        # gradients of tied layers are whole until the step ends, and have one table
        once = held[0] + held[-1] + V * 128 if model is GPT else 0
        assert sums == 4 * (2 * sum(held) - once)


def test_tokens_of_a_rank_are_a_share_of_all() -> None:
    run = train("ddp")
    assert run.tokens_per_second == 32 * 96 / run.step_time
    assert run.tokens_per_second_per_rank == run.tokens_per_second / 8
    assert train("ddp", workload=None, num_layers=8).tokens_per_second_per_rank is None


@pytest.mark.ci
def test_a_sweeps_table_has_a_column_for_each_kind_and_axis(tmp_path: Path) -> None:
    parameters: dict[str, Any] = {"workload": "tiny", "world_size": 4, "global_batch_size": 8, "microbatch_size": 1}
    done = mt.sweep("megatron", {"tp": [1, 2]}, jobs=1, **parameters)
    columns = done.write_csv(tmp_path / "rows.csv").read_text().splitlines()[0].split(",")
    assert {f"memory_by_kind_bytes.{kind}" for kind in MEMORY_KINDS} <= set(columns)
    assert {"communication_by_axis.tp.exposed_s", "communication_by_axis.dp.size_bytes"} <= set(columns)
    page = done.write_html(tmp_path / "rows.html", pictures=0).read_text()
    assert "communication_by_axis.tp.seconds" in page


def test_megatron_and_fsdp_compare_on_a_real_model_with_one_option_for_both() -> None:
    words = ["compare", "megatron", "fsdp", "--model", "llama3-8b", "--world-size", "64", "--option", "tp=8"]
    result = CliRunner().invoke(app, [*words, "--no-trace", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["strategy"] for row in rows] == ["megatron", "fsdp"]
    for row in rows:
        assert row["error"] is None
        assert row["hfu"] == pytest.approx(row["mfu"])
        assert set(row["communication_by_axis"]) == {"tp", "dp"}
        assert sum(row["memory_by_kind_bytes"].values()) == row["peak_memory_bytes"]


def test_a_failed_strategy_has_the_same_keys() -> None:
    comparison = mt.compare(["ddp", "megatron:tp=3"], workload="tiny", world_size=4, global_batch_size=8)
    ours, failed = comparison.summary()
    assert set(ours) == set(failed)
    assert failed["memory_by_kind_bytes"] is None
    assert "HFU" in repr(comparison)


def test_pages_say_what_the_table_says(tmp_path: Path) -> None:
    run = train("megatron", tp=2, pp=2, recompute="full")
    page = run.write_html(tmp_path / "run.html").read_text()
    for words in ("HFU", "at the peak: weights", "communication: dp"):
        assert words in page
