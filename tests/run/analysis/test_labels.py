"""Durations and streams in words."""

from __future__ import annotations

import numpy as np
import pytest

from minitrain.operations import COMM, RECV, SEND
from minitrain.run.analysis.labels import duration, stream_name, time_unit
from minitrain.run.analysis.timeline import Stream


@pytest.mark.parametrize(
    ("stream", "name"),
    [
        (Stream("compute"), "compute"),
        (Stream(COMM), "comm"),
        (Stream(COMM, (0, 1, 2, 3)), "comm 0-3"),
        (Stream(SEND, peer=3), "send to 3"),
        (Stream(RECV, peer=0), "recv from 0"),
    ],
)
def test_streams_say_with_whom(stream: Stream, name: str) -> None:
    assert stream_name(stream) == name


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (12.5, "12.5 s"),
        (0.25, "250 ms"),
        (4.2e-5, "42 µs"),
        (3e-9, "3 ns"),
        (1e-12, "1e-12 s"),
        (9999, "9999 s"),
        (1e4, "2.778 h"),
        (86400, "24 h"),
        (2.28e7, "263.9 days"),
    ],
)
def test_durations_have_a_unit_that_reads_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_unit_of_a_time_axis_fits_its_longest_time() -> None:
    assert [time_unit(longest)[1] for longest in (2.0, 0.5, 5e-4, 1e-7)] == ["s", "ms", "µs", "ns"]


def test_a_long_duration_of_numpy_reads_as_any_other() -> None:
    assert duration(np.float64(86400)) == duration(86400) == "24 h"
