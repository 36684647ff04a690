"""What notebooks show of a run: its figure, its picture or its text."""

from __future__ import annotations

import json
from typing import Any

import minitrain as mt
from minitrain.trace.page import PLOTLY_MIME


def test_a_notebook_shows_a_run_as_figure_picture_or_text() -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4)
    bundle: Any = run._repr_mimebundle_()
    assert list(bundle) == ["text/plain", PLOTLY_MIME, "text/html"]
    figure = json.loads(json.dumps(bundle[PLOTLY_MIME]))
    assert figure["config"]["plotlyServerURL"] == ""
    assert len(figure["data"]) == len(run.figure().data)
    assert bundle["text/html"].startswith("<svg")


def test_a_run_too_large_for_a_picture_is_shown_as_its_figure() -> None:
    run = mt.simulate("1f1b", world_size=8, num_layers=16, global_batch_size=256, microbatch_size=1)
    assert list(run._repr_mimebundle_()) == ["text/plain", PLOTLY_MIME]
