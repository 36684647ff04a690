"""Megatron's layer: what it communicates, holds and computes, in closed form."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import minitrain as mt
from minitrain.operations import STRIDE
from minitrain.workloads.architecture import PRECISIONS
from minitrain.workloads.shapes import Degrees, Work
from minitrain.workloads.workload import RECOMPUTE, USUAL, Recompute

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


@pytest.mark.few(1)
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
    given = {"tp": 2, "pp": 2, "overlap_messages": False}
    whole, shares = (train(4, scatter_gather=scatter_gather, **given) for scatter_gather in (False, True))
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


@pytest.mark.parametrize("options", [{"tp": 2}, {"pp": 2, "num_chunks": 2}, {"pp": 2, "schedule": "zb_h1"}])
def test_weights_are_gathered_while_the_block_before_computes(options: dict[str, Any]) -> None:
    given = {**options, "zero": 3, "global_batch_size": 8 * B, "layers_per_stage": None}
    waiting, ahead = (train(8, overlap_replicas=overlap, **given) for overlap in (False, True))
    assert ahead.step_time < waiting.step_time
    assert communicated(ahead) == communicated(waiting)
    most = 3 * max(event.size_bytes for event in ahead.logs[0] if event.typ == "all_gather")  # but for a layer's
    assert waiting.peak_memory_bytes <= ahead.peak_memory_bytes <= waiting.peak_memory_bytes + most


def test_gradients_that_zero_2_sums_after_each_microbatch_have_nothing_to_overlap() -> None:
    with pytest.raises(mt.StrategyError, match="zero=2; leave overlap_replicas out"):
        train(8, zero=2, overlap_replicas=True, global_batch_size=8 * B)


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_messages_that_are_hidden_take_no_longer_than_those_that_are_not(num_chunks: int) -> None:
    given = {"pp": 4, "tp": 2, "num_chunks": num_chunks, "global_batch_size": 8 * B, "layers_per_stage": None}
    exposed, hidden = (train(8, overlap_messages=overlap, **given) for overlap in (False, True))
    assert hidden.step_time < exposed.step_time


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_batched_messages_go_both_ways_at_once(num_chunks: int) -> None:
    given = {"pp": 4, "tp": 2, "num_chunks": num_chunks, "global_batch_size": 8 * B, "layers_per_stage": None}
    alone, batched = (train(8, batch_messages=flag, overlap_messages=False, **given) for flag in (False, True))
    assert batched.step_time < alone.step_time
    assert communicated(batched) == communicated(alone)


def test_the_sum_of_a_layer_is_priced_as_a_ring_of_the_tensor_parallel_group() -> None:
    run = train(8, tp=4)
    event = next(event for event in run.logs[5] if event.typ == "all_reduce" and event.size_bytes == SBH)
    assert event.group == (4, 5, 6, 7)


@pytest.mark.few(4)
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
    held -= GPT.vocab_size // tp * GPT.hidden_size  # the head's table is the embedding's
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
    {"tp": 2, "pp": 2, "num_chunks": 2, "batch_messages": True, "overlap_messages": False},
    {"tp": 2, "pp": 2, "num_chunks": 2, "overlap_messages": False},
    {"pp": 4, "overlap_messages": False},
    {"tp": 4, "sequence_parallel": True, "overlap_parts": True, "recompute": "full"},
    {"tp": 2, "pp": 2, "num_chunks": 2, "zero": 1, "sequence_parallel": True, "overlap_replicas": True},
    {"tp": 8, "sequence_parallel": True},
    {"cp": 2, "tp": 2, "pp": 2},
    {"cp": 2, "tp": 2, "sequence_parallel": True, "zero": 1, "recompute": "full"},
    {"cp": 2, "tp": 4, "sequence_parallel": True, "cp_comm_type": "all_gather", "zero": 3},
    {"cp": 2, "pp": 2, "cp_comm_type": "all_gather", "recompute": "full", "schedule": "zb_h1", "zero": 2},
    {"tp": 2, "pp": 2, "schedule": "zbv", "sequence_parallel": True},
    {"tp": 2, "pp": 2, "schedule": "zb_h1", "sequence_parallel": True, "zero": 3, "recompute": "full"},
    {"pp": 2, "zero": 1, "shard_size": 2},
    {"tp": 2, "zero": 3, "shard_size": 2, "cp": 2},
    {"tp": 2, "pp": 2, "num_chunks": 2, "zero": 3, "overlap_replicas": True, "recompute": "full"},
    {},
]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("workload", "options"),
    [
        *(pytest.param("tiny", options, id=f"tiny-{options}") for options in GRID),
        *(
            pytest.param("gpt2", options, id=f"gpt2-{options}", marks=pytest.mark.slow if place % 3 else ())
            for place, options in enumerate(GRID)
        ),
    ],
)
def test_every_combination_trains_every_sample_and_every_part(options: dict[str, Any], workload: str) -> None:
    tp_of_gpt2 = {"tp": 4} if workload == "gpt2" and options.get("tp") == 8 else {}
    if workload == "tiny" and options.get("tp") == 8:
        with pytest.raises(mt.UsageError, match=r"num_kv_heads \(4\) must be a multiple of tp \(8\); use tp=4"):
            train(workload=workload, global_batch_size=16, microbatch_size=1, **options)
        return
    run = train(workload=workload, global_batch_size=16, microbatch_size=1, **options | tp_of_gpt2)
    assert run.step_time > 0  # the laws and the check of the final weights have held


ORDERS = ["1f1b", "combined_1f1b", "gpipe", "zb_h1", "zb_h2", "zb_1p", "zb_2p", "zbv", "dualpipe_v"]


@pytest.mark.few(2)
@pytest.mark.parametrize("order", ORDERS)
def test_an_order_runs_as_the_strategy_of_that_name(order: str) -> None:
    sizes: dict[str, Any] = {"world_size": 8, "num_layers": 8, "global_batch_size": 32, "microbatch_size": 1, "pp": 4}
    if order == "combined_1f1b":
        schedule = mt.schedules.interleaved_1f1b(4, 16, 1, in_pairs=True)
    else:
        schedule = getattr(mt.schedules, {"1f1b": "one_f_one_b"}.get(order, order))(4, 16)
    ours = mt.simulate("megatron", schedule=order, **sizes)
    del sizes["pp"]
    assert ours.events == mt.simulate(mt.from_schedule(schedule), **sizes).events


def test_torchs_interleaved_order_takes_fewer_microbatches_than_ranks_and_megatrons_does_not() -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 4, "microbatch_size": 2}
    ours = mt.simulate("megatron", schedule="interleaved", pp=4, num_chunks=2, **sizes)
    schedule = mt.schedules.interleaved_1f1b(4, 2, 2)
    assert ours.events == mt.simulate(mt.from_schedule(schedule), **sizes).events
    with pytest.raises(mt.StrategyError, match=r"num_microbatches \(2\) must be a multiple of pp \(4\)"):
        mt.simulate("megatron", pp=4, num_chunks=2, **sizes)


def test_an_unknown_order_names_those_that_there_are() -> None:
    with pytest.raises(mt.StrategyError, match=r'schedule must be one of "1f1b", .* got "zb-h1"|zb-h1'):
        train(4, pp=2, schedule="zb-h1")


@pytest.mark.parametrize("cp_comm_type", ["p2p", "all_gather"])
def test_a_shared_sequence_moves_the_bytes_of_its_keys_and_values(cp_comm_type: str) -> None:
    cp, tp = 2, 2
    run = train(cp * tp, cp=cp, tp=tp, cp_comm_type=cp_comm_type, global_batch_size=B)
    block = 2 * SBH // (cp * tp)  # keys and values of the rank's heads and tokens
    moved = Counter(event.size_bytes for event in run.logs[0] if event.typ == "send")
    gathered = communicated(run).get("all_gather", Counter())
    if cp_comm_type == "p2p":  # a block forward, again backward, and its gradient all the way round
        assert moved == {block: L * (2 * (cp - 1) + cp)}
    else:
        assert gathered == {cp * block: 2 * L}
        assert communicated(run)["reduce_scatter"] == {cp * block: L}
    sums = communicated(run)["all_reduce"]
    assert sums[SBH // cp] == 4 * L + 2  # over the parts, of the rank's tokens


@pytest.mark.few(2)
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(("cp", "tp"), [(2, 2), (4, 2), (2, 4)])
def test_ranks_of_a_sequence_hold_a_share_of_the_activations(
    cp: int, tp: int, sequence_parallel: bool, recompute: Recompute
) -> None:
    given: dict[str, Any] = {"tp": tp, "cp": cp, "sequence_parallel": sequence_parallel, "recompute": recompute}
    run = train(tp * cp, memory_by_kind=True, global_batch_size=B, **given)
    head = next(place for place, event in enumerate(run.logs[0]) if event.layer == 2 * L + 1 and event.typ == "forward")
    work = Work(B, S, Degrees(tp=tp, cp=cp, sequence_parallel=sequence_parallel))
    layers = sum(unit.saved_bytes(work, recompute) for unit in GPT.units()[:-1])
    entering = SBH // cp // tp + SBH // cp if sequence_parallel else SBH // cp  # the head's input, and gathered for it
    assert held_before_head(run, head) == layers + entering


@pytest.mark.parametrize("tp", [2, 4])
def test_pieces_of_shards_of_a_sequence_take_the_same_bytes_as_pairs(tp: int) -> None:
    cp = 2
    sums = communicated(train(tp * cp, tp=tp, cp=cp, global_batch_size=B))["all_reduce"]
    moved = communicated(train(tp * cp, tp=tp, cp=cp, sequence_parallel=True, global_batch_size=B))
    assert sums[SBH // cp] == moved["reduce_scatter"][SBH // cp] == 4 * L + 2
    assert moved["all_gather"] == {SBH // cp: 4 * L + 2 + 2 * L + 1}  # and once more what backward keeps as pieces
    norms = {4 * 2 * H: 1, 4 * (2 * H + H): 2 * L}  # what all parts hold
    assert {size: moved["all_reduce"][size] for size in norms} == norms


@pytest.mark.parametrize("zero", [1, 3])
def test_states_are_shared_within_groups_and_summed_over_the_others(zero: int) -> None:
    run = train(8, tp=2, zero=zero, shard_size=2, global_batch_size=8 * B)
    states = run.models[0].opt_states.values()
    assert {(state.shards, state.num_shards) for state in states} == {(frozenset([0]), 2)}
    groups = {event.group for event in run.logs[0] if event.typ == "reduce_scatter"}
    assert groups == {(0, 2)}
    layers = [event for event in run.logs[0] if event.typ == "all_reduce" and event.group == (0, 4)]
    held = [unit.num_held_parameters(Degrees(tp=2)) for unit in GPT.units()]
    held[0] -= GPT.vocab_size // 2 * GPT.hidden_size  # the gradient of the shared table counts with the head
    assert [event.size_bytes for event in layers] == [4 * size // 2 for size in held]


def test_sums_over_other_groups_run_beside_the_backward_too() -> None:
    options = {"num_layers": 3, "zero": 1, "shard_size": 2, "overlap_replicas": True}
    run = mt.simulate("megatron", world_size=8, global_batch_size=16, **options)  # type: ignore[arg-type]  # its own
    sums = [event for event in run.logs[0] if event.typ == "all_reduce" and event.group == (0, 2, 4, 6)]
    (last,) = (event for event in run.logs[0] if event.typ == "backward" and event.layer == 0)
    assert [event.time <= last.time for event in sums] == [True, False, False]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("modules", "word"),
    [("core_attn", "selective"), ("mlp", "full"), ("self_attn+mlp", "full"), ("layernorm", "full")],
)
@pytest.mark.parametrize("given", [{}, {"tp": 4}, {"tp": 2, "cp": 2, "sequence_parallel": True}], ids=str)
def test_single_modules_are_computed_again(modules: str, word: Recompute, given: dict[str, Any]) -> None:
    world_size = given.get("tp", 1) * given.get("cp", 1)
    usual, again, all_of_it = (
        train(world_size, global_batch_size=B, **given, **how)
        for how in ({}, {"recompute": modules}, {"recompute": word})
    )
    assert usual.step_time <= again.step_time <= all_of_it.step_time
    assert again.peak_memory <= usual.peak_memory
    if "cp" not in given:  # whose messages and loss hide both in so small a model
        assert all_of_it.peak_memory <= again.peak_memory
        assert again.step_time > usual.step_time
        assert again.peak_memory < usual.peak_memory
    repeated = [run.trained_model.recomputed_flop for run in (again, all_of_it) if run.trained_model]
    assert (repeated[0] == repeated[1]) is (modules in ("core_attn", "self_attn+mlp"))
    assert (repeated[0] > 0) is (modules != "layernorm")


def test_unknown_modules_name_those_that_there_are() -> None:
    with pytest.raises(mt.UsageError, match=r'recompute must be .*, or some of "core_attn", "self_attn", "layernorm"'):
        train(2, recompute="layernorm+norms")
    with pytest.raises(mt.UsageError, match=r'got "no"; did you mean "none", or some of .* joined by "\+"\?'):
        train(2, recompute="no")


def test_a_word_takes_multiplications_with_weights_in_eight_bits() -> None:
    model = replace(mt.models()["llama3-8b"], num_layers=4)
    given: dict[str, Any] = {"tp": 2, "fidelity": "kernels", "seq_len": 2048, "global_batch_size": 8}
    usual, eight = (train(8, workload=replace(model, precision=PRECISIONS[word]), **given) for word in ("bf16", "fp8"))
    assert eight.step_time < usual.step_time
    assert eight.peak_memory_bytes == usual.peak_memory_bytes
    seconds = [{e.layer: e.duration for e in run.logs[0] if e.typ == "forward"} for run in (usual, eight)]
    head = 2 * model.num_layers + 1
    assert seconds[1][head] == seconds[0][head]  # which keeps 16 bits
    assert all(seconds[1][layer] < seconds[0][layer] for layer in range(1, head))


@pytest.mark.parametrize("overlap_messages", [False, True])
def test_one_part_is_a_pipeline_of_replicas(overlap_messages: bool) -> None:
    same: Any = {"pp": 4, "global_batch_size": 16, "microbatch_size": 1, "platform": "nemo-h100"}
    same["overlap_messages"] = overlap_messages
    apart = replace(GPT, tied_embeddings=False)
    ours = train(zero=1, workload=apart, **same)
    theirs = mt.simulate("pp_zero1", world_size=8, workload=apart, **same)
    assert ours.step_time == theirs.step_time
    assert ours.peak_memory <= theirs.peak_memory  # which keeps a gradient while it is sent


def test_tensor_parallelism_divides_the_default_layers_too() -> None:
    run = train(4, tp=4, workload=None, num_layers=8, global_batch_size=8, microbatch_size=2)
    elements = 4096 * 4096 // 4
    assert run.models[0].memory_by_store()["weights"] == 8 * elements
    sums = communicated(run)["all_reduce"]
    assert sums == {2 * 2 * 4096 * 1024: 4 * (2 * 8 - 1)}  # all layers but the first, twice, and the first once


@pytest.mark.few(1)
@pytest.mark.parametrize("options", GRID, ids=str)
@pytest.mark.one_in(3)
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
