"""What notebooks show of a run: its figure, its picture or its text."""

from __future__ import annotations

import json
from typing import Any

import minitrain as mt
from minitrain.view.page import PLOTLY_MIME


def test_a_notebook_shows_a_run_as_figure_picture_or_text() -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4)
    bundle: Any = run._repr_mimebundle_()
    assert list(bundle) == ["text/plain", PLOTLY_MIME, "text/html"]
    figure = json.loads(json.dumps(bundle[PLOTLY_MIME]))
    assert figure["config"]["plotlyServerURL"] == ""
    assert len(figure["data"]) == len(run.figure().data)
    assert "<svg" in bundle["text/html"]


def test_a_run_too_large_for_a_picture_is_shown_as_its_figure_and_its_first_ranks() -> None:
    run = mt.simulate("1f1b", world_size=8, num_layers=16, global_batch_size=256, microbatch_size=1)
    bundle: Any = run._repr_mimebundle_()
    assert list(bundle) == ["text/plain", PLOTLY_MIME, "text/html"]
    assert "h100_80g_nvl8: rank 0</text>" in bundle["text/html"]
    assert ">rank 0<" in bundle["text/html"]
    assert ">rank 1<" not in bundle["text/html"]


def test_a_rank_with_too_many_events_for_a_picture_has_its_figures_alone() -> None:
    run = mt.simulate("1f1b", world_size=2, num_layers=16, global_batch_size=256, microbatch_size=1)
    bundle: Any = run._repr_mimebundle_()
    assert len(run.logs[0]) > 3000
    assert "<svg" not in bundle["text/html"]
    assert "<p><b>1f1b: 2 ranks" in bundle["text/html"]
