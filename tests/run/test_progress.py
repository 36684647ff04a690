"""How far a simulation is, told while it goes on."""

from __future__ import annotations

from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Model
from minitrain.run.rank_tasks import RunProgress

SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 8}


@pytest.mark.parametrize("more", [{}, {"log": "summary"}, {"strict": True}, {"fold": True}])
def test_a_run_can_be_watched_whatever_it_keeps(more: dict[str, Any]) -> None:
    watched: list[RunProgress] = []
    run = mt.simulate("ddp", watch=watched.append, **SIZES, **more)
    last = watched[-1]
    assert last.ranks_done == last.num_ranks == 4
    assert last.num_events == run.num_events
    assert str(last) == f"{last.num_ranks} of {last.num_ranks} ranks done, {last.num_events} events so far"


def test_what_is_watched_grows_while_ranks_work() -> None:
    watched: list[RunProgress] = []
    seen: list[tuple[int, int]] = []

    async def looks(model: Model) -> Model:
        seen.append((watched[0].ranks_done, watched[0].num_events))
        await mt.strategies()["ddp"](model)
        return model

    mt.simulate(looks, watch=watched.append, **{**SIZES, "world_size": 1})
    assert seen == [(0, 0)]
    assert watched[0].ranks_done == 1
    assert watched[0].num_events > 0


def test_a_comparison_watches_each_of_its_runs() -> None:
    watched: list[RunProgress] = []
    mt.compare(["ddp", "zero1"], watch=watched.append, **SIZES)
    assert len(watched) == 2


def test_watching_changes_no_event() -> None:
    watched: list[RunProgress] = []
    assert mt.simulate("1f1b", watch=watched.append, **SIZES).events == mt.simulate("1f1b", **SIZES).events
