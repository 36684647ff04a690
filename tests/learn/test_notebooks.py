"""A notebook says what to install, and pytest can grade."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.learn import load_exercise
from minitrain.learn.notebook import as_text, main, notebook_of, write_notebooks


def test_a_notebook_installs_minitrain_from_where_it_is_told(tmp_path: Path) -> None:
    main([str(tmp_path), "--install", "git+https://host/owner/minitrain"])
    cells = json.loads((tmp_path / "02_ddp.ipynb").read_text())["cells"]
    assert '    %pip install -q "git+https://host/owner/minitrain"\n' in cells[1]["source"]
    assert '%pip install -q \\"..\\"' in as_text(notebook_of(load_exercise("02")))  # the checkout they lie in
    with pytest.raises(UsageError, match="a requirement is an address, a path or a name"):
        write_notebooks(tmp_path, requirement='x" && rm -r "y')


def test_a_grade_shows_itself_beside_what_is_expected_without_scripts() -> None:
    async def ddp(model: Any) -> Any:
        return await mt.strategies()["ddp"](model)

    shown = mt.grade(ddp, "02")._repr_html_()
    assert "02_ddp: 100 of 100 points" in shown
    assert shown.count("<svg") == 2
    assert "Every rank does the same operations in the same order as expected." in shown
    assert "<script" not in shown

    async def begins(model: Any) -> Any:
        for layer in range(model.num_layers):
            model.load_weights(layer)
        return model

    failed = mt.grade(begins, "02")._repr_html_()
    assert "Yours: up to the error: 248.6 µs with loading" in failed
    assert failed.count('<pre style="white-space: pre-wrap">') == failed.count("<pre") == 2
    assert mt.grade(ddp, "05", keep_run=False)._repr_html_().count("<svg") == 0


@pytest.mark.ci
def test_pytest_grades_exercises_by_marker(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["minitrain.learn.pytest_plugin"]\n')
    (tmp_path / "test_mine.py").write_text(
        "import pytest\nimport minitrain as mt\nfrom minitrain.learn.testing import assert_strategy\n\n\n"
        "@pytest.mark.exercise_02\ndef test_ddp():\n    assert_strategy(mt.strategies()['ddp'], '02')\n\n\n"
        "@pytest.mark.exercise_05\ndef test_zero3():\n    assert_strategy(mt.strategies()['ddp'], '05')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider"]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    chosen = [*command, "-m", "exercise_02"]
    one = subprocess.run(chosen, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert "1 passed, 1 deselected" in one.stdout
    both = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in both.stdout
    assert "05_zero3: 80 of 100 points" in both.stdout
    assert "a rank holds more than the budget" in both.stdout
