"""What runs and comparisons write and draw of themselves."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import minitrain as mt
from minitrain.view.run_folder import conditions, folder_name, write_comparison, write_run

SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 8}


async def broken(model: mt.Model) -> mt.Model:
    raise ValueError("[no] way")


@pytest.fixture(scope="module")
def comparison() -> mt.Comparison:
    return mt.compare(["gpipe", "ddp", broken], **SIZES)


def test_a_run_draws_and_writes_itself(tmp_path: Path) -> None:
    run = mt.simulate("1f1b", **SIZES)
    assert run.figure().data
    page = run.write_html(tmp_path / "page.html").read_text()
    assert "1f1b: 4 ranks, 4 layers, batch 8, h100_80g_nvl8" in page
    trace = json.loads(run.write_chrome_trace(tmp_path / "trace.json").read_text())
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == run.num_events


def test_a_comparison_draws_what_came_to_its_end(comparison: mt.Comparison) -> None:
    names = {trace.name for trace in comparison.figure().data}
    assert {"ddp", "gpipe"} <= names
    assert "broken" not in names


def test_captions_of_transformers_are_as_short_as_those_of_other_runs(tmp_path: Path) -> None:
    comparison = mt.compare(["ddp", "fsdp"], workload="gpt2-xl", world_size=2, global_batch_size=2)
    captions = [note.text for note in comparison.figure().layout.annotations if "<b>" in (note.text or "")]
    assert [caption.count(" · ") for caption in captions] == [4, 4]  # step, MFU, bubble, exposed, peak
    page = comparison.write_html(tmp_path / "page.html").read_text()
    assert '<div class="wide"><table class="runs">' in page  # which a narrow window scrolls, and not the page
    above = page.partition('<div id="figure">')[0]
    assert "tokens/s a rank" in above
    assert "<th>peak by kind" not in above  # a list of figures, which would be a tall column
    assert above.count('<td class="rest beneath" colspan="8"><div>peak by kind: weights ') == len(comparison.succeeded)


def test_the_page_of_a_comparison_lists_failures_too(comparison: mt.Comparison, tmp_path: Path) -> None:
    page = comparison.write_html(tmp_path / "page.html").read_text()
    table = page.partition('<table class="runs">')[2].partition("</table>")[0]
    places = [table.index(name) for name in (*(run.strategy for run in comparison.succeeded), "broken")]
    assert places == sorted(places)
    assert "failed: [no] way" in table


def test_the_table_says_who_failed_and_why(comparison: mt.Comparison) -> None:
    console = Console(width=80, record=True, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(comparison.table())
    assert "broken: ValueError: [no] way" in captured.get()


def test_a_comparison_in_which_all_failed_writes_nothing(tmp_path: Path) -> None:
    failed = mt.compare([broken], **SIZES)
    assert write_comparison(failed, tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    console = Console(width=80)
    with console.capture() as captured:
        console.print(failed.table())
    assert "no strategy came to its end" in captured.get()


def test_out_of_memory_is_said_in_the_words_of_a_page(tmp_path: Path) -> None:
    run = mt.simulate("ddp", world_size=1, num_layers=1, global_batch_size=16384)
    assert "(out of memory)" in run.write_html(tmp_path / "page.html").read_text()
    assert conditions(run) == "1 rank, 1 layer, batch 16384, h100_80g_nvl8"


def test_durations_by_hand_have_neither_mfu_nor_a_device_s_memory(tmp_path: Path) -> None:
    run = mt.simulate("ddp", hardware=mt.FixedPredictor(forward=1), **SIZES)
    assert "MFU" not in run.write_html(tmp_path / "page.html").read_text().partition("plotly")[0]
    assert {file.name for file in write_run(run, tmp_path).iterdir()} == {"index.html", "trace.json", "run.jsonl"}


@pytest.mark.parametrize(
    ("name", "folder"), [("1f1b (2)", "1f1b-2"), ("../..", "run"), ("grün", "grün"), ("a/b", "a-b")]
)
def test_folders_have_names_that_any_system_takes(name: str, folder: str) -> None:
    assert folder_name(name) == folder


def test_every_page_of_a_comparison_is_whole(tmp_path: Path) -> None:
    comparison = mt.compare(["ddp", "zero3"], world_size=2, num_layers=2, global_batch_size=4)
    page, *folders = write_comparison(comparison, tmp_path)
    for path in (page, *(folder / "index.html" for folder in folders)):
        text = path.read_text()
        assert "<script src" not in text
        assert 20_000 < len(text) < 200_000
