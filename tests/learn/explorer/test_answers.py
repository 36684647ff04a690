"""What the explorer's page is told: the figures of `simulate`, rules in the words of commands, legal values."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from typing import Any

import pytest

import minitrain as mt
from minitrain.learn.explorer.answers import FIRST, OWN, STARTER, answer

SMALL: dict[str, Any] = {"strategy": "zero3", "world_size": 4, "num_layers": 4, "global_batch_size": 8}
TINY: dict[str, Any] = {"strategy": "megatron", "workload": "tiny", "world_size": 8, "global_batch_size": 16}


def told(question: str, state: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Return the messages of an answer, each of which is JSON."""
    found: list[dict[str, Any]] = []
    answer(question, {"state": state, **more}, found.append)
    json.dumps(found, allow_nan=False)
    return found


def fault(state: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of a state that cannot be simulated."""
    return told("evaluate", state)[-1]


def test_the_figures_are_those_of_simulate() -> None:
    state = {**TINY, "options": {"tp": 2, "pp": 2, "microbatch_size": 1}}
    figures, picture, why = told("evaluate", state)
    run = mt.simulate("megatron", workload="tiny", world_size=8, global_batch_size=16, tp=2, pp=2, microbatch_size=1)
    assert figures["summary"] == run.summary()
    shown = {one["head"]: one["number"] for one in figures["figures"]}
    assert shown["step ms"] == run.step_time * 1e3
    assert shown["tok/s"] == run.tokens_per_second
    assert shown["MFU %"] == (run.mfu or 0) * 100
    assert shown["USD"] == run.dollars
    assert sum(figures["memory"]["kinds"].values()) == pytest.approx(run.needed_memory_bytes)
    assert picture["picture"]["step_s"] == run.step_time
    assert "What would help" in why["why"]


def test_ranks_that_do_the_same_are_one_row() -> None:
    state = {**TINY, "world_size": 16, "options": {"tp": 2, "pp": 2, "microbatch_size": 1}}
    rows = told("evaluate", state)[1]["picture"]["rows"]
    assert [(row["name"], row["count"]) for row in rows] == [("pp 0: 8 ranks alike", 8), ("pp 1: 8 ranks alike", 8)]


@pytest.mark.ci
def test_the_python_and_the_command_print_the_same_figures() -> None:
    figures = told("evaluate", {**SMALL, "options": {"recompute": "full"}})[0]
    assert figures["command"].startswith("minitrain run zero3 ")
    printed = subprocess.run([sys.executable, "-c", figures["python"]], capture_output=True, text=True, check=True)
    assert ast.literal_eval(printed.stdout) == figures["summary"]
    words = [*figures["command"].split()[1:], "--json", "--no-trace"]
    command = subprocess.run([sys.executable, "-m", "minitrain", *words], capture_output=True, text=True, check=True)
    assert json.loads(command.stdout) == json.loads(json.dumps(figures["summary"]))


def test_a_part_of_a_model_is_trained_as_by_the_command() -> None:
    figures = told("evaluate", {**TINY, "strategy": "fsdp", "lora": 4, "frozen_layers": 1})[0]
    assert "--lora 4 --frozen-layers 1" in figures["command"]
    assert "lora=4,\n    frozen_layers=1," in figures["python"]
    run = mt.simulate("fsdp", workload="tiny", world_size=8, global_batch_size=16, lora=4, frozen_layers=1)
    assert figures["summary"] == run.summary()
    assert "lora of the explorer must be a shipped one, got 5; use one of 4, 8" in fault({**TINY, "lora": 5})["error"]


def test_a_rule_is_told_in_the_words_of_the_command_line_with_its_knobs() -> None:
    found = fault({**TINY, "options": {"tp": 3}})
    assert "world_size (8) must be a multiple of tp" in found["error"]
    assert found["fields"][:2] == ["world_size", "tp"]
    assert fault({**SMALL, "world_size": 0})["fields"] == ["world_size"]
    assert fault({**SMALL, "network": "round"})["fields"] == ["network"]


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"hardware": "/etc/passwd"}, "hardware of the explorer must be a shipped one"),
        ({"workload": "../config.json"}, "workload of the explorer must be a shipped one"),
        ({"strategy": "mine.py:mine"}, "there is no strategy 'mine.py:mine'"),
        ({"numerics": "numpy"}, "numerics is no knob of the explorer"),
        ({"options": [1]}, "options must be values by name"),
        ({"num_layers": 4, "workload": "tiny"}, "num_layers"),
    ],
)
def test_a_state_names_nothing_but_what_is_shipped(changed: dict[str, Any], word: str) -> None:
    assert word in fault({**SMALL, **changed})["error"]


def test_what_is_not_asked_for_is_not_answered() -> None:
    assert "the explorer answers page, evaluate" in told("shutdown", SMALL)[0]["error"]


def test_the_strategy_of_the_text_field_runs() -> None:
    figures = told("evaluate", {**SMALL, "strategy": OWN, "source": STARTER})[0]
    assert figures["summary"]["strategy"] == "mine"
    assert figures["command"].startswith("minitrain run mine.py ")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("def mine(", "mine.py cannot be loaded: SyntaxError"),
        (STARTER.replace("await model.reduce_scatter(grads[k], k)", "grads[k].shard(rank, n)"), "sample"),
        (STARTER.replace("        del activations[k]", "        undefined; del activations[k]"), "NameError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("", "mine.py has no strategy"),
    ],
)
def test_a_mistake_in_the_text_field_is_told_there(text: str, word: str) -> None:
    found = fault({**SMALL, "strategy": OWN, "source": text})
    assert word in found["error"]
    assert "minitrain-explorer" not in found["error"]
    assert found["fields"] == ["source"]


def test_options_have_the_values_with_which_rank_0_begins() -> None:
    state = {**TINY, "options": {"pp": 2}}
    listed, found = told("options", state)
    names = [option["name"] for option in listed["options"]]
    assert names[:3] == ["microbatch_size", "tp", "pp"]
    for name, tried in found["values"].items():
        for value in [value for value, why in tried if why is not None]:
            assert fault({**state, "options": {**state["options"], name: value}})["error"] is not None, (name, value)
    legal = {name: [value for value, why in tried if why is None] for name, tried in found["values"].items()}
    assert legal["pp"] == [1, 2, 4]
    assert legal["tp"] == [1, 2, 4]
    assert legal["overlap_messages"] == [False, True]


def test_a_chart_has_the_figures_of_each_value_and_the_reason_where_there_are_none() -> None:
    points = told("chart", {**TINY, "options": {"pp": 2}}, knob="tp", values=[1, 2, 3])
    assert [point["x"] for point in points] == [1, 2, 3]
    step = mt.simulate("megatron", workload="tiny", world_size=8, global_batch_size=16, pp=2, tp=2).step_time
    assert points[1]["figures"]["step ms"] == step * 1e3
    assert "multiple of tp x pp (6)" in points[2]["error"]


def test_a_chart_over_machines_is_what_each_machine_gives() -> None:
    names = ["a100_80g", "h100_80g_nvl8"]
    points = told("chart", SMALL, knob="hardware", values=names)
    for name, point in zip(names, points, strict=True):
        run = mt.simulate("zero3", world_size=4, num_layers=4, global_batch_size=8, hardware=name)
        assert point["figures"]["step ms"] == run.step_time * 1e3
        assert point["figures"]["USD"] == pytest.approx(run.dollars)
        assert point["fits"]


def test_one_machine_that_cannot_is_no_reason_to_have_no_chart() -> None:
    points = told("chart", {**TINY, "precision": "fp8"}, knob="hardware", values=["h100_80g_nvl8", "t4"])
    assert "figures" in points[0]
    assert "the config must give a rate for each datatype used" in points[1]["error"]


def test_a_search_tells_how_far_it_is_and_the_best() -> None:
    messages = told("tune", {**TINY, "strategy": "fsdp"})
    assert [one["done"] for one in messages[:-1]] == sorted(one["done"] for one in messages[:-1])
    best = messages[-1]["best"][0]["options"]
    sizes: dict[str, Any] = {"workload": "tiny", "world_size": 8, "global_batch_size": 16}
    steps = [mt.simulate("fsdp", **sizes, **options).step_time for options in (dict[str, Any](), best)]
    assert steps[1] <= steps[0]


def test_the_page_begins_with_a_state_that_runs() -> None:
    assert "figures" in told("evaluate", dict(FIRST))[0]
    page = told("page", {})[0]
    assert {"world_size", "hardware", "platform"} <= {knob["name"] for knob in page["knobs"]}
    assert all(knob["meaning"] for knob in page["knobs"])
