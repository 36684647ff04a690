"""Experts among ranks: what is exchanged, computed and held, in closed form, and that all ways to run agree."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.machine.predictor import RuntimePredictor
from minitrain.workloads.expert_layers import ROUTER, ExpertPass, Piece
from minitrain.workloads.shapes import Degrees, Work
from minitrain.workloads.transformer_workload import TransformerWorkload
from minitrain.workloads.unit_kernels import DEFAULT_STYLE
from minitrain.workloads.workload import USUAL

S, H, E, K, F, L = 64, 128, 8, 2, 96, 3
MODEL = mt.Transformer(
    num_layers=L,
    hidden_size=H,
    num_heads=8,
    num_kv_heads=4,
    vocab_size=256,
    seq_len=S,
    ffn_hidden_size=256,
    mlp="swiglu",
    norm="rmsnorm",
    num_experts=E,
    experts_per_token=K,
    num_shared_experts=1,
    moe_ffn_hidden_size=F,
    moe_layers=(1, 2),
    name="three layers, two of experts",
)
MOE_LAYERS = 2
UNIT = 4  # of the first layer with experts: embedding, attention 0, mlp 0, attention 1, moe 1


def train(strategy: str = "moe", world_size: int = 8, **options: Any) -> mt.Run:
    usual: dict[str, Any] = {"workload": MODEL, "global_batch_size": 16, "microbatch_size": 1}
    return mt.simulate(strategy, world_size=world_size, **usual | options)


def exchanges(run: mt.Run, rank: int = 0) -> Counter[float]:
    """Return how often which bytes were exchanged by a rank."""
    return Counter(event.size_bytes for event in run.logs[rank] if event.typ == "all_to_all")


# ---- what is exchanged -----------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize("microbatch_size", [1, 2])
def test_an_exchange_moves_tokens_times_k_times_h_times_two_bytes(ep: int, microbatch_size: int) -> None:
    run = train(ep=ep, microbatch_size=microbatch_size)
    tokens = microbatch_size * S
    num_microbatches = 16 // 8 // microbatch_size
    # to the experts and back, forward and backward
    assert exchanges(run) == {tokens * K * H * 2: 4 * MOE_LAYERS * num_microbatches}


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_an_exchange_takes_the_time_of_what_does_not_stay(ep: int) -> None:
    run = train(ep=ep, fidelity="roofline")
    event = next(event for event in run.logs[0] if event.typ == "all_to_all")
    predictor = run.models[0].runtime_predictor
    assert isinstance(predictor, RuntimePredictor)
    tier = predictor.network
    sent = S * K * H * 2 * (ep - 1) / ep
    assert event.duration == pytest.approx(tier.latency + sent / (tier.bandwidth * 1e9 * tier.efficiency), rel=1e-12)
    assert event.group == (tuple(range(ep)) if ep < 8 else None)


def test_without_partners_nothing_travels() -> None:
    run = train(ep=1)
    assert {event.duration for event in run.logs[0] if event.typ == "all_to_all"} == {0.0}


@pytest.mark.parametrize("imbalance", [1.5, 4.0])
def test_the_busiest_part_sets_the_bytes_of_every_exchange(imbalance: float) -> None:
    even, uneven = train(ep=4), train(ep=4, imbalance=imbalance)
    first = Fraction(str(imbalance)) / E
    busiest = 4 * (first + (1 - first) / (E - 1))  # part 0 has the busiest expert and one other
    (moved,), (moved_evenly,) = exchanges(uneven), exchanges(even)
    assert moved == pytest.approx(float(busiest) * moved_evenly, abs=H * 2)
    assert uneven.step_time > even.step_time


def test_a_capacity_bounds_the_busiest_part_and_says_what_is_dropped() -> None:
    full, bounded = train(ep=4, imbalance=4), train(ep=4, imbalance=4, capacity_factor=1.25)
    assert bounded.step_time < full.step_time
    assert full.dropped_token_fraction == 0
    first = Fraction(4, E)
    assert bounded.dropped_token_fraction == pytest.approx(float(first - Fraction(5, 4) / E))
    assert bounded.summary()["dropped_token_fraction"] == bounded.dropped_token_fraction
    assert "dropped_token_fraction" not in mt.simulate("ddp", world_size=2, workload="tiny").summary()


def test_a_histogram_of_experts_is_taken_as_it_is() -> None:
    histogram = [4, 2, 1, 1, 2, 2, 2, 2]
    run = train(ep=4, imbalance=histogram)
    (moved,) = exchanges(run)
    assert moved == 4 * 6 * S * K * H * 2 // 16
    assert train(ep=4, imbalance=[1] * 8).step_time == train(ep=4).step_time


def test_loads_of_a_file_are_taken_layer_by_layer(tmp_path: Path) -> None:
    loads = [[4, 2, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 1, 9]]
    path = tmp_path / "loads.csv"
    lines = [",".join(map(str, line)) for line in loads]
    path.write_text("\n".join(lines))
    both, each = train(ep=4, imbalance=str(path)), [train(ep=4, imbalance=line) for line in loads]
    for place, layer in enumerate(place for place, unit in enumerate(MODEL.units()) if unit.kind == "moe"):
        found, wanted = (
            [event.size_bytes for event in run.logs[0] if event.typ == "all_to_all" and event.layer == layer]
            for run in (both, each[place])
        )
        assert found == wanted
    path.write_text(lines[1])
    assert train(ep=4, imbalance=str(path)).logs == each[1].logs  # one line is for all layers, and files are read again
    for text, message in (
        ("\n".join([*lines, lines[0]]), "on a line for each of 2 layers .* found 3 lines"),
        ("1,2,three", "cannot read the loads of experts"),
        ("1,2,3", "a number of at least 0 for each of the 8 experts"),
        ("", "found 0 lines"),
    ):
        path.write_text(text)
        with pytest.raises(mt.UsageError, match=message):
            train(ep=4, imbalance=str(path))
    with pytest.raises(mt.UsageError, match="cannot read the loads of experts"):
        train(ep=4, imbalance=str(tmp_path / "none"))


# ---- what is computed and held ---------------------------------------------------------------------------------------

ROUTING = {"forward": ("route", "combine"), "backward": ("backward_combine", "backward_route")}


def layer_with_experts(name: str) -> tuple[TransformerWorkload, int, ExpertPass]:
    """Return a model, its last layer with experts, and all copies of two samples' tokens."""
    workload = TransformerWorkload(mt.models()[name], 64)
    return workload, max(workload.experts.layers), ExpertPass(num_parts=1, num_copies=workload.experts.num_copies(2))


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "tiny-moe"])
def test_passes_and_pieces_add_up_to_the_whole_layer(name: str) -> None:
    workload, layer, copies = layer_with_experts(name)
    for typ, around in ROUTING.items():
        whole = workload.compute_cost(typ, 2, layer)
        passes = [workload.compute_cost(each, 2, layer) for each in around]
        passes.append(workload.compute_cost(typ, 2, layer, copies))
        assert sum(cost.work_flop for cost in passes) == whole.work_flop
        assert sum(cost.traffic_bytes for cost in passes) == whole.traffic_bytes
    halves = [workload.compute_cost(f"backward_{half}", 2, layer, copies) for half in ("input", "weight")]
    assert sum(half.work_flop for half in halves) == workload.compute_cost("backward", 2, layer, copies).work_flop
    unit = workload.units[layer]
    pieces = [workload.experts.num_parameters(layer, piece) for piece in (ROUTER, Piece("experts"))]
    assert sum(pieces) == unit.num_held_parameters()
    kept = workload.experts.kept_by_router(layer, 2, combined=True)
    kept += workload.experts.kept_by_experts(layer, copies.num_copies)
    assert kept == unit.saved_bytes(Work(2, 64))


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_a_rank_holds_a_part_of_the_experts_and_the_rest_whole(ep: int) -> None:
    stored = train(ep=ep).models[0].memory_by_store()
    expert = 3 * H * F
    held = MODEL.num_parameters - MOE_LAYERS * (E - E // ep) * expert
    assert held == sum(unit.num_held_parameters(Degrees(ep=ep)) for unit in MODEL.units())
    assert stored["weights"] == 2 * held
    assert stored["opt_states"] == 12 * held


@pytest.mark.parametrize("ep", [2, 4])
def test_zero_shards_each_piece_among_those_that_hold_the_same(ep: int) -> None:
    states = train(ep=ep, zero=1).models[0].opt_states
    experts = 12 * MOE_LAYERS * (E // ep) * 3 * H * F / (8 // ep)
    found = {key: state for key, state in states.items() if isinstance(key, tuple)}
    assert {state.num_shards for state in found.values()} == {8 // ep}
    assert sum(train(ep=ep, zero=1).models[0]._account.units_of(state) for state in found.values()) == experts * 2**40
    assert {state.num_shards for key, state in states.items() if not isinstance(key, tuple)} == {8}


@pytest.mark.parametrize("overlap_replicas", [False, True])
def test_weights_in_shards_are_gathered_once_forward_and_once_for_all_that_backward_does(
    overlap_replicas: bool,
) -> None:
    """Also where backward takes a layer again: Megatron's FSDP shards its weights again when their gradients are there
    (`fsdp/src/megatron_fsdp/megatron_fsdp.py`).
    """
    run = train("megatron", ep=4, zero=3, recompute="full", overlap_replicas=overlap_replicas)
    gathers = Counter((event.layer, event.size_bytes) for event in run.logs[0] if event.typ == "all_gather")
    num_microbatches = 2
    # embedding and head among all others
    assert set(gathers.values()) == {2 * num_microbatches}
    assert len(gathers) == 2 * L + 2 + MOE_LAYERS


def test_gradients_of_a_block_are_summed_over_ranks_while_the_block_before_computes() -> None:
    log = train("megatron", ep=4, zero=3, microbatch_size=2, overlap_replicas=True).logs[0]
    attention, mixture = UNIT - 1, UNIT
    sums = [event for event in log if event.typ == "reduce_scatter" and event.layer in (attention, mixture)]
    assert Counter(event.layer for event in sums) == {attention: 1, mixture: 2}
    last_awaited = {event.awaited or 0 for event in sums}
    of_block_before = next(i for i, event in enumerate(log) if event.typ == "backward" and event.layer == attention - 1)
    assert len(last_awaited) == 1
    assert last_awaited.pop() > of_block_before


@pytest.mark.parametrize("ep", [1, 4])
def test_every_rank_computes_as_much_as_without_experts_divided(ep: int) -> None:
    """Balanced tokens: a rank is sent as many copies as it sends, so that its FLOPs do not depend on ep."""
    one, run = train(ep=1), train(ep=ep)
    assert flop(run) == flop(one)
    assert run.mfu is not None


def flop(run: mt.Run) -> float:
    """Return the FLOPs of all experts' passes of rank 0."""
    workload: Any = run.models[0].runtime_predictor.workload
    modes = [mode for mode in run.models[0].pass_modes.values() if isinstance(mode, ExpertPass)]
    return float(sum(workload.compute_cost("forward", 1, UNIT, mode).work_flop for mode in modes))


def test_what_a_layer_keeps_is_on_the_ranks_that_computed_it() -> None:
    run = train(ep=4, microbatch_size=2, memory_by_kind=True)
    last = max(place for place, event in enumerate(run.logs[0]) if event.typ == "forward")
    held = sum(
        change.elements for change in run.memory_journals[0] if change.kind == "activations" and change.place <= last
    )
    kept = sum(unit.saved_bytes(Work(2, S)) for unit in MODEL.units()[:-1])
    entering_the_head = 2 * S * H * 2
    assert held == kept + entering_the_head


def test_one_part_is_data_parallelism() -> None:
    ours, theirs = train(ep=1, fidelity="roofline"), train("ddp", fidelity="roofline")
    compute = {"forward", "backward", "route", "combine", "backward_combine", "backward_route"}

    def busy(run: mt.Run) -> float:
        return sum(event.duration for event in run.logs[0] if event.typ in compute)

    assert busy(ours) >= busy(theirs)  # a layer in passes: each is limited by arithmetic or by traffic on its own
    assert ours.models[0].memory_by_store()["weights"] == theirs.models[0].memory_by_store()["weights"]


def test_layers_without_experts_are_trained_as_ddp_trains_them() -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 8, "microbatch_size": 1}
    ours, theirs = mt.simulate("moe", ep=2, **sizes), mt.simulate("ddp", **sizes)
    assert ours.events == theirs.events


# ---- DeepSeek-V3's schedule ------------------------------------------------------------------------------------------


def test_a_pair_of_passes_hides_its_exchanges() -> None:
    sizes: dict[str, Any] = {"workload": "mixtral-8x7b", "seq_len": 2048, "world_size": 8, "global_batch_size": 64}
    sizes |= {"microbatch_size": 1, "network": "flat"}
    run = mt.simulate("deepseek_like", pp=2, ep=4, **sizes)
    plain = mt.simulate("moe", ep=4, **sizes)
    assert run.exposed_comm_fraction < 0.5 * plain.exposed_comm_fraction
    hidden = [event for event in run.logs[0] if event.typ == "all_to_all" and event.awaited is not None]
    assert hidden


def test_without_experts_it_is_dualpipe_v() -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 16, "microbatch_size": 1, "pp": 2}
    ours, theirs = mt.simulate("deepseek_like", **sizes), mt.simulate("dualpipe_v", **sizes)
    passes = ("forward", "backward", "backward_input", "backward_weight")
    assert ours.step_time == theirs.step_time
    for mine, other in zip(ours.logs, theirs.logs, strict=True):
        assert [(e.typ, e.layer, e.samples) for e in mine if e.typ in passes] == [
            (e.typ, e.layer, e.samples) for e in other if e.typ in passes
        ]


# ---- all ways to run -------------------------------------------------------------------------------------------------

GRID: list[tuple[str, dict[str, Any]]] = [
    ("moe", {"ep": 2, "zero": 1}),
    ("moe", {"ep": 1}),
    ("moe", {"ep": 8, "capacity_factor": 0.75}),
    ("moe", {"ep": 4, "microbatch_size": 2, "recompute": "full"}),
    ("deepseek_like", {"pp": 2, "ep": 4, "zero": 1, "recompute": "full", "capacity_factor": 0.75}),
    ("deepseek_like", {"pp": 2}),
    ("deepseek_like", {"pp": 1, "ep": 8}),
    ("deepseek_like", {"pp": 2, "ep": 2, "zero": 1}),
    ("deepseek_like", {"pp": 4, "ep": 2, "layers_per_stage": [1] * 8}),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("strategy", "options"), GRID, ids=str)
@pytest.mark.one_in(2)
def test_folded_summary_and_strict_runs_agree(strategy: str, options: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"global_batch_size": 64, **options}
    plain = train(strategy, fold=False, **sizes)
    folded = train(strategy, fold=True, **sizes)
    assert folded.summary() == plain.summary()
    assert len(folded.class_logs) == options.get("pp", 1)
    assert train(strategy, log="summary", **sizes).summary() == plain.summary()
    strict = train(strategy, strict=True, **sizes)
    assert [list(log) for log in strict.logs] == [list(log) for log in plain.logs]
    assert plain.peak_memory <= strict.peak_memory <= plain.peak_memory + 2 * S * H * K * 2


BESIDE: list[dict[str, Any]] = [
    {"cp": 2, "ep": 2},
    {"tp": 2, "ep": 8, "sequence_parallel": True, "zero": 1},
    {"cp": 2, "ep": 8, "tp": 2, "sequence_parallel": True, "zero": 1, "shard_size": 2},
    {"tp": 2, "ep": 2, "sequence_parallel": True},
    {"tp": 2, "ep": 2, "pp": 2, "sequence_parallel": True, "schedule": "zb_h1"},
    {"tp": 2, "ep": 4, "pp": 2, "sequence_parallel": True, "zero": 3, "schedule": "dualpipe_v"},
]
"""Experts beside other divisions of a layer, and the classes of ranks that fold."""


@pytest.mark.ci
@pytest.mark.parametrize("options", BESIDE, ids=str)
@pytest.mark.one_in(2)
def test_experts_beside_other_divisions_agree_in_all_ways_to_run(options: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"global_batch_size": 32, **options}
    plain = train("megatron", fold=False, **sizes)
    assert train("megatron", fold=True, **sizes).summary() == plain.summary()
    assert train("megatron", log="summary", **sizes).summary() == plain.summary()
    strict = train("megatron", strict=True, **sizes)
    assert [list(log) for log in strict.logs] == [list(log) for log in plain.logs]


@pytest.mark.parametrize(("schedule", "is_hidden"), [("1f1b", False), ("combined_1f1b", True)])
def test_only_orders_with_pairs_compute_while_gradients_of_tokens_travel(schedule: str, is_hidden: bool) -> None:
    given: dict[str, Any] = {"ep": 2, "pp": 2, "num_chunks": 2, "schedule": schedule}
    runs = [train("megatron", 4, overlap_experts=overlaps, **given) for overlaps in (True, False)]
    assert (runs[0].events != runs[1].events) is is_hidden
    assert ("backward_weight" in {event.typ for event in runs[0].events}) is is_hidden


def test_groups_of_experts_across_parts_and_replicas_are_one_class() -> None:
    given: dict[str, Any] = {"tp": 2, "ep": 4, "pp": 2, "sequence_parallel": True, "zero": 1}
    assert len(train("megatron", 32, global_batch_size=32, fold=True, **given).class_logs) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("tp", [1, 2])
def test_an_exchange_moves_the_tokens_that_a_rank_has_of_its_sequences(tp: int, cp: int) -> None:
    run = train("megatron", 8, tp=tp, cp=cp, ep=4, sequence_parallel=tp > 1)
    num_microbatches = 16 // (8 // (tp * cp))
    assert exchanges(run) == {S // (tp * cp) * K * H * 2: 4 * MOE_LAYERS * num_microbatches}
    group = next(event.group for event in run.logs[0] if event.typ == "all_to_all")
    assert group == (0, 1, 2, 3)


@pytest.mark.parametrize(("tp", "cp"), [(2, 1), (1, 2), (2, 2)])
def test_ranks_that_share_sequences_keep_their_share_of_what_experts_keep(tp: int, cp: int) -> None:
    run = train("megatron", tp * cp, tp=tp, cp=cp, ep=2, sequence_parallel=tp > 1, global_batch_size=1)
    held = {event.typ: event for event in run.logs[0] if event.typ in ("route", "combine")}
    assert held
    workload: Any = run.models[0].runtime_predictor.workload
    for combined in (False, True):
        whole, share = (workload.experts.kept_by_router(UNIT, 1, parts, combined=combined) for parts in (1, tp * cp))
        assert share == whole // (tp * cp)


def test_tokens_beside_parts_need_shards_of_the_sequence() -> None:
    with pytest.raises(
        mt.StrategyError, match=r"experts that are divided beside tp \(2\) need .* sequence_parallel=True"
    ):
        train("megatron", tp=2, ep=2)


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", ["moe", "deepseek_like"])
def test_experts_that_get_different_shares_fold_to_one_rank_for_each_part_of_a_stage(strategy: str) -> None:
    options: dict[str, Any] = {"ep": 4, "imbalance": 2, "global_batch_size": 64, "world_size": 32}
    options |= {"pp": 2} if strategy == "deepseek_like" else {}
    plain, strict = train(strategy, **options), train(strategy, strict=True, **options)
    assert [list(log) for log in strict.logs] == [list(log) for log in plain.logs]
    assert len(set(plain.peak_memory_per_rank)) > 1
    folded = train(strategy, fold=True, **options)
    assert len(folded.class_logs) == options.get("pp", 1) * options["ep"]
    assert folded.summary() == plain.summary()
    assert folded.peak_memory_per_rank == plain.peak_memory_per_rank
    assert [list(log) for log in folded.logs] == [list(log) for log in plain.logs]


def test_groups_that_cross_nodes_fold_too() -> None:
    for ep in (4, 16):
        sizes: dict[str, Any] = {"ep": ep, "zero": 1, "global_batch_size": 32}
        full = train(world_size=32, workload=EXPERTS_16, fold=False, **sizes)
        folded = train(world_size=32, workload=EXPERTS_16, fold=True, **sizes)
        assert folded.summary() == full.summary()
        assert len(folded.class_logs) == 1


EXPERTS_16 = mt.Transformer(
    num_layers=2, hidden_size=64, num_heads=8, vocab_size=256, seq_len=S, num_experts=16, experts_per_token=4
)


def test_runs_are_saved_and_read_again(tmp_path: Any) -> None:
    run = train("deepseek_like", pp=2, ep=4, imbalance=2, capacity_factor=1.5, global_batch_size=64)
    run.save(tmp_path / "run.jsonl")
    again = mt.load_run(tmp_path / "run.jsonl")
    assert again.events == run.events
    assert again.dropped_token_fraction == run.dropped_token_fraction == pytest.approx(0.25 * 0.25)
    assert again.summary() == run.summary()


def test_the_critical_path_and_the_waits_know_exchanges() -> None:
    run = train(ep=4, imbalance=4, global_batch_size=64, fidelity="roofline")  # as kernels, launches take longest
    assert run.explain().critical_path.by_typ()["all_to_all"] > 0
    waits = [event.waited_for for event in run.events if event.typ == "all_to_all" and event.waited_for is not None]
    assert {rank % 4 for rank in waits} >= {0}  # part 0 has the busiest expert


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "tiny-moe"])
def test_the_kernels_of_the_passes_are_those_of_the_whole_layer(name: str) -> None:
    workload, layer, copies = layer_with_experts(name)
    for typ, around in ROUTING.items():
        whole = workload.pass_kernels(typ, 2, layer, USUAL, DEFAULT_STYLE)
        passes = [workload.pass_kernels(each, 2, layer, USUAL, DEFAULT_STYLE) for each in around]
        passes.append(workload.pass_kernels(typ, 2, layer, copies, DEFAULT_STYLE))
        assert Counter(kernel for each in passes for kernel in each.kernels) == Counter(whole.kernels)
        assert sum(each.num_launches for each in passes) == whole.num_launches


def test_experts_are_priced_by_kernels_too() -> None:
    sizes: dict[str, Any] = {"workload": "mixtral-8x7b", "seq_len": 1024, "global_batch_size": 8, "fidelity": "kernels"}
    run = train(ep=8, **sizes)
    assert run.mfu is not None
    assert 0 < run.mfu < 1
