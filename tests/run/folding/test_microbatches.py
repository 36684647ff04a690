"""Steps of many alike microbatches, of which few are simulated: they are the steps of all, to the last float."""

from typing import Any

import pytest

import minitrain as mt
from minitrain.run.folding import microbatches
from minitrain.run.result import Run
from minitrain.run.strategy_loading import unwrapped
from tests.folded_runs import require_identical

SMALL = mt.Transformer(num_layers=2, hidden_size=512, num_heads=8, vocab_size=1000, seq_len=256)
SIZES = {"workload": SMALL, "world_size": 16, "microbatch_size": 1, "tp": 2, "hardware": "a100_80g"}


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of microbatches that were simulated, of each run for which these were few."""
    found: list[int] = []
    lengthen = microbatches._lengthen

    def noting(models: Any, few: microbatches.Microbatches, starts: Any) -> bool:
        found.extend([few.few] if (done := lengthen(models, few, starts)) else [])
        return done

    monkeypatch.setattr(microbatches, "_lengthen", noting)
    return found


def _of_all(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> Run:
    """Simulate all microbatches."""
    with monkeypatch.context() as without:
        without.setattr(microbatches.Microbatches, "shortened", lambda _: None)
        return mt.simulate("megatron", **given)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"pp": 2, "global_batch_size": 4 * 13}, id="1f1b, an odd number"),
        pytest.param({"pp": 2, "num_chunks": 2, "global_batch_size": 4 * 22}, id="interleaved"),
        pytest.param({"pp": 2, "schedule": "zb_h2", "global_batch_size": 4 * 15}, id="zero bubble"),
        pytest.param({"pp": 2, "schedule": "zbv", "global_batch_size": 4 * 15}, id="V-shaped"),
        pytest.param({"pp": 2, "zero": 2, "recompute": "selective", "global_batch_size": 4 * 12}, id="ZeRO-2"),
        pytest.param({"pp": 1, "zero": 3, "global_batch_size": 8 * 9, "steps": 2}, id="ZeRO-3, two steps"),
        pytest.param(
            {"pp": 2, "overlap_messages": False, "global_batch_size": 4 * 10, "fold": True}, id="plain messages"
        ),
        *(
            pytest.param(
                {"pp": 2, "optimizer_offload_fraction": share, "global_batch_size": 4 * 22, **options},
                id=f"the host updates {share}, {options}",
            )
            for share, options in (
                (1, {"zero": 1}),
                (0.5, {"zero": 1, "overlap_cpu_optimizer_d2h_h2d": True, "steps": 2}),
                (0.3, {"zero": 1, "num_chunks": 2, "overlap_replicas": True}),
                (1, {"overlap_cpu_optimizer_d2h_h2d": True, "schedule": "zb_h2"}),
            )
        ),
        *(
            pytest.param(
                {"pp": 2, "cp": cp, "cp_comm_type": how, "zero": zero, "num_chunks": chunks, "overlap_parts": overlap}
                | {"sum_tied": overlap, "world_size": 8 * cp, "global_batch_size": 2 * 22},
                id=f"context parallel {cp}, {how}, ZeRO-{zero}, chunks {chunks}, overlap {overlap}",
            )
            for cp in (2, 4)
            for how in ("p2p", "all_gather")
            for zero, chunks, overlap in ((0, 2, False), (1, 1, True), (2, 2, True), (3, 1, False))
        ),
    ],
)
def test_a_step_by_few_microbatches_is_that_of_all(
    options: dict[str, Any], shortened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {**SIZES, **options}
    run = mt.simulate("megatron", **given)
    microbatches_of_replica = given["global_batch_size"] // (
        given["world_size"] // 2 // given["pp"] // given.get("cp", 1)
    )
    assert shortened
    assert max(shortened) <= 0.7 * microbatches_of_replica
    every = _of_all(monkeypatch, given)
    assert run.summary() == every.summary()
    assert run.explain().data() == every.explain().data()
    assert run == every  # options, peaks, logs and models of every rank


@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 4, "world_size": 8, "global_batch_size": 72},
        {"workload": SMALL, "world_size": 16, "global_batch_size": 72, "cp": 2},
        {
            "workload": SMALL,
            "world_size": 16,
            "global_batch_size": 72,
            "cp": 2,
            "cp_comm_type": "all_gather",
            "zero": 1,
        },
        *(
            {
                "workload": SMALL,
                "world_size": 16,
                "tp": 2,
                "global_batch_size": 96,
                "contention": True,
                "hardware": hardware,
                "zero": 1,
                "overlap_replicas": True,
            }
            for hardware in ("h100_80g_nvl8", "tpu_v5p")
        ),
    ],
)
def test_a_step_by_few_microbatches_is_that_of_every_rank(options: dict[str, Any], shortened: list[int]) -> None:
    require_identical("megatron", microbatch_size=2, pp=2, **options)
    assert shortened


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"schedule": "gpipe"}, id="all forward passes come first"),
        pytest.param({"microbatch_size": None}, id="as few microbatches as stages"),
        pytest.param({"memory_by_kind": True}, id="a journal is kept"),
        pytest.param({"documents": "lognormal:64:1"}, id="documents are packed"),
    ],
)
def test_a_step_is_simulated_whole_where_microbatches_may_be_unlike(
    options: dict[str, Any], shortened: list[int]
) -> None:
    given: dict[str, Any] = {**SIZES, "pp": 2, "global_batch_size": 4 * 16, **options}
    mt.simulate("megatron", **given)
    assert not shortened


def test_the_orders_of_all_microbatches_must_repeat(shortened: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    names = unwrapped(mt.strategies()["megatron"]).__globals__

    def in_another_order(_: str, num_ranks: int, num_microbatches: int, *_more: Any) -> mt.schedules.Schedule:
        order = mt.schedules.one_f_one_b if num_microbatches < 10 else mt.schedules.gpipe
        return order(num_ranks, num_microbatches, 1)

    monkeypatch.setitem(names, "schedule_of", in_another_order)
    mt.simulate("megatron", num_layers=4, world_size=8, microbatch_size=2, pp=2, global_batch_size=144)
    assert not shortened
