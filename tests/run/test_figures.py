"""The registry of figures: what summaries, tables of machines and tables of commands and pages have comes from it."""

from __future__ import annotations

from typing import Any

import pytest

import minitrain as mt
from minitrain.run import figures
from minitrain.run.figures import FIGURES, TABLES, Column, Figure, FiguresOf
from minitrain.view.run_folder import table_rows
from minitrain.view.tables import comparison_table, run_table, table_text

SMALL: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 8}
TINY: dict[str, Any] = {"world_size": 2, "global_batch_size": 4, "workload": "tiny", "hardware": "a100_80g"}


@pytest.mark.parametrize("given", [SMALL, TINY], ids=["equal layers", "transformer"])
def test_a_summary_is_what_the_registry_asks_of_a_run(given: dict[str, Any]) -> None:
    run = mt.simulate("ddp", **given)
    asked = {figure.name: figure.of(run) for figure in FIGURES if figure.asked_of(run)}
    assert run.summary() == asked
    assert list(run.summary()) == list(asked)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_a_bubble_is_not_below_nothing_by_rounding(world_size: int) -> None:
    sizes: dict[str, Any] = {"world_size": world_size, "num_layers": 2, "global_batch_size": 16}
    run = mt.simulate("ddp", **sizes)
    assert 0 <= run.makespan_bubble < 1e-12
    assert mt.price("ddp", ["h100_80g_nvl8"], **sizes).makespan_bubble.tolist() == [run.makespan_bubble]


def test_a_name_means_one_figure() -> None:
    names = [figure.name for figure in FIGURES]
    assert len(set(names)) == len(names)


def test_the_columns_of_many_machines_are_those_of_the_registry() -> None:
    priced = mt.price("ddp", ["a100_80g", "h100_80g_nvl8"], **SMALL)
    runs = [figures.FiguresOf(run) for run in priced]
    for figure in FIGURES:
        if figure.column and runs[0][figure.name] is not None:
            assert list(priced.columns()[figure.name]) == [run[figure.name] for run in runs]


@pytest.mark.parametrize("table", TABLES)
def test_every_column_of_a_table_has_a_number_for_a_transformer(table: str) -> None:
    row = FiguresOf(mt.simulate("ddp", **TINY))
    assert [column.head for column in TABLES[table] if column.cell(row) == "-"] == []


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", ["average_watts", "joules_per_token", "peak_watts"])
def test_a_new_figure_of_runs_is_known_of_each_of_many_machines(
    name: str, fold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "FIGURES", (*FIGURES, Figure(name)))
    machines = ["a100_80g", "h100_80g_nvl8", "b200_192g_nvl8"]
    priced = mt.price("zero3", **{**TINY, "fidelity": "roofline", "hardware": machines, "fold": fold})
    found = [summary[name] for summary in priced.summary()]
    assert found == [getattr(run, name) for run in priced]
    assert len(set(found)) == len(found)


def test_a_column_that_is_added_to_a_table_is_shown_there(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Column("step µs", "step_time_s", 1e6, "{:.2f}".format, title="step in µs")
    monkeypatch.setattr(figures, "TABLES", {name: (new, *shown) for name, shown in TABLES.items()})
    for module in ("tables", "run_folder"):
        monkeypatch.setattr(f"minitrain.view.{module}.TABLES", figures.TABLES)
    comparison = mt.compare(["ddp", "zero3"], **SMALL)
    text = f"{comparison.succeeded[0].step_time * 1e6:.2f}"
    assert text in table_text(comparison_table(comparison))
    assert text in table_text(run_table(comparison.succeeded[0]))
    assert table_rows(comparison)[0]["step in µs"] == text
    real = mt.compare(["ddp"], **TINY)
    beside, instead = (table_text(comparison_table(real, tokens)) for tokens in (None, 1e9))
    assert {name for name in ("µs", "HFU", "tensors") if name in instead} == {"µs"}
    assert {name for name in ("µs", "HFU", "tensors") if name in beside} == {"µs", "HFU", "tensors"}


@pytest.mark.parametrize("table", ["tune", "page of a search"])
def test_every_column_of_a_search_is_in_its_rows(table: str) -> None:
    found = mt.tune("tiny", "a100_80g", world_size=2, global_batch_size=4, space={"tp": [1], "pp": [1, 2]}, jobs=1)
    assert [column.head for column in TABLES[table] if column.cell(found.ranked[0]) == "-"] == []
