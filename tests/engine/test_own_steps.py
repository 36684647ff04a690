"""Loops of synchronous steps that a strategy writes itself: the tool's own steps, work across them, and wrong ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import MinitrainError, ProofError
from minitrain.run.summary_log import LongRun

FILE = Path(__file__).parent / "own_loop.py"
LOOP = f"{FILE}:zero3_loop"
SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 4}


def mine(tmp_path: Path, *changes: tuple[str, str]) -> str:
    """Write the loop with some changes, and return how it is named."""
    text = FILE.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = tmp_path / "mine.py"
    path.write_text(text)
    return f"{path}:zero3_loop"


def test_a_loop_that_does_what_the_tool_repeats_takes_the_same_time_and_memory(tmp_path: Path) -> None:
    own = mt.simulate(LOOP, num_steps=6, options={"early": False}, global_batch_size=6 * 16, strict=True, **SIZES)
    repeated = mt.simulate("zero3", steps=6, global_batch_size=16, **SIZES)
    assert own.step_times == pytest.approx(repeated.step_times, rel=1e-12)
    assert own.peak_memory == repeated.peak_memory
    assert own.round is not None
    assert repeated.steps is not None
    assert str(own.round) == str(repeated.steps)
    assert own.write_html(tmp_path / "own.html").read_text(encoding="utf-8").count(str(own.round)) == 1
    assert own.step_time == pytest.approx(sum(own.step_times), rel=1e-12)


def test_what_a_step_launches_for_the_next_one_runs_under_its_updates() -> None:
    units = mt.FixedPredictor(forward=1, backward=2, update=1, all_gather=2)
    sizes: dict[str, Any] = {**SIZES, "hardware": units, "num_steps": 5, "global_batch_size": 80}
    early, late = (mt.simulate(LOOP, options={"early": flag}, **sizes) for flag in (True, False))
    assert set(late.step_times) == {4 * (1 + 2 + 1) + 2 * 4 * 2}
    # the gather of layer 0 takes 2 of the 3 that the updates of layers 1 to 3 take
    assert early.step_times == [late.step_times[0], *[late.step_times[0] - 2] * 4]
    assert early.round is not None
    assert (early.round.period, early.round.steady_time) == (1, late.step_times[0] - 2)


def test_stages_that_end_one_after_the_other_have_steps_until_the_clocks_return() -> None:
    run = mt.simulate(LOOP, num_steps=2, global_batch_size=32, **SIZES)
    assert run.round is not None
    assert run.round.period is None
    assert mt.simulate("zero3", global_batch_size=16, **SIZES).round is None


@pytest.mark.few(1)
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("model", [{"num_layers": 3}, {"workload": "tiny"}])
def test_several_steps_are_proven(early: bool, model: dict[str, Any]) -> None:
    proof = mt.prove(LOOP, world_size=2, num_steps=3, options={"early": early}, global_batch_size=12, **model)
    assert proof.largest_relative < 1e-9
    assert "as 3 steps in turn do on one device" in str(proof)


def test_loops_fold_and_are_repeated_as_rounds() -> None:
    sizes: dict[str, Any] = {"world_size": 16, "num_layers": 4, "num_steps": 3, "global_batch_size": 96}
    folded, each = (mt.simulate(LOOP, fold=fold, **sizes) for fold in (True, False))
    assert folded.step_times == each.step_times
    rounds = mt.simulate(LOOP, steps=4, fold=True, **sizes)
    assert rounds.step_times == pytest.approx([each.step_time] * 4, rel=1e-12)
    assert mt.simulate(LOOP, fold=True, **{**sizes, "world_size": 4096, "global_batch_size": 3 * 4096}).is_folded


def assert_equal(one: Any, other: Any) -> None:
    """Require equal figures: counts exactly, floats but for rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list | tuple):
        for each, its_like in zip(one, other, strict=True):
            assert_equal(each, its_like)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-15)
    else:
        assert one == other


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "steps", "batch", "sizes"),
    [
        (LOOP, "num_steps", 16, SIZES),
        ("local_sgd", "local_steps", 8, {"world_size": 8, "num_layers": 4}),
        ("diloco", "local_steps", 8, {"world_size": 4, "workload": "tiny", "replicas": 2, "recompute": "full"}),
        ("pipedream_2bw", "num_steps", 16, {"world_size": 16, "num_layers": 8, "pp": 4}),
        ("powersgd_ddp", "num_steps", 4, {"world_size": 4, "num_layers": 3}),
    ],
)
def test_alike_steps_are_simulated_until_they_repeat(strategy: str, steps: str, batch: int, sizes: Any) -> None:
    loop: dict[str, Any] = {"options": {steps: 29}, "global_batch_size": 29 * batch, **sizes}
    found, each = mt.simulate(strategy, log="summary", **loop), mt.simulate(strategy, fold=False, **loop)
    assert isinstance(found, LongRun)
    assert (found.num_steps, found.period) == (6, 1)
    assert_equal(found.summary(), each.summary())
    assert_equal([found.step_times, str(found.round)], [each.step_times, str(each.round)])
    assert_equal(list(found.breakdown.ranks), list(each.breakdown.ranks))
    assert_equal([found.by_type, found.clocks], [each.by_type, list(each.clocks)])
    assert_equal(found.energy_joules, each.energy_joules)
    assert list(found.notes) == list(each.notes)
    assert len(found.logs[0]) == len(each.logs[0])


@pytest.mark.few(1)
@pytest.mark.parametrize(("copy_s", "expected"), [(15, (6, 1)), (17, (24, 1)), (20, (12, 1))])
def test_steps_that_do_not_repeat_yet_are_simulated_further(copy_s: int, expected: Any, tmp_path: Path) -> None:
    """Copies of 17 in steps of 16, awaited two steps later, hold nothing up until 16 steps have passed."""
    changes = (
        ("    gathers: dict", "    copies = []\n    gathers: dict"),
        (_LAUNCH, "        copies.append(model.launch(model.offload(weights[0])))\n" + _AWAIT),
        ("    return model", "    for copy in copies:\n        await copy\n    return model"),
    )
    units = mt.FixedPredictor(forward=1, backward=2, update=1, offload=copy_s)
    loop: dict[str, Any] = {**SIZES, "hardware": units, "num_steps": 150, "global_batch_size": 600}
    strategy = mine(tmp_path, *changes)
    found, each = mt.simulate(strategy, log="summary", **loop), mt.simulate(strategy, **loop)
    assert isinstance(found, LongRun)
    assert (found.num_steps, found.period) == expected
    assert found.step_times == each.step_times
    assert found.step_time == each.step_time


def test_steps_are_repeated_only_where_they_are_declared_alike_and_long_enough(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {**SIZES, "log": "summary"}
    declared = mine(tmp_path, (", alike=True", ""))
    assert not isinstance(mt.simulate(declared, num_steps=30, global_batch_size=120, **sizes), LongRun)
    assert not isinstance(mt.simulate(LOOP, num_steps=20, global_batch_size=80, **sizes), LongRun)
    found = mt.simulate(LOOP, num_steps=10_000, global_batch_size=80_000, **sizes)
    with pytest.raises(mt.UsageError, match="keeps totals and none of the"):
        found.logs[0][0]
    with pytest.raises(mt.StrategyError, match="a multiple of 30"):
        mt.simulate(LOOP, num_steps=30, global_batch_size=128, **sizes)


_AWAIT = "        if len(copies) > 2:\n            await copies.pop(0)\n"
_LAUNCH = """            if early and layer == 0 and step + 1 < num_steps:
                gathers[0] = model.launch(model.all_gather(weights[0], 0))
"""
_UPDATES = "        for layer in layers:\n            weights[layer], opt_states[layer] = model.update("
_STALE = "        if step + 1 < num_steps:\n            gathers[0] = model.launch(model.all_gather(weights[0], 0))\n"
REFUSED: dict[str, Any] = {
    "no declaration": (('@mt.own_steps("num_steps", alike=True)\n', ""), 'put @mt.own_steps("num_steps") before it'),
    "the samples of the first step again": (
        ("step * model.world_size + model.rank", "model.rank"),
        "step 1 takes samples of 8..15, got",
    ),
    "a step too many": (
        ("in model.steps()", "in [*model.steps(), num_steps - 1]"),
        "the strategy declares 3 steps in turn, and this is one more",
    ),
    "a step is left out": (
        ("for step in model.steps():", "for step in list(model.steps())[:-1]:"),
        "must have seen all 3 steps that the strategy declares",
    ),
    "the weights of the first step": (
        (
            "        model.set_final_weight(layer, weights[layer])",
            "        model.set_final_weight(layer, first[layer])",
        ),
        ("    for step in model.steps():", "    first = dict(weights)\n    for step in model.steps():"),
        "was overwritten by update at mine.py",
    ),
    "gradients of a shard's own samples": (
        (
            'await model.reduce_scatter(grad_weights.pop("full"), layer)',
            'grad_weights.pop("full").shard(model.rank, model.world_size)',
        ),
        "a step takes 8 samples, got",
    ),
    "an outer step": (
        (
            "    for layer in layers:\n        model.set_final",
            "    model.outer_gradient(0, weights[0], weights[0])\n    for layer in layers:\n        model.set_final",
        ),
        "have no outer step; hand in the last weights",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_loops_are_refused_by_name(case: str, tmp_path: Path) -> None:
    *changes, message = REFUSED[case]
    with pytest.raises(MinitrainError, match=re.escape(message)):
        mt.simulate(mine(tmp_path, *changes), strict=True, num_steps=3, global_batch_size=24, **SIZES)


def test_a_gather_of_weights_before_their_update_is_refused_or_disproved(tmp_path: Path) -> None:
    strategy = mine(tmp_path, (_LAUNCH, ""), (_UPDATES, _STALE + _UPDATES))
    sizes: dict[str, Any] = {"num_steps": 3, "global_batch_size": 24, **SIZES}
    with pytest.raises(
        MinitrainError, match=r"the input stems from weights of step 0, .* cannot be used with weights of step 1"
    ):
        mt.simulate(strategy, strict=True, **sizes)
    with pytest.raises(ProofError):
        mt.prove(strategy, strict=False, **sizes)


_SAVE = (
    (
        "            if early and layer == 0",
        "            if step == 1:\n"
        "                kept = (weights[layer], opt_states[layer])\n"
        "                copies[layer] = [model.launch(model.offload(each)) for each in kept]\n"
        "            if early and layer == 0",
    ),
    ("    gathers: dict", "    copies = {}\n    gathers: dict"),
)
_KEEP = "for name, copy in enumerate(copies.pop(layer, [])):\n{0}    model.host[name, layer] = await copy\n{0}"
_UPDATE = "weights[layer], opt_states[layer] = model.update("
_FINAL = "model.set_final_weight("


@pytest.mark.parametrize(("copy_s", "blocked_s"), [(0, 0), (1, 0), (3, 6), (4, 14)])
def test_a_checkpoint_beside_training_costs_what_no_step_hides(copy_s: int, blocked_s: int, tmp_path: Path) -> None:
    """Two copies of layer k begin at 13 + k of a step of 16, and end before its update, at 12 + k of the next."""
    units = mt.FixedPredictor(forward=1, backward=2, update=1, offload=copy_s)
    sizes: dict[str, Any] = {**SIZES, "hardware": units, "num_steps": 4, "global_batch_size": 64, "strict": True}
    plain = mt.simulate(LOOP, **sizes)
    saving = mt.simulate(mine(tmp_path, *_SAVE, (_UPDATE, _KEEP.format(12 * " ") + _UPDATE)), **sizes)
    assert plain.step_times == [16] * 4
    end, update = 0, 0
    for layer in range(4):
        end = max(end, 13 + layer) + 2 * copy_s
        update = max(update, 28 + layer, end) + 1
    assert saving.step_times[2] - 16 == update - 32 == blocked_s
    assert (
        saving.peak_host_memory_bytes == 4 * (2 * 4096**2) * 2 / 4
    )  # weights and states of 2 bytes, a fourth on each rank


def test_a_checkpoint_that_an_update_overtakes_is_refused(tmp_path: Path) -> None:
    late = mine(tmp_path, *_SAVE, (_FINAL, _KEEP.format(8 * " ") + _FINAL))
    sizes: dict[str, Any] = {**SIZES, "num_steps": 3, "global_batch_size": 24}
    with pytest.raises(MinitrainError, match=r"is being copied to the host by a launched offload.*await it before"):
        mt.simulate(late, strict=True, **sizes)


_WRITE = (
    "for name, copy in enumerate(copies.pop(layer, [])):\n{0}    model.host[name, layer] = await copy\n"
    "{0}    if (name, layer, model.rank) != LEFT_OUT:\n"
    "{0}        writes.append(model.launch(model.write(model.host[name, layer])))\n"
    "{0}    del model.host[name, layer]\n{0}"
)


def saving(tmp_path: Path, left_out: Any = None) -> str:
    """Return the loop with a checkpoint that is written beside the next steps, with or without some shard."""
    text = _WRITE.replace("LEFT_OUT", repr(left_out)).format(12 * " ")
    awaited = ("    return model", "    for work in writes:\n        await work\n    return model")
    return mine(
        tmp_path, *_SAVE, ("    copies = {}\n", "    copies, writes = {}, []\n"), (_UPDATE, text + _UPDATE), awaited
    )


def test_a_checkpoint_is_written_beside_the_steps_that_follow(tmp_path: Path) -> None:
    """Two copies of each of four layers are ready 2 k after 16 + 16, and written one after the other."""
    units = mt.FixedPredictor(forward=1, backward=2, update=1, write=1)
    sizes: dict[str, Any] = {**SIZES, "hardware": units, "num_steps": 4, "global_batch_size": 64}
    run, folded = (mt.simulate(saving(tmp_path), fold=fold, **sizes) for fold in (False, True))
    assert run.step_times == folded.step_times == [16] * 4
    assert [event.time for event in run.logs[0] if event.typ == "write"] == [44, 45, 46, 47, 48, 49, 50, 51]
    assert mt.prove(saving(tmp_path), **{**sizes, "hardware": "h100_80g_nvl8"}).largest_relative < 1e-9
    slow = mt.FixedPredictor(forward=1, backward=2, update=1, write=3)
    assert mt.simulate(saving(tmp_path), **{**sizes, "hardware": slow}).step_times == [16, 16, 16, 44 + 24 - 48]


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ((1, 2, 3), "the checkpoint of step 2 is incomplete: the optimizer state of layer 2 lacks shard 3 of 4"),
        ((0, 0, 0), "the checkpoint of step 2 is incomplete: the weight of layer 0 lacks shard 0 of 4"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_refused(left_out: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(MinitrainError, match=message):
        mt.simulate(saving(tmp_path, left_out), **SIZES, num_steps=3, global_batch_size=24)
