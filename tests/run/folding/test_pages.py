"""The page of a folded run: a row for each class of ranks, which says how many it stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.run.analysis.explanation import Explanation

SIZES: dict[str, Any] = {"world_size": 16, "num_layers": 8, "global_batch_size": 32}
NAMES = ["0 (x 4)", "4 (x 4)", "8 (x 4)", "12 (x 4)"]


def folded(**more: Any) -> Any:
    """Return four stages of a pipeline, of four ranks each."""
    return mt.simulate("pp_dp", pp=4, fold=True, **{**SIZES, **more})


def test_a_page_has_a_row_for_each_class_and_says_for_how_many_ranks(tmp_path: Path) -> None:
    run = folded()
    page = run.write_html(tmp_path / "page.html").read_text()
    assert "a row for each 4 ranks that do the same, called by the lowest" in page
    assert all(f"rank {name}" in page for name in NAMES)
    assert "trace explain" not in page  # which reads a file that a folded run does not have
    figure = run.figure()
    assert list(figure.layout.yaxis.ticktext) == NAMES
    assert {"rank 12 (x 4)"} <= {trace.name for trace in figure.data}
    assert any("rank 8 (x 4)" in text for trace in figure.data for text in (trace.hovertext or ()))
    assert any("for rank 4 (x 4)'s send" in text for trace in figure.data for text in (trace.hovertext or ()))


def test_a_folded_page_explains_its_rows_as_the_page_of_all_ranks_does() -> None:
    run, whole = folded(), mt.simulate("pp_dp", pp=4, fold=False, **SIZES)
    rows = Explanation(run.drawn, run.bytes_per_element, run.step_end)
    every = whole.explain()
    assert rows.what_ifs == pytest.approx(every.what_ifs)
    assert rows.gaps.seconds() == pytest.approx(every.gaps.seconds()[list(run.representatives)])
    assert rows.breakdown.bubble_fraction == pytest.approx(every.breakdown.bubble_fraction)
    assert rows.critical_path.by_typ() == pytest.approx(every.critical_path.by_typ())


def test_peers_in_the_same_class_are_on_its_row() -> None:
    run = folded()
    assert set(np.unique(run.drawn.peer)) == {-1, 0, 1, 2, 3}
    assert run.drawn is run.timeline_of_classes
    assert set(np.unique(run.timeline.peer)) == {-1, *range(16)}  # every rank has one, since somebody looks


def test_a_page_of_many_bars_names_the_classes_too(tmp_path: Path) -> None:
    run = folded(num_layers=64, global_batch_size=256, microbatch_size=1)
    page = run.write_html(tmp_path / "page.html").read_text()
    _, _, rest = page.partition('<script id="timeline-data" type="application/json">')
    (shown,) = json.loads(rest.partition("</script>")[0])
    data = shown["data"]
    assert data["ranks"] == NAMES
    assert sum(row["count"] for row in data["rows"]) == run.world_size


def written(*command: str) -> tuple[str, set[str]]:
    """Run a command, and return what it printed and the files that it wrote."""
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert not result.exception, result.output
    return result.stdout, {str(path) for path in Path("traces").rglob("*.*")}


def test_run_writes_the_page_of_a_folded_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "ddp", "--fold", "--layers", "2"]
    assert written(*command, "--no-trace")[1] == set()
    printed, files = written(*command)
    assert "wrote traces/ddp-folded/index.html, which has a row for each class of ranks" in printed
    assert "; --trace writes every rank, and the log that diff reads" in printed
    assert files == {"traces/ddp-folded/index.html"}


def test_the_traces_of_every_rank_are_written_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "ddp", "--layers", "2", "--world-size", "4", "--trace"]
    _, files = written(*command, "--fold")
    assert files == {f"traces/ddp/{name}" for name in ("index.html", "trace.json", "run.jsonl")}
    folded_files = [Path(f"traces/ddp/{name}").read_bytes() for name in ("trace.json", "run.jsonl")]
    written(*command)
    assert folded_files == [Path(f"traces/ddp/{name}").read_bytes() for name in ("trace.json", "run.jsonl")]


def test_a_comparison_of_folded_runs_has_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ["--layers", "2", "--shared-script"]
    _, files = written("compare", "ddp", "pp_dp", "--fold", *sizes)
    pages = {"compare.html", "ddp-folded/index.html", "pp_dp-folded/index.html"}
    assert files == {f"traces/{name}" for name in pages}
    assert "4 (x 4)" in Path("traces/compare.html").read_text()


def test_a_run_whose_ranks_all_differ_is_drawn_with_their_numbers(tmp_path: Path) -> None:
    run = mt.simulate("1f1b", fold=True, world_size=4, num_layers=4, global_batch_size=8)
    page = run.write_html(tmp_path / "page.html").read_text()
    assert "(x " not in page.partition("<script")[0]
    assert run.figure().layout.yaxis.ticktext is None
