"""Hints follow the mistake: typical wrong versions of exercise 02, and what a learner is told of each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from minitrain.learn import grade, load_exercise, shipped_exercises
from minitrain.learn.checks import HINTS, NAMES, hint_for
from minitrain.learn.exercise import CHECKS
from minitrain.learn.sandbox import Limits
from tests.learn.exercises.sources import DDP, changed

REDUCE = "        grads[k] = await model.all_reduce(grads[k], k)\n"
FINAL = "        model.set_final_weight(k, weights[k])\n"
SHARE = "range(model.rank, model.global_batch_size, model.world_size)"
POPPED = ("model.backward(k, activations[k], ", "model.backward(k, activations.pop(k), ")
FREED = ("        del activations[k]\n", "")

MISTAKES: dict[str, tuple[str, str, str]] = {
    # what the learner wrote, the check that fails, and what the hint says
    "an await is forgotten": (changed(DDP, (REDUCE, REDUCE.replace("await ", ""))), "laws", "write `await` before"),
    "the result of a call without await is not used": (
        changed(DDP, (REDUCE, "        model.all_reduce(grads[k], k)\n")),
        "laws", r"^ddp\.py:15 calls all_reduce without `await`, so that it never happens"),
    "nothing is reduced": (changed(DDP, (REDUCE, "")), "laws", "gradient over all samples of the batch"),
    "the result of a reduction is not kept": (
        changed(DDP, (REDUCE, REDUCE.replace("grads[k] = ", ""))), "laws", "work in place.* keep the result"),
    "the mean is taken": (
        changed(DDP, (REDUCE, REDUCE + "        grads[k] = grads[k] / model.world_size\n")),
        "runs", "all_reduce sums"),
    "no weight is handed in": (
        changed(DDP, (FINAL, "")), "laws", r"model\.set_final_weight\(layer, weights\[layer\]\)"),
    "backward gets what pop returns": (changed(DDP, POPPED, FREED), "laws", "until the call that uses it returns"),
    "all ranks take the whole batch": (
        changed(DDP, (SHARE, "range(model.global_batch_size)")), "laws", "each sample belongs to one rank"),
    "the loss is awaited": (
        changed(DDP, ("model.loss(", "await model.loss(")), "runs", "only communication is awaited"),
    "an operation is misspelt": (changed(DDP, ("all_reduce", "allreduce")), "runs", "card of operations"),
    "an argument is missing": (changed(DDP, ("(grads[k], k)", "(grads[k])")), "runs", "card of operations"),
    "layers go forward on the way back": (
        changed(DDP, ("reversed(layers)", "layers")), "laws", "last layer to the first"),
    "weights are reduced": (
        changed(DDP, (REDUCE, REDUCE + "        weights[k] = await model.all_reduce(weights[k], k)\n")),
        "laws", "only gradients are summed"),
    "a key is wrong": (
        changed(DDP, ("activations.pop(model.num_layers)", "activations.pop(99)")), "runs", "under this key"),
    "the model is not returned": (changed(DDP, ("    return model\n", "")), "runs", "`return model`"),
    "the function is not async": (changed(DDP, ("async def", "def"), ("await ", "")), "runs", "async def"),
    "one rank reduces alone": (
        changed(DDP, (REDUCE, f"        if model.rank == 0:\n    {REDUCE}        else: await model.barrier()\n")),
        "laws", "all ranks of a group"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.one_in(3)
def test_a_hint_is_about_the_mistake(name: str, tmp_path: Path) -> None:
    source, check, hint = MISTAKES[name]
    path = tmp_path / "ddp.py"
    path.write_text(source)
    found = grade(path, "02", hidden=False)
    (failure,) = found.failures
    assert failure.name == check, str(found)
    assert re.search(hint, failure.hint), str(found)
    assert "was never awaited" not in found.output  # the hint says it


def test_an_option_of_the_exercise_that_a_function_lacks_is_told(tmp_path: Path) -> None:
    path = tmp_path / "zero1.py"
    without = (", microbatch_size: int | None = None", ""), ("microbatch_size or share", "share")
    path.write_text(changed(load_exercise("03").solution, *without))
    (failure,) = grade(path, "03", hidden=False).failures
    assert "does not take microbatch_size=2" in failure.message
    assert "take it as the starter does, such as `microbatch_size=None`" in failure.hint


def test_a_call_that_an_earlier_submission_forgot_is_not_taken_for_one_of_this() -> None:
    for source, hint in (
        (changed(DDP, (REDUCE, REDUCE.replace("await ", ""))), "write `await` before the call"),
        (changed(DDP, ("activations.pop(model.num_layers)", "activations.pop(99)")), "under this key"),
    ):
        names: dict[str, Any] = {"__name__": "minitrain_strategy_of_a_cell"}
        exec(compile(source, "cell.py", "exec"), names)
        (failure,) = grade(names["ddp"], "02", hidden=False).failures
        assert hint in failure.hint


def test_a_misspelt_operation_is_guessed(tmp_path: Path) -> None:
    path = tmp_path / "ddp.py"
    path.write_text(changed(DDP, ("all_reduce", "allreduce")))
    message = grade(path, "02", hidden=False).failures[0].message
    assert message == "AttributeError: 'Model' object has no attribute 'allreduce'; did you mean 'all_reduce'?"


@pytest.mark.parametrize(
    ("loop", "line"),
    [("while True: pass", 7), ("import asyncio\n    while True: await asyncio.sleep(0)", 8)],
    ids=["computing", "waiting"],
)
def test_an_endless_loop_is_told_its_line(loop: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "ddp.py"
    path.write_text(changed(DDP, ("    layers = range(model.num_layers)\n", f"    layers = range(3)\n    {loop}\n")))
    for seconds in (1, 4, 16):  # a machine that is busy takes longer to get there
        failure = grade(path, "02", hidden=False, limits=Limits(seconds=seconds)).failures[0]
        assert failure.message == f"it was stopped after {seconds} s; does it wait or loop for ever?"
        if failure.line is not None:
            break
    assert failure.line == f"ddp.py:{line}"
    assert "what is to end the loop" in failure.hint


def test_an_exercise_has_hints_of_its_own_for_what_it_is_about(tmp_path: Path) -> None:
    exercise = load_exercise("06")
    own = exercise.hints_by_check["deadlock"]
    assert hint_for(exercise, "runs", "deadlock: every rank waits") == own
    assert hint_for(exercise, "runs", "KeyError: 3") != own
    assert hint_for(load_exercise("00"), "runs", "deadlock: every rank waits").startswith("the message says who waits")


def test_every_check_has_a_hint_and_every_name_is_a_mistake() -> None:
    assert set(HINTS) == set(CHECKS)
    known = NAMES | set(CHECKS)
    assert all(set(exercise.hints_by_check) <= known for exercise in shipped_exercises())
