"""Comparisons: every run on one time axis, a table, and switches between them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from minitrain.operations import Event
from minitrain.run.analysis.timeline import as_timeline
from minitrain.view.bars import bar_labels, hover_texts, make_bars, merged
from minitrain.view.gantt import compare_figure
from minitrain.view.layout import View
from minitrain.view.page import comparison_rows, html_table, write_compare_html
from tests.sample_logs import data_parallel, one_f_one_b

_RUNS = {"1f1b": one_f_one_b(4, 6), "ddp": data_parallel(2, 4), "ddp_overlap": data_parallel(2, 4, overlap=True)}


def test_layers_in_a_row_become_one_bar_of_the_same_length() -> None:
    bars = make_bars(as_timeline(data_parallel(2, 4)))
    whole = merged(bars)
    names = [whole.kinds[code].name for code in whole.kind[whole.rank == 1].tolist()]
    assert names == ["load_weights", "forward", *["backward", "all_reduce"] * 4, "update"]
    assert whole.duration.sum() == pytest.approx(bars.duration.sum(), rel=1e-12)
    texts = hover_texts(whole, 2)
    assert any("<b>forward</b> · rank 1<br>layers 0-3 · samples 1<br>8.8 ms" in text for text in texts)


def test_a_bar_of_several_layers_has_no_layer_written_on_it() -> None:
    whole = merged(make_bars(as_timeline(data_parallel(2, 4))))
    of_rank = whole.take(whole.rank == 1)
    assert bar_labels(of_rank).tolist() == [-1, -1, 3, 3, 2, 2, 1, 1, 0, 0, -1]


def test_other_samples_and_gaps_keep_bars_apart() -> None:
    log = [
        Event("forward", 0, 0, 0, 1, 0, frozenset([0])),
        Event("forward", 0, 0, 1, 1, 0, frozenset([1])),
        Event("forward", 1, 0, 3, 1, 0, frozenset([1])),
    ]
    assert merged(make_bars(as_timeline([log]))).duration.tolist() == [1, 1, 1, 1]
    assert len(merged(make_bars(as_timeline([[]])))) == 0


def test_all_runs_share_one_time_axis_as_long_as_the_longest() -> None:
    figure = compare_figure(_RUNS, title="three")
    longest = max(make_bars(as_timeline(trace)).step_end for trace in _RUNS.values())
    assert figure.layout.xaxis.range[1] == pytest.approx(longest * 1e3)
    assert {trace.xaxis for trace in figure.data} == {None}
    domains = [figure.layout[name].domain for name in ("yaxis", "yaxis2", "yaxis3", "yaxis4")]
    assert all(upper[0] > lower[1] for upper, lower in pairwise(domains))


def test_every_kind_is_in_the_legend_once() -> None:
    figure = compare_figure(_RUNS)
    shown = [trace.name for trace in figure.data if trace.type == "bar" and trace.showlegend is not False]
    assert len(shown) == len(set(shown))
    assert {"forward", "send", "all_reduce", "waiting"} <= set(shown)


def test_no_run_needs_no_panels() -> None:
    assert len(compare_figure({}).data) == 0


def test_runs_with_too_many_bars_become_heat_maps_and_the_small_ones_stay() -> None:
    figure = compare_figure({"large": one_f_one_b(40, 40), "ddp": _RUNS["ddp"]})
    assert [trace.yaxis for trace in figure.data if trace.type == "heatmap"] == ["y"]
    assert {trace.yaxis for trace in figure.data if trace.type == "bar" and trace.yaxis} == {"y2"}


def test_runs_say_their_facts_above_their_panel() -> None:
    figure = compare_figure(_RUNS, {"ddp": View(facts=("step 1 ms", "MFU 40 %"))})
    assert figure.layout.annotations[1].text == "<b>ddp</b>   step 1 ms · MFU 40 %"
    assert figure.layout.annotations[0].text.startswith("<b>1f1b</b>   step ")


def test_the_table_has_a_row_a_run_whose_shares_add_up() -> None:
    rows = comparison_rows(_RUNS)
    assert [row["strategy"] for row in rows] == list(_RUNS)
    for row in rows:
        shares = [float(row[key].rstrip("%")) for key in ("computing", "exposed communication", "bubble")]
        assert sum(shares) == pytest.approx(100, abs=0.2)


def test_a_table_escapes_what_it_shows_and_links_the_pages() -> None:
    table = html_table([{"strategy": "<b>", "error": "1 & 2"}, {"strategy": "ddp", "error": ""}], {"ddp": "ddp.html"})
    assert '<td data-name="strategy">&lt;b&gt;</td><td data-name="error">1 &amp; 2</td>' in table
    assert '<td data-name="strategy"><a href="ddp.html">ddp</a></td>' in table
    assert html_table([], {}) == ""


def test_the_error_of_a_failed_run_has_the_rest_of_its_row() -> None:
    row = {"strategy": "own", "step time": "failed: a long reason", "MFU": "", "bubble": ""}
    assert '>own</td><td class="rest" colspan="3">failed: a long reason</td></tr>' in html_table([row], {})


def test_a_comparison_page_has_its_table_above_its_figure(tmp_path: Path) -> None:
    path = write_compare_html(tmp_path / "all.html", _RUNS, title="three")
    text = path.read_text()
    assert text.index('<table class="runs">') < text.index('id="timeline"')
    assert [entry.name for entry in tmp_path.iterdir()] == ["all.html"]
    assert "<title>three</title>" in text
    given = write_compare_html(tmp_path / "own.html", _RUNS, table=[{"name": "mine"}])
    assert ">mine</td>" in given.read_text()
