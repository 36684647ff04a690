"""What tests of folding share: whether a folded run is the full one, rank by rank and to the last float."""

from __future__ import annotations

from typing import Any

import numpy as np

import minitrain as mt
from minitrain.operations import NOTE, SAMPLES, STORES, STRIDE, EventLog

_AT_THE_END = ("rank", "time", "final_weights", "final_experts", "memory_journal", "pass_modes", "peak_memory")


def require_identical(strategy: Any, **parameters: Any) -> Any:
    """Require that a folded run says and holds the same as the full one, and return it."""
    full = mt.simulate(strategy, **parameters, fold=False)
    folded = mt.simulate(strategy, **parameters, fold=True)
    assert folded.summary() == full.summary()
    assert folded.peak_memory_per_rank == full.peak_memory_per_rank
    assert [folded.span_bubble, folded.makespan_bubble] == [full.span_bubble, full.makespan_bubble]
    assert folded.by_type == full.by_type
    for name in ("computing", "exposed", "overlapped", "waiting"):
        assert np.array_equal(getattr(folded.breakdown, name), getattr(full.breakdown, name))
    require_every_rank(folded, full)
    return folded


def require_every_rank(folded: mt.Run, full: mt.Run) -> None:
    """Require that logs, models, stores and final weights of every rank are the same."""
    assert len(folded.logs) == len(folded.models) == len(full.logs)
    for log, other in zip(folded.logs, full.logs, strict=True):
        assert _values(log) == _values(other)
    for mine, theirs in zip(folded.models, full.models, strict=True):
        assert type(mine) is type(theirs)
        assert mine.log is folded.logs[mine.rank]
        assert [getattr(mine, name) for name in _AT_THE_END] == [getattr(theirs, name) for name in _AT_THE_END]
        assert [dict(getattr(mine, name)) for name in STORES] == [dict(getattr(theirs, name)) for name in STORES]
        assert mine.memory_by_store() == theirs.memory_by_store()


def _values(log: Any) -> list[Any]:
    """Return rank and rows of a log, with what a note says in the place of the note."""
    assert isinstance(log, EventLog)
    rows = list(log._rows)
    assert all(type(samples) is frozenset for samples in rows[SAMPLES::STRIDE])
    rows[NOTE::STRIDE] = [note and (note.tag, note.overlaps, note.awaited, note.after) for note in rows[NOTE::STRIDE]]
    return [log.rank, *rows]
