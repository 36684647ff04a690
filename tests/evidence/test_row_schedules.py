"""The column `schedule`: each order has the bubble of its paper, whatever rows were measured."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

import minitrain as mt
from minitrain.evidence.cases import Case, _pass_costs, _step, case_of, predict
from minitrain.evidence.layouts import stage_layers
from minitrain.evidence.rows import LackingError, Row
from tests.evidence.test_rows import USUAL

PP = 4
BALANCED = {  # stages alike: a vocabulary of next to nothing, no replicas, and so many layers that messages are short
    **USUAL,
    "n_gpus": "4",
    "tp": "1",
    "pp": str(PP),
    "dp": "1",
    "vpp": "",
    "vocab": "128",
    "n_layers": "32",
    "hidden": "2048",
    "mbs": "4",
    "n_micro": "16",
    "gbs": "64",
    "recompute": "none",
    "overlap": "p2p overlap",
    "mem_gib": "10",
}


def run_of(schedule: str, **changes: str) -> Case:
    return case_of(Row("x", {**BALANCED, "schedule": schedule, **changes}, 2))


@cache
def bubble(schedule: str, vpp: str = "") -> float:
    """Return what a step takes beside its microbatches and the optimizer, s."""
    found = run_of(schedule, vpp=vpp)
    whole, more = (_step(found.bare(), num, ()) for num in (16, 16 + found.period))
    each = (more.seconds - whole.seconds) / found.period
    return whole.seconds - 16 * each - whole.terms["update"]


@cache
def passes() -> tuple[float, float, float]:
    """Return how long a stage's forward, gradient of inputs and gradient of weights take, s."""
    found = run_of("ZB-H1")
    log = mt.simulate(
        "megatron", world_size=PP, global_batch_size=4, hardware=found.system, workload=found.model,
        platform=found.platform or "components", microbatch_size=4, **found.options,
    ).events  # fmt: skip
    times = {
        typ: sum(event.duration for event in log if event.rank == 1 and event.typ == typ)
        for typ in ("forward", "backward_input", "backward_weight")
    }
    assert all(times.values())
    return times["forward"], times["backward_input"], times["backward_weight"]


@pytest.mark.few(1)
@pytest.mark.parametrize("schedule", ["1F1B", "GPipe", "interleaved", "ZB-H1", "ZB-H2"])
def test_bubbles_are_those_of_the_papers(schedule: str) -> None:
    forward, inputs, weights = passes()
    backward = inputs + weights
    expected = {
        "1F1B": forward + backward,  # Narayanan et al. 2021, section 2.2.1
        "GPipe": forward + backward,
        "interleaved": (forward + backward) / 2,  # section 2.2.2, with two chunks
        "ZB-H1": forward + inputs - weights,  # Qi et al. 2023, table 2
        "ZB-H2": forward + inputs - 2 * weights if forward + inputs > 2 * weights else 0.0,
    }
    found = bubble(schedule, "2" if schedule == "interleaved" else "")
    if schedule == "ZB-H2":  # ranks start and end one after the other: a step still has the forwards of its beginning
        assert found <= 1.05 * (PP - 1) * (expected["ZB-H2"] + forward)
        assert found < bubble("ZB-H1")
        return
    assert found == pytest.approx((PP - 1) * expected[schedule], rel=0.05)


def test_orders_have_bubbles_in_the_order_of_their_papers() -> None:
    assert bubble("ZB-V") < bubble("ZB-H1") < bubble("1F1B")
    assert bubble("DualPipeV") < bubble("1F1B")
    assert bubble("interleaved", "2") < bubble("1F1B") == pytest.approx(bubble("GPipe"), rel=0.02)


def test_memory_is_that_of_the_order() -> None:
    found = {name: predict(run_of(name)).memory["allocated"] for name in ("1F1B", "GPipe", "ZB-H1", "ZB-H2")}
    assert found["GPipe"] > 2 * found["1F1B"] > found["1F1B"]
    assert found["ZB-H2"] > found["ZB-H1"] >= found["1F1B"]


@pytest.mark.few(1)
@pytest.mark.parametrize("schedule", ["GPipe", "ZB-H1", "ZB-H2", "ZB-V", "DualPipeV"])
def test_a_step_of_many_microbatches_takes_what_one_of_few_says(schedule: str) -> None:
    found = run_of(schedule, n_micro="24", gbs="96", n_layers="15")
    whole, quick = _step(found.bare(), 24, ()), predict(found)
    assert quick.seconds == pytest.approx(whole.seconds, rel=1e-9)
    assert quick.memory["allocated"] == pytest.approx(whole.memory["allocated"], rel=1e-9)


READ = [
    ("1f1b (DeepSpeed)", "", "1f1b", 1),
    ("interleaved-1f1b", "2", "1f1b", 2),
    ("1f1b", "2", "1f1b", 2),
    ("AFAB", "", "gpipe", 1),
    ("zero bubble h1", "", "zb_h1", 1),
    ("ZBH2", "", "zb_h2", 1),
    ("ZB-1p", "", "zb_1p", 1),
    ("zero bubble 2p", "", "zb_2p", 1),
    ("ZB-V", "", "zbv", 2),
    ("zb-v", "2", "zbv", 2),
    ("DualPipe", "", "dualpipe_v", 2),
    ("none", "", "1f1b", 1),
]


@pytest.mark.parametrize(("text", "vpp", "order", "num_chunks"), READ)
def test_the_column_is_read(text: str, vpp: str, order: str, num_chunks: int) -> None:
    found = run_of(text, vpp=vpp)
    assert (found.options["schedule"], found.options["num_chunks"]) == (order, num_chunks)
    lacks = any(each.text.startswith("schedule not stated") for each in found.assumed)
    assert lacks == (text == "none")


def test_what_runs_in_a_near_order_says_so() -> None:
    assert any(
        each.text.startswith("schedule: ") and "as DualPipeV" in each.text for each in run_of("DualPipe").assumed
    )


def test_automatic_orders_are_made_for_the_rows_own_times() -> None:
    names = ("ZB-H1", "ZB-1p", "ZB-2p", "1F1B")
    found = {text: predict(run_of(text, n_micro="24", gbs="96")) for text in names}
    assert not any(each.text.startswith("schedule: ") for each in run_of("ZB-2p").assumed)
    assert found["ZB-2p"].seconds < found["ZB-1p"].seconds <= 1.002 * found["ZB-H1"].seconds < found["1F1B"].seconds
    assert found["ZB-1p"].memory["allocated"] < 1.05 * found["ZB-H1"].memory["allocated"]
    assert found["ZB-2p"].memory["allocated"] < 2 * found["ZB-H1"].memory["allocated"]
    forward, inputs, weights, message, share = _pass_costs(run_of("ZB-2p").bare(), ())
    assert inputs > forward > weights > 10 * message > 0
    assert share == 32 / (34 + 5 * 16 * 1024 / 2048)


def test_stages_that_nobody_published_are_assumed_and_named() -> None:
    found = run_of("interleaved")
    assert found.options["num_chunks"] == 1
    assert "vpp not stated: 1, although interleaved" in [each.text for each in found.assumed]


@pytest.mark.parametrize(
    ("text", "vpp", "reason"),
    [
        ("interleaved", "1", "vpp '1', where 2 or more stages a rank"),
        ("ZB-V", "4", "vpp '4', where 2 stages a rank"),
        ("hanayo", "", "no strategy here runs it"),
    ],
)
def test_orders_that_contradict_the_stages_are_refused(text: str, vpp: str, reason: str) -> None:
    with pytest.raises(LackingError, match=reason):
        run_of(text, vpp=vpp)


def test_orders_that_do_not_run_with_the_rows_sizes_are_skipped_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, [*BALANCED, "schedule"])
        writer.writeheader()
        writer.writerow({**BALANCED, "schedule": "DualPipeV", "n_micro": "4", "gbs": "16"})
    (skipped,) = mt.validate(csv=file).skipped
    assert "must be at least the number of stages (8) for dualpipe_v" in skipped.reason


def test_the_fork_of_zero_bubble_pipelines_has_its_platform() -> None:
    found = run_of("ZB-H1", framework="Megatron-LM (zero-bubble fork)").platform
    assert found is not None
    assert found.name == "megatron-a100"


def test_end_stages_may_hold_embedding_or_head_alone() -> None:
    assert stage_layers(30, 32) == (0, *[1] * 30, 0)
    assert stage_layers(31, 16) == (*[2] * 15, 1)
    assert stage_layers(7, 8) == (*[1] * 7, 0)
    alone = run_of("interleaved", n_layers="6", vpp="2", pp="4")
    assert alone.options["layers_per_stage"] == [1, *[2] * 6, 1]
    assert predict(alone).seconds > 0
    with pytest.raises(LackingError, match="8 stages are more than its 5 layers"):
        run_of("interleaved", n_layers="5", vpp="2")
