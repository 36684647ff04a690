"""Megatron's layer: what it communicates, holds and computes, in closed form."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

import minitrain as mt
from minitrain.events import STRIDE
from minitrain.workloads.degrees import Degrees, Work
from minitrain.workloads.shapes import RECOMPUTE, Recompute
from minitrain.workloads.workload import USUAL

A, S, H, V, L, B = 8, 96, 128, 256, 4, 2
GPT = mt.Transformer(
    num_layers=L, hidden_size=H, num_heads=A, vocab_size=V, seq_len=S, dropout=0.1, attention="unfused"
)
SBH = 2 * S * B * H  # bytes of an activation of a microbatch


def train(world_size: int = 8, **options: Any) -> mt.Run:
    usual: dict[str, Any] = {"workload": GPT, "global_batch_size": 2 * B, "microbatch_size": B}
    return mt.simulate("megatron", world_size=world_size, **usual | options)


def communicated(run: mt.Run, rank: int = 0) -> dict[str, Counter[float]]:
    """Return how often which sizes went through each collective among tensor-parallel ranks, by type."""
    found: dict[str, Counter[float]] = {}
    for event in run.logs[rank]:
        if event.typ in ("all_reduce", "reduce_scatter", "all_gather"):
            found.setdefault(event.typ, Counter())[event.size_bytes] += 1
    return found


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallelism_takes_four_all_reduces_of_2sbh_bytes_a_layer_and_microbatch(tp: int) -> None:
    sums = communicated(train(tp, tp=tp))
    statistics = 3 * 4 * S * B  # of the loss, over the parts of the vocabulary
    # beside the layers: the embedding's output, and the gradient of the head's input
    assert sums == {"all_reduce": {SBH: 2 * (4 * L + 2), statistics: 2}}


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_sequence_parallelism_takes_the_same_bytes_as_pairs(tp: int) -> None:
    moved = communicated(train(tp, tp=tp, sequence_parallel=True))
    pairs = 2 * (4 * L + 2)
    again = 2 * (2 * L + 1)  # backward gathers the inputs that it keeps as shards
    assert moved["reduce_scatter"] == {SBH: pairs}
    assert moved["all_gather"] == {SBH: pairs + again}
    norms = 4 * 2 * H
    attention_and_mlp = 4 * (2 * H + H)  # a norm, and the bias behind the sum
    assert moved["all_reduce"] == {3 * 4 * S * B: 2, attention_and_mlp: 2 * L, norms: 1}


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_full_recomputation_takes_the_sums_of_forward_once_more(sequence_parallel: bool) -> None:
    usual, again = (
        communicated(train(4, tp=4, sequence_parallel=sequence_parallel, recompute=recompute))
        for recompute in ("none", "full")
    )
    op = "reduce_scatter" if sequence_parallel else "all_reduce"
    assert again[op][SBH] == usual[op][SBH] + 2 * 2 * L


def test_full_recomputation_counts_the_same_operations_with_parts_as_without() -> None:
    whole, parts = (train(tp, tp=tp, recompute="full") for tp in (1, 4))
    assert parts.hfu is not None
    assert whole.hfu is not None
    assert parts.mfu is not None
    assert whole.mfu is not None
    assert parts.mfu / parts.hfu == pytest.approx(whole.mfu / whole.hfu)


def test_scattered_messages_carry_a_share_and_are_gathered_behind_the_border() -> None:
    whole, shares = (train(4, tp=2, pp=2, scatter_gather=scatter_gather) for scatter_gather in (False, True))
    sent = [{event.size_bytes for event in run.logs[0] if event.typ == "send"} for run in (whole, shares)]
    assert sent == [{SBH}, {SBH / 2}]
    gathered = communicated(shares, rank=2)["all_gather"]
    assert gathered == {SBH: 2}
    assert shares.peak_memory_bytes == whole.peak_memory_bytes


@pytest.mark.parametrize("zero", [0, 1])
def test_what_replicas_exchange_hides_behind_the_last_microbatch(zero: int) -> None:
    exposed, hidden = (
        train(8, tp=2, zero=zero, overlap_replicas=overlap, global_batch_size=8 * B) for overlap in (False, True)
    )
    assert hidden.step_time < exposed.step_time
    assert hidden.exposed_comm_fraction < exposed.exposed_comm_fraction
    assert communicated(hidden) == communicated(exposed)


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_messages_that_are_hidden_take_no_longer_than_those_that_are_not(num_chunks: int) -> None:
    given = {"pp": 4, "tp": 2, "num_chunks": num_chunks, "global_batch_size": 8 * B, "layers_per_stage": None}
    exposed, hidden = (train(8, overlap_messages=overlap, **given) for overlap in (False, True))
    assert hidden.step_time < exposed.step_time


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_batched_messages_go_both_ways_at_once(num_chunks: int) -> None:
    given = {"pp": 4, "tp": 2, "num_chunks": num_chunks, "global_batch_size": 8 * B, "layers_per_stage": None}
    alone, batched = (train(8, batch_messages=flag, **given) for flag in (False, True))
    assert batched.step_time < alone.step_time
    assert communicated(batched) == communicated(alone)


def test_the_sum_of_a_layer_is_priced_as_a_ring_of_the_tensor_parallel_group() -> None:
    run = train(8, tp=4)
    event = next(event for event in run.logs[5] if event.typ == "all_reduce" and event.size_bytes == SBH)
    assert event.group == (4, 5, 6, 7)


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("tp", [2, 4])
def test_activations_hold_to_the_byte_what_korthikanti_says(
    tp: int, sequence_parallel: bool, recompute: Recompute
) -> None:
    run = train(
        tp, tp=tp, sequence_parallel=sequence_parallel, recompute=recompute, memory_by_kind=True, global_batch_size=B
    )
    head = next(place for place, event in enumerate(run.logs[0]) if event.layer == 2 * L + 1 and event.typ == "forward")
    work = Work(B, S, Degrees(tp=tp, sequence_parallel=sequence_parallel))
    layers = (
        L
        * {
            ("none", False): S * B * H * (10 + Fraction(24, tp) + Fraction(5 * A * S, H * tp)),
            ("none", True): Fraction(S * B * H, tp) * (34 + Fraction(5 * A * S, H)),
            ("selective", False): S * B * H * (10 + Fraction(24, tp)),
            ("selective", True): Fraction(34 * S * B * H, tp),
            ("full", False): Fraction(2 * S * B * H),
            ("full", True): Fraction(2 * S * B * H, tp),
        }[recompute, sequence_parallel]
    )
    embedding = GPT.units()[0].saved_bytes(work)
    entering = Fraction(SBH, tp) + SBH if sequence_parallel else SBH  # the head's input, and gathered for it
    assert held_before_head(run, head) == layers + embedding + entering


def held_before_head(run: mt.Run, place: int) -> float:
    """Return the bytes in the store of activations when the head goes forward."""
    return sum(
        change.elements for change in run.memory_journals[0] if change.kind == "activations" and change.place <= place
    )


@pytest.mark.parametrize("tp", [2, 4])
def test_parts_compute_a_share_and_hold_a_share(tp: int) -> None:
    whole, run = train(1), train(tp, tp=tp)
    for typ in ("forward", "backward"):
        one, all_of_it = (
            sum(
                each.models[0].runtime_predictor.workload.compute_cost(typ, B, *how).work_flop
                for how in modes(each, typ)
            )
            for each in (run, whole)
        )
        assert one * tp == all_of_it
    held = sum(unit.num_held_parameters(Degrees(tp=tp)) for unit in GPT.units())
    stored = run.models[0].memory_by_store()
    assert stored["weights"] == 2 * held
    assert stored["opt_states"] == 12 * held


def modes(run: mt.Run, typ: str) -> list[tuple[Any, ...]]:
    """Return the layers of the first microbatch on rank 0, and how they were passed through."""
    found: dict[int, Any] = {}
    for place, event in enumerate(run.logs[0]):
        if event.typ == typ and event.layer is not None:
            found.setdefault(event.layer, run.models[0].pass_modes.get(place * STRIDE, USUAL))
    return list(found.items())


GRID = [
    {"tp": 2},
    {"tp": 2, "sequence_parallel": True},
    {"tp": 2, "pp": 2},
    {"tp": 4, "sequence_parallel": True, "recompute": "full"},
    {"tp": 2, "pp": 2, "sequence_parallel": True, "zero": 1},
    {"tp": 2, "pp": 2, "num_chunks": 2, "sequence_parallel": True, "recompute": "selective"},
    {"pp": 2, "num_chunks": 2, "zero": 1},
    {"tp": 2, "pp": 2, "scatter_gather": True, "recompute": "full"},
    {"tp": 2, "pp": 2, "overlap_replicas": True},
    {"tp": 2, "pp": 2, "overlap_parts": True},
    {"tp": 2, "pp": 2, "num_chunks": 2, "overlap_messages": True, "sequence_parallel": True},
    {"pp": 4, "overlap_messages": True},
    {"tp": 2, "pp": 2, "num_chunks": 2, "batch_messages": True},
    {"tp": 4, "sequence_parallel": True, "overlap_parts": True, "recompute": "full"},
    {"tp": 2, "pp": 2, "num_chunks": 2, "zero": 1, "sequence_parallel": True, "overlap_replicas": True},
    {"tp": 8, "sequence_parallel": True},
    {},
]


@pytest.mark.parametrize("options", GRID, ids=str)
@pytest.mark.parametrize("workload", ["tiny", "gpt2"])
def test_every_combination_trains_every_sample_and_every_part(options: dict[str, Any], workload: str) -> None:
    tp_of_gpt2 = {"tp": 4} if workload == "gpt2" and options.get("tp") == 8 else {}
    if workload == "tiny" and options.get("tp") == 8:
        with pytest.raises(mt.UsageError, match=r"num_kv_heads \(4\) must be a multiple of tp \(8\); use tp=4"):
            train(workload=workload, global_batch_size=16, microbatch_size=1, **options)
        return
    run = train(workload=workload, global_batch_size=16, microbatch_size=1, **options | tp_of_gpt2)
    assert run.step_time > 0  # the laws and the check of the final weights have held


def test_one_part_is_a_pipeline_of_replicas() -> None:
    ours = train(pp=4, zero=1, global_batch_size=16, microbatch_size=1)
    theirs = mt.simulate("pp_zero1", world_size=8, pp=4, workload=GPT, global_batch_size=16, microbatch_size=1)
    assert ours.step_time == theirs.step_time
    assert ours.peak_memory <= theirs.peak_memory  # which keeps a gradient while it is sent


def test_tensor_parallelism_divides_the_default_layers_too() -> None:
    run = train(4, tp=4, workload=None, num_layers=8, global_batch_size=8, microbatch_size=2)
    elements = 4096 * 4096 // 4
    assert run.models[0].memory_by_store()["weights"] == 8 * elements
    sums = communicated(run)["all_reduce"]
    assert sums == {2 * 2 * 4096 * 1024: 4 * (2 * 8 - 1)}  # all layers but the first, twice, and the first once


@pytest.mark.parametrize("options", GRID, ids=str)
def test_folded_summary_and_strict_runs_agree(options: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"global_batch_size": 16, "microbatch_size": 1, **options}
    plain = train(fold=False, **sizes)
    assert train(fold=True, **sizes).summary() == plain.summary()
    assert train(log="summary", **sizes).summary() == plain.summary()
    strict = train(strict=True, **sizes)
    assert [list(log) for log in strict.logs] == [list(log) for log in plain.logs]
    assert plain.peak_memory <= strict.peak_memory <= plain.peak_memory + 2 * SBH / B  # a sum, and what it is made of


def test_parts_fold_over_nodes() -> None:
    sizes: dict[str, Any] = {"tp": 8, "pp": 2, "sequence_parallel": True, "zero": 1, "global_batch_size": 16}
    full, folded = train(32, fold=False, **sizes), train(32, fold=True, **sizes)
    assert folded.summary() == full.summary()
    assert len(folded.class_logs) == 2
