"""What tests of the command line share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _busy_machines_change_nothing(monkeypatch: pytest.MonkeyPatch, in_this_process: None) -> None:
    """Let no progress, which is shown after a second, stand in what a command prints."""
    monkeypatch.setattr("minitrain.cli.output.PATIENCE_S", 3600.0)
