"""What the tests of folding share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from minitrain.run.folding import driver


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the classes of every attempt that is made in full."""
    counted: list[int] = []
    performed = driver._simulate_classes

    async def counting(job: Any, fold: Any, representatives: Sequence[int]) -> Any:
        counted.append(len(representatives))
        return await performed(job, fold, representatives)

    monkeypatch.setattr(driver, "_simulate_classes", counting)
    return counted
