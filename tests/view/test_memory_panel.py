"""The memory below a Gantt chart: areas by kind, the high-water mark, and the menu of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.operations import STORE_NAMES

_SIZES: Any = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}


def _run(name: str = "1f1b:overlap_messages=False", **more: Any) -> mt.Run:
    return mt.simulate(name, **{**_SIZES, **more}, memory_by_kind=True)


def _named(figure: Any, name: str) -> Any:
    return next(trace for trace in figure.data if trace.name == name)


def test_a_figure_stacks_the_memory_of_the_highest_rank_by_kind() -> None:
    figure = _run().figure()
    shown = [trace.name for trace in figure.data if trace.type == "scatter" and trace.stackgroup and trace.visible]
    assert shown == ["weights", "optimizer state", "gradients", "activations", "activation gradients"]
    assert set(shown) <= set(STORE_NAMES.values())
    assert {trace.visible for trace in figure.data if trace.name.startswith("rank ")} == {False}


def test_the_mark_is_at_the_peak_and_says_what_made_it() -> None:
    run = _run()
    mark = next(trace for trace in run.figure().data if trace.name == "high-water mark" and trace.visible)
    assert mark.y[0] == pytest.approx(run.peak_memory_bytes / 2**30, rel=1e-12)
    assert "after backward of layer" in mark.hovertext[0]
    assert run.figure().layout.yaxis2.range[1] > mark.y[0]


def test_a_menu_chooses_the_rank_or_the_totals_of_all() -> None:
    figure = _run().figure()
    buttons = {button.label: button.args for button in figure.layout.updatemenus[0].buttons}
    assert list(buttons) == [f"memory of rank {rank} by kind" for rank in range(4)] + ["memory of all ranks"]
    change, places = buttons["memory of all ranks"]
    shown = [figure.data[place].name for place, on in zip(places, change["visible"], strict=True) if on]
    assert shown == [f"rank {rank}" for rank in range(4)]
    change, places = buttons["memory of rank 2 by kind"]
    groups = {figure.data[place].stackgroup for place, on in zip(places, change["visible"], strict=True) if on}
    assert groups == {"memory 2", None}


def test_of_many_ranks_the_highest_and_both_ends_can_be_chosen() -> None:
    figure = _run("ddp", world_size=20, global_batch_size=20).figure()
    labels = [button.label for button in figure.layout.updatemenus[0].buttons]
    assert labels == ["memory of rank 0 by kind", "memory of rank 19 by kind", "memory of all ranks"]


def test_long_curves_by_kind_keep_their_highest_values() -> None:
    run = _run("1f1b", num_layers=16, global_batch_size=512, microbatch_size=2)
    stacked = [trace for trace in run.figure().data if trace.type == "scatter" and trace.stackgroup and trace.visible]
    assert {len(trace.x) for trace in stacked} == {1000}
    total = np.sum([trace.y for trace in stacked], axis=0)
    assert total.max() >= run.timeline.memory.max() * 2 / 2**30 * (1 - 1e-12)


def test_without_a_journal_there_is_no_menu() -> None:
    assert not mt.simulate("ddp", **_SIZES).figure().layout.updatemenus
