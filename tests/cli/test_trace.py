"""`minitrain trace`: saved runs drawn, exported and explained without running again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import minitrain as mt
from minitrain.cli import app

_SIZES: Any = {"world_size": 2, "num_layers": 4, "global_batch_size": 8}


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Path]:
    with contextlib.chdir(tmp_path):
        mt.simulate("1f1b", **_SIZES, microbatch_size=2, memory_by_kind=True).save("run.jsonl")
        yield tmp_path


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["trace", *arguments])


def test_show_writes_the_page_beside_the_run(saved: Path) -> None:
    assert _invoke("show", "run.jsonl").stdout == "wrote run.html\n"
    assert "<title>1f1b: 2 ranks, 4 layers, batch 8, h100_80g_nvl8</title>" in (saved / "run.html").read_text()
    assert _invoke("show", "run.jsonl", "--out", "deep/page.html").stdout == "wrote deep/page.html\n"


def test_show_opens_the_browser_only_if_asked(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    _invoke("show", "run.jsonl")
    assert not opened
    _invoke("show", "run.jsonl", "--open")
    assert opened == [(saved / "run.html").resolve().as_uri()]


@pytest.mark.parametrize(
    ("out", "begins"), [("a.html", "<!doctype"), ("a.json", '{"displayTimeUnit"'), ("a.svg", "<svg"), ("a.txt", "F0")]
)
def test_export_knows_the_format_by_the_name(saved: Path, out: str, begins: str) -> None:
    assert _invoke("export", "run.jsonl", out).stdout == f"wrote {out}\n"
    assert (saved / out).read_text().startswith(begins)


@pytest.mark.parametrize(("form", "count"), [("hta", 2), ("chakra", 3)])
def test_export_writes_a_folder_for_tools_that_want_a_file_a_rank(saved: Path, form: str, count: int) -> None:
    assert _invoke("export", "run.jsonl", "all", "--format", form).stdout == f"wrote {count} files into all\n"
    assert len(list((saved / "all").iterdir())) == count


def test_export_refuses_a_format_that_it_does_not_know(saved: Path) -> None:
    result = _invoke("export", "run.jsonl", "a.foo")
    assert result.exit_code == 2
    assert "a.foo does not say its format; give --format, one of html, chrome, svg, text, hta, chakra" in result.stderr
    assert "there is no format 'pdf'" in _invoke("export", "run.jsonl", "a.foo", "--format", "pdf").stderr


def test_explain_says_why_ranks_wait_and_what_would_help(saved: Path) -> None:
    told = _invoke("explain", "run.jsonl").stdout
    for part in ("warm-up bubble", "longest waits", "critical path", "step if free", "most memory", "(p - 1)(tf + tb)"):
        assert part in told


def test_explain_calls_one_thing_the_bubble_and_says_what_the_others_are(saved: Path) -> None:
    told = " ".join(_invoke("explain", "run.jsonl").stdout.split())
    run = mt.load_run("run.jsonl")
    form = run.explain().closed_form
    assert form is not None
    assert f" bubble {run.bubble_fraction:.1%}: the share of all ranks' time spent waiting" in told
    assert f"makespan bubble {form.fraction(run.makespan_bubble):.1%}: the time from the first pass to the last" in told
    assert "textbook bubble 20.0%: the makespan bubble by the formula (p - 1)(tf + tb)" in told


def test_where_no_rank_waits_explain_says_so(saved: Path) -> None:
    mt.simulate("ddp", **_SIZES).save("ddp.jsonl")
    told = _invoke("explain", "ddp.jsonl").stdout
    assert "No rank ever waits." in told
    assert "bubble" not in told


def test_a_run_may_be_named_by_its_folder(saved: Path) -> None:
    assert _invoke("explain", ".").stdout == _invoke("explain", "run.jsonl").stdout


def test_of_many_ranks_explain_shows_the_ends(saved: Path) -> None:
    mt.simulate("ddp", world_size=20, num_layers=2, global_batch_size=20, slowdown={3: 2.0}).save("ddp.jsonl")
    ranks = [line.split()[0] for line in _invoke("explain", "ddp.jsonl").stdout.splitlines() if line[:5].strip()]
    assert [rank for rank in ranks if rank.isdigit()] == [str(rank) for rank in [*range(8), *range(12, 20)]]


def test_explain_as_json_holds_the_summary_and_the_analysis(saved: Path) -> None:
    data = json.loads(_invoke("explain", "run.jsonl", "--json").stdout)
    assert data["strategy"] == "1f1b"
    assert {"ranks", "longest_waits", "critical_path", "step_time_if_free_s", "closed_form"} <= set(data)


@pytest.mark.parametrize("command", [("show",), ("explain",), ("export", "out.svg")])
def test_a_damaged_file_gives_one_error_and_exit_code_2(saved: Path, command: tuple[str, ...]) -> None:
    Path("bad.jsonl").write_text("{}\n")
    result = _invoke(command[0], "bad.jsonl", *command[1:])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "bad.jsonl is not a minitrain-run file, or it is damaged" in result.stderr
