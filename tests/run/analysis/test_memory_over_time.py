"""Memory over time: exact steps, and the highest value of each span."""

from __future__ import annotations

from minitrain.operations import Event
from minitrain.run.analysis.memory_over_time import highest_in_spans, memory_curve
from minitrain.run.analysis.timeline import as_timeline


def test_a_memory_curve_steps_at_every_sample_and_lasts_to_the_end() -> None:
    line = as_timeline([[], [Event("forward", 0, 1, t, 1, m) for t, m in ((0, 3), (1, 5), (3, 1))]])
    own = memory_curve(line, 1, 5.0)
    assert own.time.tolist() == [0, 1, 3, 5]
    assert own.memory.tolist() == [3, 5, 1, 1]
    assert memory_curve(line, 0, 5.0).memory.tolist() == [0]


def test_no_peak_is_lost_in_the_highest_memory_of_spans() -> None:
    line = as_timeline([[Event("forward", 0, 0, t, 0.1, m) for t, m in ((0, 1), (1.1, 9), (1.2, 2), (3.5, 0))]])
    assert highest_in_spans(line, 4.0, 4).tolist() == [[1, 9, 2, 2]]
    assert highest_in_spans(line, 4.0, 1).tolist() == [[9]]
