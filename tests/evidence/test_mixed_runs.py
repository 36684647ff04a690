"""The published runs on a mixed cluster: simulated on a `mt.Cluster`, as far off as the documents say."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from minitrain.evidence.cluster_tables import cluster_results
from minitrain.evidence.errors_by_table import RowResult, tables_folder
from minitrain.evidence.rows import read_rows


@pytest.fixture(scope="module")
def mixed() -> list[RowResult]:
    """Return the results of the runs on nodes of several kinds."""
    rows = [row for row in read_rows(tables_folder() / "n4.csv") if row.text("cluster") == "mit"]
    return [result for row in rows for result in cluster_results(row)]


def test_the_mixed_runs_are_within_ten_percent_on_average_and_fifteen_each(mixed: list[RowResult]) -> None:
    times: list[tuple[str, Any, Any]] = [(result.row_id, result.predicted_s, result.measured_s) for result in mixed]
    errors = {row_id: abs(predicted_s / measured_s - 1) for row_id, predicted_s, measured_s in times}
    assert list(errors) == ["N2_D2", "N4_D1", "N4_D4", "N6_D3"]
    assert max(errors.values()) < 0.15
    assert fmean(errors.values()) < 0.1


def test_the_runs_of_several_kinds_are_a_group_of_their_own(mixed: list[RowResult]) -> None:
    assert {result.group for result in mixed} == {"mixed"}
