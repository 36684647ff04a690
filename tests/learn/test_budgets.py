"""What a budget counts, where it comes from, and what a hidden size tells of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.learn import grade, load_exercise
from minitrain.learn.budgets import budget_for, budgets_json, run_reference
from minitrain.learn.checks import judge
from minitrain.learn.exercise import CHECKS, Case
from minitrain.learn.recorder import Recorder
from minitrain.learn.replay import Kept, kept_by_rank, last_clock
from minitrain.run.simulation import simulate
from minitrain.run.strategy_loading import load_strategy


def test_a_hidden_size_is_not_told_by_what_a_rank_held() -> None:
    exercise = load_exercise("00")
    case = replace(exercise.public[1], hidden=True)
    programs = recorded("hoard", case)
    judged = judge(exercise, case, {"programs": programs, "lines": [[]]})
    assert judged["memory"].status == "failed"
    assert judged["memory"].held == ()
    assert judged["memory"].expected is None


def recorded(name: str, case: Case) -> list[Any]:
    """Return the programs of a run that keeps all of its activations."""

    async def hoard(model: Any) -> Any:
        weights, opt_states, activations, grads, grad_weights = model.storage()
        for layer in range(model.num_layers):
            weights[layer], opt_states[layer] = model.load_weights(layer)
        activations[0] = model.get_input_activation(range(model.global_batch_size))
        twice = [model.get_input_activation(range(model.global_batch_size)) for _ in range(2)]
        for layer in range(model.num_layers):
            activations[layer + 1] = model.forward(layer, activations[layer], weights[layer])
        grads["out"] = model.loss(activations[model.num_layers])
        for layer in reversed(range(model.num_layers)):
            grad_weights[layer], grads["out"] = model.backward(layer, activations[layer], grads["out"], weights[layer])
            weights[layer], opt_states[layer] = model.update(
                layer, grad_weights.pop(layer), weights[layer], opt_states[layer]
            )
            model.set_final_weight(layer, weights[layer])
        del twice
        return model

    recorder = Recorder()
    simulate(hoard, strict=True, observers=[recorder], **case.sizes)
    return recorder.programs


def test_work_in_flight_is_counted_by_sample_and_layer() -> None:
    run = simulate("1f1b", world_size=4, num_layers=8, global_batch_size=16, microbatch_size=1)
    assert [kept.most for kept in kept_by_rank(run)] == [8, 6, 4, 2]  # (p - r) microbatches of two layers
    assert str(kept_by_rank(run)[3]) == "2 (sample 0; layers 6-7)"
    assert str(Kept()) == "none"


def test_split_backwards_count_until_the_second_half() -> None:
    run = simulate("zb_h1", world_size=2, num_layers=2, global_batch_size=4, microbatch_size=1)
    assert [kept.most for kept in kept_by_rank(run)] == [2, 2]


def test_budgets_of_an_exercise_name_known_kinds_alone(tmp_path: Path) -> None:
    folder = tmp_path / "01_mine"
    shutil.copytree(load_exercise("02").folder, folder)
    data = json.loads((folder / "exercise.json").read_text())
    (folder / "exercise.json").write_text(json.dumps({**data, "memory_slack": {"moon": 1}}))
    with pytest.raises(UsageError, match=r"memory_slack\.moon: expected 'weight', 'grad' or 'opt_state', found .moon"):
        load_exercise(folder)


def test_without_reference_and_budget_a_size_cannot_be_graded(tmp_path: Path) -> None:
    folder = tmp_path / "01_mine"
    shutil.copytree(load_exercise("02").folder, folder)
    (folder / "reference.py").unlink()
    with pytest.raises(UsageError, match="there is no budget for 2 ranks, 3 layers, batch 8 in"):
        grade(load_strategy("ddp")[1], load_exercise(folder))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"step_time_s": ', '"step_time_s": NaN, "more": ', "step_time_s: expected a finite number, found nan"),
        ('"step_time_s": ', '"step_time_s": -', "step_time_s: expected greater than or equal to 0, found -"),
        ('"memory_bytes"', '"memory_byte"', "memory_byte: no such key is known; did you mean memory_bytes"),
        ('"kept": [', '"kept": [true, ', r"kept\[0\]: expected a valid integer, found true"),
    ],
)
def test_budgets_that_cannot_be_are_refused_for_the_teacher(tmp_path: Path, old: str, new: str, fault: str) -> None:
    shipped = load_exercise("02")
    folder = Path(shutil.copytree(shipped.folder, tmp_path / shipped.name))
    text = budgets_json(shipped, shipped.public)
    (folder / "budgets.json").write_text(text)
    exercise = load_exercise(folder)
    assert budget_for(exercise, exercise.public[0]) == budget_for(shipped, shipped.public[0])
    (folder / "budgets.json").write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError, match=f"budgets.json is not as it must be: (?s:.*){fault}"):
        budget_for(exercise, exercise.public[0])


def test_a_real_models_sizes_are_priced_and_not_proven() -> None:
    exercise = load_exercise("15")
    (real,) = (case for case in exercise.public if not case.is_proven)
    assert real.workload == real.as_dict()["workload"] == "gpt2"
    assert all(case.workload == "tiny" for case in exercise.public if case.is_proven)
    recorder = Recorder()
    run_reference(exercise, real, observers=[recorder])
    found = judge(exercise, real, {"programs": recorder.programs, "lines": [[]] * real.world_size})
    assert [name for name, result in found.items() if result.passed] == [name for name in CHECKS if name != "numerics"]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 12), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_one_message_comes_in_at_a_time(departures: list[int], source: Any) -> None:
    """Messages that leave after some forwards of 1 s take 3 s each, in the order in which they come."""
    num_peers = len(departures)
    launched = source.sample(range(num_peers), num_peers)

    async def strategy(model: Any) -> Any:
        weights, _, activations, *_ = model.storage()
        weights[0], _ = model.load_weights(0)
        activations[0] = model.get_input_activation([model.rank])
        if model.rank == num_peers:
            works = [model.launch(model.receive(peer)) for peer in launched]
            for number, work in enumerate(works):
                activations[number + 1] = await work
        else:
            for _ in range(departures[model.rank]):
                activations[1] = model.forward(0, activations[0], weights[0])
            await model.send(num_peers, activations[0])
        return model

    prices = mt.FixedPredictor(forward=1, send=3, recv=3)
    sizes: dict[str, Any] = {"world_size": num_peers + 1, "num_layers": 1, "global_batch_size": num_peers + 1}
    run = mt.simulate(strategy, hardware=prices, check=False, **sizes)
    free = 0
    for departure in sorted(departures):
        free = max(free, departure) + 3
    assert run.last_clock == max(departures) + 3
    assert last_clock(run) == free


@pytest.mark.parametrize("num_peers", [1, 4])
def test_collectives_of_several_groups_and_messages_go_one_at_a_time(num_peers: int) -> None:
    """One rank gathers with each peer, which takes 3 s, and exchanges messages of 2 s with one more."""

    async def strategy(model: Any) -> Any:
        weights, *_ = model.storage()
        weights[0], _ = model.load_weights(0, min(model.rank, 1), 2)
        pairs = [[0, peer] for peer in range(1, num_peers + 1)]
        works = [model.launch(model.all_gather(weights[0], 0, group=pair)) for pair in pairs if model.rank in pair]
        other = {0: num_peers + 1, num_peers + 1: 0}.get(model.rank)
        if other is not None:
            works += [model.launch(model.send(other, weights[0])), model.launch(model.receive(other))]
        for work in works:
            await work
        return model

    prices = mt.FixedPredictor(all_gather=3, send=2, recv=2)
    sizes: dict[str, Any] = {"world_size": num_peers + 2, "num_layers": 1, "global_batch_size": num_peers + 2}
    run = mt.simulate(strategy, hardware=prices, check=False, **sizes)
    assert run.last_clock == 3
    assert last_clock(run) == 3 * num_peers + 2
