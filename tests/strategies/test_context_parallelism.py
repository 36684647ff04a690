"""Ring attention and gathered context parallelism: what they compute, send and hold, in closed form."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.operations import STRIDE
from minitrain.workloads.shapes import Degrees, Work
from minitrain.workloads.workload import RECOMPUTE, USUAL, Context, Recompute

A, G, S, H, V, L, B = 8, 2, 128, 256, 512, 3, 2
D = H // A
LLAMA = mt.Transformer(
    num_layers=L, hidden_size=H, num_heads=A, num_kv_heads=G, vocab_size=V, seq_len=S, mlp="swiglu", norm="rmsnorm",
    ffn_hidden_size=2 * H, positions="rotary", bias=False,
)  # fmt: skip
KV = 2 * 2 * S * B * G * D  # bytes of the keys and values of a microbatch, in 16 bits
IN_CONTEXT = ["ring_attention", "gathered_context"]
ATTENTIONS = [layer for layer, unit in enumerate(LLAMA.units()) if unit.core is not None]


def train(name: str, world_size: int, workload: Any = LLAMA, **options: Any) -> mt.Run:
    usual: dict[str, Any] = {"global_batch_size": 2 * B, "microbatch_size": B}
    return mt.simulate(name, world_size=world_size, workload=workload, **usual | options)


def moved(run: mt.Run, *typs: str, rank: int = 0) -> Counter[tuple[str, float]]:
    """Return how often which sizes were communicated within attentions."""
    events = (event for event in run.logs[rank] if event.layer in ATTENTIONS)
    return Counter((event.typ, event.size_bytes) for event in events if event.typ in typs)


# ---- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("cp", [2, 4, 8])
def test_a_ring_sends_its_keys_and_values_twice_round_and_their_gradients_home(cp: int, balanced: bool) -> None:
    run = train("ring_attention", cp, balanced=balanced)
    blocks = (cp - 1) + (cp - 1) + cp  # forward, backward, and gradients
    for rank in range(cp):
        sent = moved(run, "send", "recv", rank=rank)
        assert sent == {("send", KV / cp): blocks * L * 2, ("recv", KV / cp): blocks * L * 2}


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_a_gather_moves_all_keys_and_values_twice_and_their_gradients_once(cp: int) -> None:
    run = train("gathered_context", cp)
    within = moved(run, "all_gather", "reduce_scatter")
    assert within == {("all_gather", KV): 2 * L * 2, ("reduce_scatter", KV): L * 2}


@pytest.mark.parametrize("name", IN_CONTEXT)
def test_grouped_keys_are_as_small_on_the_wire_as_there_are_few(name: str) -> None:
    sizes = {
        groups: {size for _, size in moved(train(name, 2, mt.Transformer(
            num_layers=L, hidden_size=H, num_heads=A, num_kv_heads=groups, vocab_size=V, seq_len=S,
        )), "send", "all_gather")}
        for groups in (1, 2, 8)
    }  # fmt: skip
    (least,) = sizes[1]
    assert sizes == {groups: {groups * least} for groups in (1, 2, 8)}


@pytest.mark.parametrize("name", IN_CONTEXT)
def test_parts_of_the_heads_send_their_share(name: str) -> None:
    run = train(name, 4, cp=2, tp=2)
    assert {size for _, size in moved(run, "send", "recv")} <= {KV / 4}
    assert {size for _, size in moved(run, "all_gather", "reduce_scatter")} <= {KV / 2}


# ---- work ------------------------------------------------------------------------------------------------------------


def flop_of(run: mt.Run, rank: int, *typs: str) -> dict[str, float]:
    """Return the operations of one microbatch's passes on a rank, by type."""
    model, found = run.models[rank], dict.fromkeys(typs, 0.0)
    workload = model.runtime_predictor.workload
    for place, event in enumerate(run.logs[rank]):
        if event.typ in typs and 0 in event.samples and event.layer is not None:
            mode = model.pass_modes.get(place * STRIDE, USUAL)
            found[event.typ] += workload.compute_cost(event.typ, len(event.samples), event.layer, mode).work_flop
    return found


STEPS = ("keys_values", "attend", "project", "backward_project", "backward_attend", "backward_keys_values")


@pytest.mark.few(3)
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("name", IN_CONTEXT)
def test_all_ranks_together_do_the_work_of_one_device(name: str, balanced: bool, window: int | None) -> None:
    model = mt.Transformer(
        num_layers=L, hidden_size=H, num_heads=A, num_kv_heads=G, vocab_size=V, seq_len=S, window=window
    )
    run = train(name, 4, model, balanced=balanced)
    whole = flop_of(train("single", 1, model), 0, "forward", "backward")
    parts = [flop_of(run, rank, "forward", "backward", *STEPS) for rank in range(4)]
    total = {typ: sum(part[typ] for part in parts) for typ in parts[0]}
    assert total["forward"] + sum(total[step] for step in STEPS[:3]) == whole["forward"]
    assert total["backward"] + sum(total[step] for step in STEPS[3:]) == whole["backward"]


@pytest.mark.few(1)
@pytest.mark.parametrize("cp", [2, 4, 8])
def test_two_shards_a_rank_leave_equal_work_and_one_leaves_a_staircase(cp: int) -> None:
    balanced, plain = (train("ring_attention", cp, balanced=flag) for flag in (True, False))
    works = [flop_of(balanced, rank, "attend")["attend"] for rank in range(cp)]
    assert len(set(works)) == 1
    stairs = [flop_of(plain, rank, "attend")["attend"] for rank in range(cp)]
    tokens = S // cp
    pair = 2 * 2 * D * A * B * L  # operations of a query with a key, over heads, samples and layers
    assert stairs == [pair * (tokens * (tokens + 1) // 2 + rank * tokens**2) for rank in range(cp)]
    assert sum(works) == sum(stairs) == pair * S * (S + 1) // 2


def test_steps_of_a_ring_cost_what_the_mask_leaves() -> None:
    priced: dict[str, Any] = {"seq_len": 8192, "fidelity": "roofline"}  # by work alone, not by the shape of a block
    balanced, plain = (train("ring_attention", 4, balanced=flag, **priced) for flag in (True, False))
    durations = [
        [event.duration for event in run.logs[1] if event.typ == "attend" and event.layer == 1][:4]
        for run in (balanced, plain)
    ]
    own, *others = durations[0]
    assert len(set(others)) == 1  # each other block has half of its pairs left
    assert own > others[0]  # its diagonal belongs to it
    assert durations[1][2:] == [0, 0]  # all keys of ranks 3 and 2 lie behind the queries of rank 1
    assert durations[1][1] > durations[1][0] > 0


@pytest.mark.parametrize("shards", [{0}, {3}, {0, 7}, {1, 2}, {2, 5}])
@pytest.mark.parametrize("window", [None, 1, 3, 5, 9])
def test_pairs_are_counted_as_one_by_one(shards: set[int], window: int | None) -> None:
    size, num_shards = 4, 8
    found = Context(frozenset(shards), num_shards, frozenset(range(num_shards))).seen(size, window)
    queries = [shard * size + token for shard in shards for token in range(size)]
    seen = sum(
        0 <= query - key < (window or num_shards * size) for query, key in product(queries, range(num_shards * size))
    )
    assert sum(pairs for _, _, pairs in found) == seen


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.few(4)
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("name", IN_CONTEXT)
def test_a_rank_keeps_its_share_of_the_sequence_to_the_byte(name: str, cp: int, tp: int, recompute: Recompute) -> None:
    run = train(name, cp * tp, cp=cp, tp=tp, recompute=recompute, memory_by_kind=True, global_batch_size=B)
    head = len(LLAMA.units()) - 1
    place = next(p for p, e in enumerate(run.logs[0]) if e.typ == "forward" and e.layer == head)
    held = sum(c.elements for c in run.memory_journals[0] if c.kind == "activations" and c.place <= place)
    work = Work(B, S, Degrees(cp=cp, tp=tp))
    kept = sum(unit.saved_bytes(work, recompute) for unit in LLAMA.units()[:head])
    assert held == kept + 2 * S * B * H // cp  # and the head's input


@pytest.mark.parametrize("name", IN_CONTEXT)
def test_a_gather_holds_all_keys_and_values_and_a_ring_one_block_more(name: str) -> None:
    run = train(name, 8, memory_by_kind=True)
    first = next(place for place, event in enumerate(run.logs[0]) if event.typ == "keys_values")
    last = next(place for place, event in enumerate(run.logs[0]) if event.typ == "project")
    changes = [c for c in run.memory_journals[0] if first < c.place <= last and c.elements > 0]
    sizes = {change.elements for change in changes if change.kind in ("activations", "in_flight")}
    attended = S * B * (2 * H + 4 * A) // 8  # and its log-sum-exp
    queries_with_input = max(sizes - {attended, KV, KV // 8}, default=0)
    assert sizes - {queries_with_input} == {attended, KV // 8} | ({KV} if name == "gathered_context" else set())


# ---- every way to run ------------------------------------------------------------------------------------------------

GRID: list[dict[str, Any]] = [
    {"world_size": 4},
    {"world_size": 4, "balanced": False},
    {"world_size": 8, "cp": 2},
    {"world_size": 8, "cp": 2, "tp": 2},
    {"world_size": 8, "cp": 4, "balanced": False, "recompute": "full"},
    {"world_size": 2, "cp": 1},
    {"world_size": 4, "cp": 2, "workload": "gpt2", "seq_len": 256, "recompute": "selective"},
    {"world_size": 4, "cp": 2, "tp": 2, "workload": None, "num_layers": 4},
    {"world_size": 16, "cp": 4, "tp": 2},
]


@pytest.mark.few(1)
@pytest.mark.parametrize("options", GRID, ids=str)
@pytest.mark.parametrize("name", IN_CONTEXT)
@pytest.mark.one_in(3)
def test_strict_folded_and_summary_runs_agree(name: str, options: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"global_batch_size": 8, "microbatch_size": 1, **options}
    plain = train(name, fold=False, **sizes)
    assert train(name, fold=True, **sizes).summary() == plain.summary()
    assert train(name, log="summary", **sizes).summary() == plain.summary()
    strict = train(name, strict=True, **sizes)
    assert [list(log) for log in strict.logs] == [list(log) for log in plain.logs]
    assert strict.peak_memory == plain.peak_memory


@pytest.mark.few(1)
@pytest.mark.parametrize("name", IN_CONTEXT)
def test_replicas_and_parts_fold_and_the_ranks_of_a_sequence_stay_apart(name: str) -> None:
    folded = train(name, 32, cp=4, tp=2, global_batch_size=8, microbatch_size=1, fold=True)
    assert len(folded.class_logs) == 4
    full = train(name, 32, cp=4, tp=2, global_batch_size=8, microbatch_size=1, fold=False)
    assert folded.summary() == full.summary()


@pytest.mark.parametrize("name", IN_CONTEXT)
def test_a_saved_run_is_read_as_it_was(name: str, tmp_path: Any) -> None:
    run = train(name, 4, memory_by_kind=True)
    run.save(tmp_path / "run.jsonl")
    found = mt.load_run(tmp_path / "run.jsonl")
    assert found.logs == run.logs
    assert found.summary() == run.summary()
    run.write_chrome_trace(tmp_path / "trace.json")
    assert b"backward_attend" in (tmp_path / "trace.json").read_bytes()


@pytest.mark.ci
def test_a_ring_hides_its_messages_where_blocks_are_large() -> None:
    exposed = [
        mt.simulate(
            "ring_attention", world_size=8, workload="llama3-8b", seq_len=seq_len, global_batch_size=1
        ).exposed_comm_fraction
        for seq_len in (8192, 131072)
    ]
    assert exposed[1] < exposed[0] / 4


def test_one_rank_of_a_sequence_is_a_replica() -> None:
    ours, theirs = train("ring_attention", 4, cp=1, microbatch_size=1), train("ddp", 4, microbatch_size=1)
    flops = [flop_of(run, 0, "forward", "backward", *STEPS) for run in (ours, theirs)]
    assert sum(flops[0].values()) == sum(flops[1].values())


@pytest.mark.few(3)
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("name", IN_CONTEXT)
def test_steps_run_the_kernels_of_an_undivided_attention(name: str, recompute: Recompute) -> None:
    sizes: dict[str, Any] = {"fidelity": "kernels", "recompute": recompute, "seq_len": 65536}  # no launch limits any
    ours, theirs = train(name, 2, cp=1, **sizes), train("ddp", 2, **sizes)
    assert ours.breakdown.computing[0] == pytest.approx(theirs.breakdown.computing[0], rel=1e-12)
    sizes = {"seq_len": 16384, "platform": "components"}
    alone, ring = (train(name, cp, cp=cp, **sizes).breakdown.computing[0] for cp in (1, 4))
    assert alone / 4 < ring < alone / 3


def test_measured_layers_are_of_whole_sequences(tmp_path: Path) -> None:
    table = tmp_path / "layers.csv"
    table.write_text(f"microbatch,tp,first_layer,last_layer,forward_s,backward_s,update_s\n{B},1,0,{L + 1},1,2,1\n")
    with pytest.raises(
        mt.UsageError, match=r"has times of whole sequences, and forward of layer 0 is of shards of one"
    ):
        train("ring_attention", 2, prices=mt.MeasuredLayers.read(table))


def test_layers_that_say_nothing_of_tokens_are_not_cut() -> None:
    layer = mt.hw.layer(lambda w, x: x @ w, weights=(8, 8), sample=(4, 8), world_size=2)
    with pytest.raises(mt.UsageError, match="does not say which of its layers take tokens one by one"):
        train("ring_attention", 2, None, hardware=layer, num_layers=2)


def test_a_sequence_that_does_not_divide_names_a_number_that_does() -> None:
    with pytest.raises(
        mt.UsageError, match=r"seq_len \(100\) must be a multiple of num_shards \(6\), .* use seq_len=96 or 102"
    ):
        train("ring_attention", 3, seq_len=100)
