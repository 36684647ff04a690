"""What a prompt, a notebook and pandas show of runs, comparisons, sweeps and grades."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.learn.exercise import CheckResult
from minitrain.operations import Event
from minitrain.run.analysis.labels import duration

SIZES: dict[str, Any] = {"world_size": 2, "num_layers": 2, "global_batch_size": 4}


class Frame:
    """A table that notes what it was made of."""

    def __init__(self, data: Any) -> None:
        self.data = data


@pytest.fixture
def pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a pandas that only has tables."""
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame))


def _sweep() -> mt.Sweep:
    return mt.sweep(["ddp", "single"], {"world_size": [1, 2]}, ThreadPoolExecutor(1), num_layers=2, global_batch_size=4)


def test_a_run_is_told_in_one_line_with_step_time_and_peak() -> None:
    run = mt.simulate("ddp", **SIZES)
    peak = f"{run.peak_memory_bytes / 2**30:.4g} GiB"
    words = f"2 ranks, 2 layers, batch 4, h100_80g_nvl8, step {duration(run.step_time)}, peak {peak}"
    assert repr(run) == f"<Run ddp: {words}>"
    assert repr(mt.simulate("ddp", **SIZES, fold=True)) == f"<Run ddp: {words}>"
    assert repr(mt.simulate("ddp", **SIZES, log="summary")) == f"<SummaryRun ddp: {words}>"


def test_a_run_shows_figures_and_a_picture_that_needs_no_script() -> None:
    html = mt.simulate("ddp", **SIZES)._repr_html_()
    assert html.startswith("<p><b>ddp: 2 ranks, ")
    assert "exposed communication" in html
    assert "<svg" in html
    assert "<script" not in html


def test_a_figure_keeps_a_picture_for_notebooks_that_cannot_draw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import plotly.io  # type: ignore[import-untyped]  # plotly ships no types

    shown: list[Any] = []
    display = SimpleNamespace(display=lambda bundle, raw: shown.append(bundle))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(plotly.io.renderers, "default", "plotly_mimetype")
    for result in (mt.simulate("ddp", **SIZES), mt.compare(["ddp", "zero1"], **SIZES)):
        figure = result.figure()
        figure._ipython_display_()
        assert set(shown[-1]) == {"text/html", "application/vnd.plotly.v1+json"}
        assert shown[-1]["text/html"] == result._repr_html_()
        assert len(copy.deepcopy(figure).data) == len(figure.data) > 0
        assert type(pickle.loads(pickle.dumps(figure))).__name__ == "Figure"


def test_a_run_without_every_rank_s_events_shows_figures_alone() -> None:
    bundle = mt.simulate("ddp", **SIZES, log="summary")._repr_mimebundle_()
    assert list(bundle) == ["text/plain", "text/html"]
    assert "<svg" not in bundle["text/html"]


def test_a_comparison_is_its_table() -> None:
    comparison = mt.compare(["ddp", "zero1", "single"], **SIZES)
    lines = repr(comparison).splitlines()
    assert lines[0] == "2 ranks, 2 layers, batch 4, h100_80g_nvl8"
    assert "★  " in repr(comparison)
    assert comparison._repr_html_().count("<tr>") == 4
    assert "failed: world_size (2) must be 1 for single" in comparison._repr_html_()


def test_a_comparison_is_its_table_in_a_notebook_too(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = mt.compare(["ddp", "zero1"], **SIZES)
    table = repr(comparison)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert repr(comparison) == table != ""


def test_a_sweep_says_what_is_done_and_simulates_nothing_for_it() -> None:
    sweep = _sweep()
    assert repr(sweep) == "<Sweep of ddp, single over world_size: 0 of 4 configurations are done>"
    assert "<table>" not in sweep._repr_html_()
    sweep.rows()
    assert repr(sweep).endswith("4 of 4 configurations are done>")
    assert sweep._repr_html_().count("<tr>") == 1 + 3  # the head, and the rows that did not fail
    endless = mt.sweep("ddp", iter([{"world_size": 1}]))
    assert repr(endless) == "<Sweep of ddp over an iterator's parameters: 0 of ? configurations are done>"


def test_a_grade_is_told_by_its_score() -> None:
    results = [CheckResult("runs", "passed"), CheckResult("laws", "failed", "<b>")]
    grade = mt.Grade("02_ddp", results, 1.0)
    assert repr(grade) == "<Grade 02_ddp: 0 of 100 points, failed: laws>"
    assert repr(mt.Grade("02_ddp", results[:1], 1.0)) == "<Grade 02_ddp: 10 of 100 points>"
    assert "&lt;b&gt;" in grade._repr_html_()


@pytest.mark.usefixtures("pandas")
def test_events_become_a_table_in_their_order_with_a_column_a_field() -> None:
    run = mt.simulate("gpipe", **SIZES)
    data = run.to_pandas().data
    assert list(data) == list(Event.__dataclass_fields__)
    assert list(zip(data["time"], data["rank"], data["typ"], strict=True)) == [
        (event.time, event.rank, event.typ) for event in run.events
    ]


@pytest.mark.usefixtures("pandas")
def test_comparisons_and_sweeps_become_tables_of_their_rows() -> None:
    comparison, sweep = mt.compare(["ddp", "single"], **SIZES), _sweep()
    assert comparison.to_pandas().data == comparison.summary()
    assert sweep.to_pandas().data == sweep.rows()


def test_pandas_itself_takes_them() -> None:
    pytest.importorskip("pandas")
    frame = mt.simulate("gpipe", **SIZES).to_pandas()
    assert frame[frame.typ == "forward"].duration.sum() > 0
    assert list(_sweep().to_pandas().status) == ["ok", "ok", "ok", "failed"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda: mt.simulate("ddp", **SIZES).to_pandas(),
        lambda: mt.compare("ddp", **SIZES).to_pandas(),
        lambda: _sweep().to_pandas(),
    ],
)
def test_without_pandas_there_is_one_error(ask: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"^to_pandas needs pandas, which is not installed; `pip install pandas`"):
        ask()


def test_a_folded_run_has_a_table_of_every_rank_s_events(pandas: None) -> None:
    folded, full = (mt.simulate("ddp", **SIZES, fold=fold).to_pandas() for fold in (True, False))
    assert folded.data == full.data
