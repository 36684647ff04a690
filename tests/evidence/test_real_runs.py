"""Steps of real processes as evidence: tables and contributed folders are predicted, compared, or refused with why."""

from __future__ import annotations

import csv
import json
import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.evidence.real_runs import COLUMNS, write_rows
from minitrain.run.contributions import CALIBRATION_FILE, RUN_FILE, Contribution, strategy_text, workload_text
from minitrain.workloads.matmul import DenseRows
from minitrain.workloads.transformer_workload import TransformerWorkload
from tests.training.test_calibration import PROGRAMS, TRUTH, as_if_measured

calibration_of = pytest.importorskip("minitrain.training.calibration").calibration_of


def contributed(folder: Path, **changes: Any) -> Contribution:
    """Write a run as if somebody had contributed it."""
    given: dict[str, Any] = {
        "strategy": "ddp",
        "world_size": 2,
        "num_layers": 4,
        "global_batch_size": 64,
        "workload": "rows:512",
        "hardware": "",
        "digest": "0",
        "backend": "gloo",
        "machine": {"machine": "a machine"},
        "versions": {},
        "step_times_s": [9.0, 1.0, 3.0, 2.0],
        "losses": [],
        "peak_memory_bytes": 1e6,
        "memory_by_kind": {},
    }
    run = Contribution(**(given | changes))
    run.write(folder)
    return run


def step_s(**given: Any) -> float:
    """Return what the calibration of these tests predicts."""
    sizes = {"world_size": 2, "num_layers": 4, "global_batch_size": 64, "workload": DenseRows(512)}
    return mt.simulate("ddp", **(sizes | given), hardware=TRUTH).step_time  # type: ignore[arg-type]


def test_folders_are_predicted_by_the_calibration_above_them(tmp_path: Path) -> None:
    TRUTH.write(tmp_path / CALIBRATION_FILE)
    contributed(tmp_path / "one")
    contributed(tmp_path / "more" / "two", num_layers=8)
    done = mt.validate(csv=tmp_path)
    found = {result.row_id: result for result in done.results}
    assert set(found) == {"one", "more/two"}
    assert found["one"].predicted_s == step_s()
    assert found["more/two"].predicted_s == step_s(num_layers=8)
    assert found["one"].measured_s == statistics.median([1.0, 3.0, 2.0])  # the first step warms up
    assert found["one"].measured_bytes == 1e6
    assert done.in_interval == (0, 0)  # of a calibration without measurements


def test_a_table_of_many_programs_says_how_many_lie_in_their_intervals(tmp_path: Path) -> None:
    drawn = random.Random(0).sample(PROGRAMS, len(PROGRAMS))
    measured = [as_if_measured(*each, noise=0.1, seed=place) for place, each in enumerate(drawn)]
    calibration = calibration_of(measured[::2], 2)
    calibration.write(tmp_path / "machine.json")
    rows = [
        {
            "row_id": f"{each.strategy}-{place}",
            "strategy": each.strategy,
            "workload": workload_text(each.parameters["workload"]),
            "hardware": "machine.json",
            "step_time_s": each.step_s,
            **{name: each.parameters[name] for name in ("world_size", "num_layers", "global_batch_size")},
        }
        for place, each in enumerate(measured[1::2])
    ]
    write_rows(tmp_path / "runs.csv", rows)
    done = mt.validate(csv=tmp_path / "runs.csv")
    assert not done.skipped
    low, high = calibration.factors()
    held = 0
    for result, row in zip(done.results, rows, strict=True):
        assert result.predicted_s is not None
        held += low * result.predicted_s <= row["step_time_s"] <= high * result.predicted_s
    assert done.in_interval == (held, len(rows))
    assert held > len(rows) / 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hardware": ""}, "hardware is empty, which a real run needs"),
        ({"step_time_s": ""}, "step_time_s is empty"),
        ({"step_time_s": "-1"}, "a number above 0 is needed"),
        ({"world_size": "1.5"}, "a whole number of at least 1 is needed"),
        ({"strategy": "dpd"}, "ddp"),
        ({"workload": "rows:many"}, 'dense layers are named by their width, "rows:512"'),
        ({"hardware": "nowhere.json"}, "nowhere.json"),
        ({"sequence_length": "12"}, 'no column "sequence_length" of real runs'),
        ({"world_sise": "2"}, 'nearest is "world_size"'),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    values = {"strategy": "ddp", "world_size": "2", "hardware": "h100_80g_nvl8", "step_time_s": "1.0"} | changes
    with (tmp_path / "runs.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(values))
        table.writeheader()
        table.writerow(values)
    done = mt.validate(csv=tmp_path / "runs.csv")
    assert not done.results
    assert reason in done.skipped[0].reason


def test_a_folder_without_runs_and_a_broken_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(mt.UsageError, match=r"expected run.json of contributed runs, found none"):
        mt.validate(csv=tmp_path)
    contributed(tmp_path / "one")
    known = json.loads((tmp_path / "one" / RUN_FILE).read_text())
    for broken in ({**known, "world_size": "two"}, {**known, "more": 1}, {"strategy": "ddp"}):
        (tmp_path / "one" / RUN_FILE).write_text(json.dumps(broken))
        with pytest.raises(mt.UsageError, match="cannot read the measured run"):
            mt.validate(csv=tmp_path)


def test_names_are_those_of_commands() -> None:
    assert strategy_text("pp_dp", {"pp": 2}) == "pp_dp:pp=2"
    assert workload_text(DenseRows(512)) == "rows:512"
    assert workload_text(DenseRows(512, 8)) == "rows:512:8"
    for text in ("rows:512", "rows:512:8", "tiny"):
        assert mt.simulate("ddp", world_size=2, workload=text, global_batch_size=4).step_time > 0
    for text in ("rows:", "rows:0", "rows:1:2:3", "rows:1e3"):
        with pytest.raises(mt.UsageError, match="dense layers are named by their width"):
            mt.simulate("ddp", world_size=2, workload=text)
    with pytest.raises(mt.UsageError, match="has no name by which others could train it"):
        workload_text(TransformerWorkload(replace(mt.models()["tiny"], hidden_size=128)))


def test_every_column_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert [name for name in COLUMNS if name != "folder" and f"`{name}`" not in page] == []


OWN = """
from minitrain.lib import Model
from minitrain.strategies.ddp import ddp

async def mine(model: Model, times: int = 1) -> Model:
    return await ddp(model)
"""


def test_a_real_run_is_contributed_with_its_strategy_and_calibration(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "own.py").write_text(OWN)
    run = mt.train(f"{tmp_path / 'own.py'}:mine:times=2", steps=3, hardware=TRUTH, workload="rows:256", num_layers=4)
    folder = run.contribute(tmp_path / "there" / "mine")
    assert sorted(path.name for path in folder.iterdir()) == [
        "calibration.json",
        "log.jsonl.gz",
        "run.json",
        "strategy.py",
    ]
    (tmp_path / "own.py").unlink()
    (found,) = mt.validate(csv=tmp_path / "there").results
    assert run.predicted is not None
    assert found.predicted_s == run.predicted.step_time
    assert found.about.startswith("strategy.py:mine:times=2")
    assert mt.load_run(folder / "log.jsonl.gz").step_time == run.step_time
    kept = Contribution.read(folder / RUN_FILE)
    assert (kept.digest, kept.losses, kept.versions["torch"]) == (run.digest, list(run.losses), run.versions["torch"])
    with pytest.raises(mt.UsageError, match=r"only a run that mt.train has returned can be contributed"):
        replace(run, predicted=None).contribute(tmp_path)
