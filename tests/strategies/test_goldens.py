"""The event logs of every shipped strategy, byte for byte as committed (refresh with `pytest --update-goldens`)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.machine.config import SPECIFIED

GOLDEN = Path(__file__).parents[2] / "traces" / "golden"
OPTIONS: dict[str, dict[str, Any]] = {
    "fsdp": {"replicas": 2},
    "gathered_context": {"workload": "tiny", "cp": 2},
    "megatron": {"tp": 2, "pp": 2, "sequence_parallel": True, "num_chunks": 2},
    "moe": {"workload": "tiny-moe", "ep": 2, "imbalance": 1.5, "capacity_factor": 1.25},
    "deepseek_like": {"workload": "tiny-moe", "pp": 2, "ep": 2, "zero": 1},
    "packed_context_parallel": {"workload": "tiny", "cp": 2, "documents": mt.Documents(median=7, sigma=0.9)},
    "ring_attention": {"workload": "tiny"},
}
AS_SPECIFIED = {"gpipe", "1f1b", "zb_h1", "interleaved_1f1b", "pp_dp", "pp_zero1", "pp_zero3", "pp_hsdp", "megatron"}
"""Pipelines whose goldens wait for each message, as papers and the specification draw them."""
SIZES = {"single": (1, 4, 4), "pp_hsdp": (8, 4, 16), "ring_attention": (4, 6, 2)}
SIZES |= {"pipedream_2bw": (2, 4, 16), "powersgd_ddp": (2, 4, 8)}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", mt.strategies())
def test_the_log_is_the_golden_one(name: str, tmp_path: Path, update_goldens: bool) -> None:
    world_size, num_layers, batch = SIZES.get(name, (4, 8, 8))
    options = OPTIONS.get(name, {})
    if "workload" not in options:
        options = {"num_layers": num_layers, **options}
    strategy = mt.strategies()[name]
    if name in AS_SPECIFIED:
        strategy = partial(strategy, overlap_messages=False)
    machine: dict[str, Any] = {"hardware": SPECIFIED, "fidelity": "roofline"}  # as specified, for transformers too
    run = mt.simulate(strategy, **machine, world_size=world_size, global_batch_size=batch, **options)
    golden, now = GOLDEN / f"{name}.jsonl", tmp_path / "now.jsonl"
    run.save(golden if update_goldens else now)
    if not update_goldens:
        assert now.read_bytes() == golden.read_bytes(), "if the change is meant, run pytest --update-goldens"
    assert golden.stat().st_size < 60_000


def test_every_golden_log_belongs_to_a_shipped_strategy_and_can_be_read() -> None:
    assert {path.stem for path in GOLDEN.glob("*.jsonl")} == set(mt.strategies())
    for path in GOLDEN.glob("*.jsonl"):
        assert mt.load_run(path).step_time > 0
