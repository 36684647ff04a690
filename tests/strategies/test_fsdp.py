"""FSDP's units: what is gathered when, what that costs and holds, and what it moves, in closed form."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

import minitrain as mt

H, V, L, S = 128, 256, 4, 96
GPT = mt.Transformer(num_layers=L, hidden_size=H, num_heads=8, vocab_size=V, seq_len=S, tied_embeddings=False)
UNITS = (range(1), *(range(1 + 2 * layer, 3 + 2 * layer) for layer in range(L)), range(2 * L + 1, 2 * L + 2))
LARGE: dict[str, Any] = {"workload": "llama3-8b", "seq_len": 8192, "world_size": 8, "global_batch_size": 8}


def train(world_size: int = 8, **options: Any) -> mt.Run:
    usual: dict[str, Any] = {"workload": GPT, "global_batch_size": 16, "microbatch_size": 1}
    return mt.simulate("fsdp", world_size=world_size, **usual | options)


def parameters(unit: range) -> int:
    """Return the parameters that a rank holds of a unit that is whole."""
    return sum(GPT.units()[layer].num_held_parameters() for layer in unit)


def gathered(run: mt.Run, rank: int = 0) -> list[tuple[int | None, float]]:
    """Return the first layer and the bytes of each gather."""
    return [(event.layer, event.size_bytes) for event in run.logs[rank] if event.typ == "all_gather"]


def test_a_unit_is_a_transformer_layer() -> None:
    assert train().models[0].blocks == UNITS


def test_layers_that_are_alike_are_units_of_their_own() -> None:
    assert train(workload=None, num_layers=3).models[0].blocks == (range(1), range(1, 2), range(2, 3))


def test_attention_and_mlp_are_gathered_together_and_the_next_unit_beside_them() -> None:
    run = train(global_batch_size=8)
    forwards = [event for event in run.logs[0] if event.typ == "forward"]
    order = [event.layer for event in run.logs[0] if event.typ in ("all_gather", "forward")]
    assert order[:5] == [0, 1, 0, 3, 1]  # embedding; the first layer beside it; ... the second beside the first
    assert gathered(run)[: len(UNITS)] == [(unit[0], 2 * parameters(unit)) for unit in UNITS]
    assert [event.layer for event in forwards] == list(range(2 * L + 2))


@pytest.mark.parametrize("microbatches", [1, 2])
def test_backward_gathers_again_what_forward_has_freed(microbatches: int) -> None:
    sizes: dict[str, Any] = {"global_batch_size": 8 * microbatches}
    again, kept = Counter(gathered(train(**sizes))), Counter(gathered(train(reshard_after_forward=False, **sizes)))
    of_units = {(unit[0], 2 * parameters(unit)): unit for unit in UNITS}
    assert kept == dict.fromkeys(of_units, microbatches)
    assert again == {key: microbatches * (1 if unit is UNITS[-1] else 2) for key, unit in of_units.items()}


def test_gradients_are_reduced_a_unit_at_a_time_in_the_precision_they_are_kept_in() -> None:
    run = train(global_batch_size=8)
    reduced = [(event.layer, event.size_bytes) for event in run.logs[0] if event.typ == "reduce_scatter"]
    assert reduced == [(unit[0], 4 * parameters(unit)) for unit in reversed(UNITS)]


def test_without_sync_gradients_stay_whole_until_the_last_microbatch_reduces_them() -> None:
    sizes: dict[str, Any] = {"global_batch_size": 24, "microbatch_size": 1}
    each, once = (train(no_sync=flag, **sizes) for flag in (False, True))
    reduced, alone = (
        [(event.layer, event.size_bytes) for event in run.logs[0] if event.typ == "reduce_scatter"]
        for run in (each, once)
    )
    assert reduced == 3 * alone
    assert alone == [(unit[0], 4 * parameters(unit)) for unit in reversed(UNITS)]
    whole = 4 * sum(map(parameters, UNITS))
    assert 0.5 * whole < once.peak_memory_bytes - each.peak_memory_bytes < whole


def test_a_unit_is_gathered_once_the_one_before_it_begins_and_no_sooner() -> None:
    run = train(world_size=4, global_batch_size=4)
    gathers = [event for event in run.logs[0] if event.typ == "all_gather"]
    begun = {event.layer: event.launched for event in run.logs[0] if event.typ == "forward"}
    for before, unit in pairwise(UNITS):
        gather = gathers[UNITS.index(unit)]
        assert gather.layer == unit[0]
        assert gather.launched == begun[before[0]]


@pytest.mark.parametrize("reshard_after_forward", [True, False])
def test_communication_hides_under_enough_work(reshard_after_forward: bool) -> None:
    run = mt.simulate("fsdp", reshard_after_forward=reshard_after_forward, **LARGE)
    plain = mt.simulate("zero3", **LARGE)
    assert run.exposed_comm_fraction < plain.exposed_comm_fraction / 10
    assert run.step_time < plain.step_time


def test_keeping_units_whole_costs_memory_and_saves_gathers() -> None:
    freed, kept = (mt.simulate("fsdp", reshard_after_forward=each, **LARGE) for each in (True, False))
    whole = 2 * sum(unit.num_held_parameters() for unit in mt.models()["llama3-8b"].units())
    assert 0.5 * whole < kept.peak_memory - freed.peak_memory < whole
    assert len(gathered(kept)) < len(gathered(freed))


def test_layers_that_are_alike_train_as_zero3_with_prefetch_but_for_the_last_ones_second_gather() -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 6, "global_batch_size": 16}
    units, layers = mt.simulate("fsdp", **sizes), mt.simulate("zero3_prefetch", **sizes)
    last = (5, 2 * 4096 * 4096)
    assert Counter(gathered(units)) + Counter([last]) == Counter(gathered(layers))
    assert units.peak_memory == layers.peak_memory


def test_copies_gather_inside_their_shards_and_sum_across_a_unit_at_a_time() -> None:
    run = train(replicas=2)
    for rank, log in enumerate(run.logs):
        copy, place = divmod(rank, 4)
        inside, across = tuple(range(4 * copy, 4 * copy + 4)), (place, place + 4)
        sums = [(event.layer, event.group) for event in log if event.typ == "all_reduce"]
        assert sums == [(unit[0], across) for unit in reversed(UNITS)]  # once a step, as soon as a gradient is final
        assert {event.group for event in log if event.typ in ("all_gather", "reduce_scatter")} == {inside}


def test_copies_sum_shards_of_gradients() -> None:
    run = train(replicas=2, global_batch_size=8)
    sums = {event.layer: event.size_bytes for event in run.logs[0] if event.typ == "all_reduce"}
    assert sums == {unit[0]: pytest.approx(4 * parameters(unit) / 4, abs=4 * len(unit)) for unit in UNITS}


GRID: list[dict[str, Any]] = [
    {},
    {"replicas": 8},
    {"reshard_after_forward": False, "recompute": "selective"},
    {"replicas": 2},
    {"tp": 8, "recompute": "full"},
    {"tp": 2},
    {"tp": 2, "replicas": 2, "sequence_parallel": True},
    {"tp": 4, "sequence_parallel": True, "recompute": "full", "reshard_after_forward": False},
]


@pytest.mark.few(1)
@pytest.mark.parametrize("options", GRID, ids=str)
@pytest.mark.one_in(2)
def test_folded_summary_and_strict_runs_agree(options: dict[str, Any]) -> None:
    plain = train(fold=False, **options)
    assert train(fold=True, **options).summary() == plain.summary()
    by_itself: dict[str, Any] = {"contention": False, **options}  # totals are not timed again
    assert train(log="summary", **by_itself).summary() == train(**by_itself).summary()
    strict = train(strict=True, **options)
    assert [list(log) for log in strict.logs] == [list(log) for log in plain.logs]
    assert plain.peak_memory <= strict.peak_memory <= plain.peak_memory + 3 * 2 * S * max(H, V)


def test_parts_in_shards_move_and_hold_a_share() -> None:
    run = train(tp=2, global_batch_size=8)
    whole = train(world_size=4, global_batch_size=8)
    for (layer, half), (_, all_of_it) in zip(gathered(run), gathered(whole), strict=True):
        undivided = (S + 8) * H  # positions, norms and biases
        assert all_of_it / 2 <= half <= all_of_it / 2 + 2 * undivided, layer
    assert run.models[0].memory_by_store()["weights"] < 0.55 * whole.models[0].memory_by_store()["weights"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 3}, r"world_size \(8\) must be a multiple of replicas x tp \(3\) for fsdp; use 6 or 9"),
        ({"replicas": 0}, r"replicas must be an integer of 1\.\.8 for fsdp, got 0"),
        ({"tp": 16}, r"tp must be an integer of 1\.\.8 for fsdp, got 16"),
        ({"global_batch_size": 12}, r"global_batch_size \(12\) must be a multiple of replicas x shards \(8\) for fsdp"),
        (
            {"offload": "parameters", "offloaded_layers": 3},
            'offloaded_layers is of offload="activations" for fsdp, got offload=.parameters',
        ),
        ({"tp": 8, "workload": "tiny"}, r"num_kv_heads \(4\) must be a multiple of tp \(8\); use tp=4"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((mt.UsageError, mt.StrategyError), match=message):
        train(**options)


def test_copies_sum_gradients_beside_backward_or_after_it() -> None:
    hidden, exposed = (train(replicas=2, overlap_replicas=overlaps) for overlaps in (True, False))
    assert exposed.step_time > hidden.step_time
    last = max(i for i, event in enumerate(exposed.logs[0]) if event.typ == "backward")
    assert all(i > last for i, event in enumerate(exposed.logs[0]) if event.typ == "all_reduce")
    assert train(overlap_replicas=False).step_time == train().step_time
