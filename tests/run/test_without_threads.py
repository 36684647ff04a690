"""`await mt.simulate_async` needs no thread, so that it works where there are none: in browsers, under seccomp."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import minitrain as mt


def test_an_awaited_run_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    async def awaited() -> mt.Run:
        return await mt.simulate_async("ddp", world_size=2, num_layers=2, global_batch_size=4)

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert asyncio.run(awaited()).step_time > 0
