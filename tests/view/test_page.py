"""Figures and pages: what they show, how large they are, and that they need nobody."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from minitrain.errors import UsageError
from minitrain.operations import Event
from minitrain.run.analysis.timeline import Timeline, as_timeline
from minitrain.view.gantt import figure, lane_geometry
from minitrain.view.layout import Drawing, View
from minitrain.view.page import write_html, write_page
from tests.sample_logs import data_parallel, one_f_one_b

_VIEW = View("1f1b on h100_80g_nvl8", ("step 12.3 ms", "MFU 41 %"), capacity_bytes=5 * 2**30)


def _bars(drawn: Any) -> list[Any]:
    return [trace for trace in drawn.data if trace.type == "bar"]


def _large() -> Timeline:
    return as_timeline(one_f_one_b(num_stages=40, num_microbatches=40))


def test_a_figure_has_one_trace_a_kind_and_a_curve_a_rank() -> None:
    drawn = figure(one_f_one_b(4, 6), _VIEW)
    kinds = ["load_weights", "forward", "backward", "update", "send", "recv", "waiting"]
    assert [trace.name for trace in _bars(drawn)] == kinds
    curves = [f"rank {rank}" for rank in range(4)]
    assert [trace.name for trace in drawn.data if trace.type == "scatter"] == [*curves, "critical path (click)"]
    assert len({trace.marker.color for trace in _bars(drawn)}) == len(kinds)


def test_layers_in_a_row_carry_their_microbatch_once() -> None:
    drawn = _bars(figure(one_f_one_b(2, 3, num_layers=4)))
    labels = [trace for trace in drawn if trace.showlegend is False]
    assert [trace.name for trace in labels] == ["forward", "backward"]
    assert list(labels[0].text) == ["0", "1", "2"] * 2
    forward = next(trace for trace in drawn if trace.name == "forward")
    assert set(forward.text) == {""}
    alone = next(trace for trace in _bars(figure(one_f_one_b(2, 3))) if trace.name == "forward")
    assert list(alone.text) == ["0", "1", "2"] * 2


def test_what_takes_no_time_is_not_in_the_legend() -> None:
    log = [Event("forward", 0, 0, 0.0, 1.0, 0), Event("loss", 1, 0, 1.0, 0.0, 0)]
    assert [trace.name for trace in _bars(figure([log]))] == ["forward"]


def test_rank_0_is_on_top_and_both_panels_share_the_time_axis() -> None:
    drawn = figure(one_f_one_b(4, 6))
    assert drawn.layout.yaxis.range == (3.5, -0.5)
    assert {trace.xaxis for trace in drawn.data} == {None}
    assert {trace.yaxis for trace in drawn.data} == {"y", "y2"}
    assert drawn.layout.yaxis.domain[0] > drawn.layout.yaxis2.domain[1]


def test_the_title_says_what_was_run_and_how_it_went() -> None:
    layout = figure(one_f_one_b(2, 2), _VIEW).layout
    assert "1f1b on h100_80g_nvl8" in layout.title.text
    assert layout.title.subtitle.text == "step 12.3 ms · MFU 41 %"


def test_the_capacity_is_a_line_where_memory_comes_near_it_and_a_note_where_it_does_not() -> None:
    near = figure(one_f_one_b(8, 16), _VIEW).layout
    assert [shape.y0 for shape in near.shapes if shape.yref == "y2"] == [5]
    assert near.yaxis2.range[1] > 5
    far = figure(one_f_one_b(2, 2), _VIEW).layout
    assert [shape.x0 for shape in far.shapes] == [as_timeline(one_f_one_b(2, 2)).begin * 1e3]  # where the step begins
    assert far.annotations[0].text == "device memory 5 GiB ↑"
    assert not figure(one_f_one_b(2, 2)).layout.annotations


def test_overlapping_communication_has_thinner_bars_below_its_rank() -> None:
    drawn = {trace.name: trace for trace in _bars(figure(data_parallel(2, 4, overlap=True)))}
    assert drawn["all_reduce"].width.min() < drawn["backward"].width.min()
    assert drawn["all_reduce"].y[0] > drawn["backward"].y[0]
    for num_lanes in (1, 2, 4):
        center, width = lane_geometry(num_lanes)
        edges = sorted([*(center - width / 2), *(center + width / 2)])
        assert -0.5 < edges[0] < edges[-1] < 0.5


def test_many_bars_become_a_heat_map_and_many_ranks_a_band() -> None:
    drawn = figure(_large())
    assert [trace.type for trace in drawn.data] == [*["scatter"] * 4, "heatmap", *["scatter"] * 3]
    assert drawn.data[4].z.shape[0] == 40
    names = [trace.name for trace in drawn.data[:4]]
    assert names == ["lowest rank", "highest rank", "rank 0 (peak)", "critical path (click)"]
    assert [trace.name for trace in drawn.data[5:]] == ["mostly computing", "mostly communicating", "mostly waiting"]


def test_curves_of_long_logs_are_thinned_without_losing_the_peak() -> None:
    log = [Event("forward", 0, 0, float(t), 1.0, float(t == 12345) * 2**29) for t in range(21_000)]
    drawn = figure([log])
    assert len(drawn.data[0].x) == 1000
    assert drawn.data[0].y.max() == 1.0


def test_ranks_with_the_same_memory_share_a_curve() -> None:
    logs = [[Event("forward", rank, 0, 0.0, 1.0, 1.0 + rank // 2)] for rank in range(4)]
    curves = [trace.name for trace in figure(logs).data if trace.legend == "legend2"]
    assert curves == ["ranks 0-1", "ranks 2-3"]


def test_an_empty_log_is_an_empty_figure() -> None:
    drawn = figure([[], []])
    assert [(trace.type, trace.name) for trace in drawn.data] == [("scatter", "ranks 0-1")]
    assert len(figure([]).data) == 0


def test_nothing_in_a_page_points_to_a_cloud_service(tmp_path: Path) -> None:
    drawn = Drawing([], {"font": {}})
    for page in (write_html(tmp_path / "run.html", one_f_one_b(2, 2), _VIEW), write_page(tmp_path / "a", drawn, "")):
        text = page.read_text()
        assert "cloud.plotly.com" not in text
        assert not re.search(r"<(script|link)[^>]*(src|href)=.http", text)
    assert '"plotlyServerURL":""' in text.replace(" ", "")
    assert '"showSendToCloud":false' in text.replace(" ", "")
    assert "sendChartToCloud" in figure([[]]).layout.modebar.remove


def test_a_page_holds_its_timeline_and_needs_no_other_file(tmp_path: Path) -> None:
    path = write_html(tmp_path / "deeper" / "page.html", one_f_one_b(2, 2), View("a <b> title"))
    text = path.read_text()
    assert "<title>a &lt;b&gt; title</title>" in text
    (shown,) = json.loads(re.findall(r'<script id="timeline-data"[^>]*>(.*?)</script>', text)[0])
    assert len(shown["data"]["rows"]) == 2
    assert [entry.name for entry in path.parent.iterdir()] == ["page.html"]
    assert len(text) < 100_000


def test_pages_of_curves_side_by_side_share_one_plotly(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_page(tmp_path / name, Drawing([], {"font": {}}), "", "directory")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.html", "b.html", "plotly.min.js"]
    assert '<script src="plotly.min.js">' in (tmp_path / "a.html").read_text()
    assert (tmp_path / "a.html").stat().st_size < 200_000


def test_a_page_that_needs_the_internet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="include_plotlyjs must be True, 'directory' or 'parent', got 'cdn'"):
        write_html(tmp_path / "page.html", [[]], include_plotlyjs="cdn")


@pytest.mark.few(1)
@pytest.mark.parametrize("include", [True, "directory"])
def test_a_large_page_is_a_small_file_that_needs_no_other(tmp_path: Path, include: bool | str) -> None:
    path = write_html(tmp_path / "page.html", _large(), _VIEW, include)
    assert path.stat().st_size < 200_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]
    assert not re.search(r"<(script|link)[^>]*(src|href)=.(?!data:)[a-z./]", path.read_text())
