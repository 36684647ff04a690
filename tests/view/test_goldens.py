"""Exports of one small run, compared byte by byte with committed files; `--update-goldens` writes them anew."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import minitrain as mt
from minitrain.files import write_text
from minitrain.machine.given_durations import FixedPredictor
from minitrain.view.exports import write_chakra, write_hta
from minitrain.view.lanes import schedule_text
from minitrain.view.run_folder import view_of
from minitrain.view.svg import write_svg

GOLDENS = Path(__file__).parents[2] / "traces" / "golden" / "exports"


def _run() -> mt.Run:
    predictor = FixedPredictor(load_weights=1e-4, forward=1e-3, backward=2e-3, update=1e-4, send=2e-4)
    return mt.simulate(
        partial(mt.strategies()["1f1b"], overlap_messages=False),
        world_size=2,
        num_layers=2,
        global_batch_size=3,
        microbatch_size=1,
        hardware=predictor,
        memory_by_kind=True,
    )


def _writers(run: mt.Run, folder: Path) -> dict[str, Callable[[], object]]:
    return {
        "trace.json": lambda: run.write_chrome_trace(folder / "trace.json"),
        "gantt.svg": lambda: write_svg(folder / "gantt.svg", run.timeline, view_of(run)),
        "schedule.txt": lambda: write_text(folder / "schedule.txt", [schedule_text(run.logs)]),
        "rank_1.json": lambda: write_hta(folder, run.timeline),
        "minitrain.1.et": lambda: write_chakra(folder, run.timeline),
        "comm_groups.json": lambda: write_chakra(folder, run.timeline),
    }


@pytest.mark.parametrize("name", list(_writers(_run(), Path())))
def test_an_export_is_the_committed_one_byte_by_byte(tmp_path: Path, name: str, update_goldens: bool) -> None:
    _writers(_run(), tmp_path)[name]()
    written, golden = (tmp_path / name).read_bytes(), GOLDENS / name
    if update_goldens:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_bytes(written)
    assert hashlib.sha256(written).digest() == hashlib.sha256(golden.read_bytes()).digest(), name
