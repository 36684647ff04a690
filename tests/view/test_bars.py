"""Bars, lanes, numbers and hover texts: what a Gantt chart is made of."""

from __future__ import annotations

import numpy as np
import pytest

from minitrain.operations import COMM, RECV, SEND, Event
from minitrain.run.analysis.breakdown import breakdown
from minitrain.run.analysis.timeline import as_timeline
from minitrain.view.bars import MAX_LANES, Bars, bar_numbers, hover_texts, kind_of, lanes, legend_place, make_bars
from tests.sample_logs import data_parallel, one_f_one_b

_LOGS = [one_f_one_b(4, 6), data_parallel(3, 4), data_parallel(3, 4, overlap=True), [[], []]]


def _names(bars: Bars) -> list[str]:
    return [bars.kinds[code].name for code in bars.kind.tolist()]


@pytest.mark.parametrize("logs", _LOGS)
def test_waiting_bars_are_as_long_as_the_waiting_of_the_breakdown(logs: list[list[Event]]) -> None:
    bars, split = make_bars(as_timeline(logs)), breakdown(logs)
    waiting = np.bincount(bars.rank[bars.waits], bars.duration[bars.waits], minlength=len(logs))
    assert np.allclose(waiting, split.waiting, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("logs", _LOGS)
def test_bars_of_one_lane_never_overlap(logs: list[list[Event]]) -> None:
    bars = make_bars(as_timeline(logs))
    order = np.lexsort((bars.start, bars.lane, bars.rank))
    part = bars.take(order)
    same = (part.rank[1:] == part.rank[:-1]) & (part.lane[1:] == part.lane[:-1])
    ends = part.start + part.duration
    assert np.all((part.start[1:] >= ends[:-1] - 1e-12) | ~same)


def test_an_operation_without_duration_is_no_bar_and_a_rank_without_events_waits() -> None:
    bars = make_bars(as_timeline([[Event("loss", 1, 0, 0, 0, 0), Event("update", 0, 0, 1, 2, 0)], []]))
    assert _names(bars) == ["waiting", "update", "waiting"]
    assert bars.duration.tolist() == [1, 2, 3]


def test_kinds_come_in_the_order_of_a_step_with_waiting_last() -> None:
    names = [kind.name for kind in make_bars(as_timeline(data_parallel())).kinds]
    assert names == ["load_weights", "forward", "backward", "update", "all_reduce", "waiting"]


def test_a_recomputed_forward_is_a_kind_of_its_own_and_unknown_types_take_neutral_colours() -> None:
    log = [
        Event("forward", 0, 0, 0, 1, 0, recomputed=True),
        Event("mystery", 0, 0, 1, 1, 0),
        Event("gossip", 0, 0, 2, 1, 0, stream=COMM),
    ]
    bars = make_bars(as_timeline([log]))
    assert _names(bars) == ["forward again", "mystery", "gossip"]
    assert kind_of("mystery").color != kind_of("gossip", COMM).color
    assert legend_place("send") < legend_place("mystery") < legend_place("waiting")


def test_overlapping_communication_gets_the_next_free_lane() -> None:
    def comm(time: float, duration: float, stream: str = COMM) -> Event:
        return Event("all_gather", 0, 0, time, duration, 0, stream=stream, peer=1, awaited=9)

    log = [comm(0, 4), comm(1, 4, SEND), comm(2, 4, RECV), comm(3, 4), comm(4, 1), Event("forward", 0, 0, 0, 9, 0)]
    assert lanes(as_timeline([log])).tolist() == [1, 2, 3, MAX_LANES - 1, 1, 0]


def test_communication_that_overlaps_without_saying_so_leaves_the_main_lane() -> None:
    log = [Event("send", 0, 0, 0, 4, 0, stream=SEND, peer=1), Event("forward", 0, 0, 1, 1, 0)]
    assert lanes(as_timeline([log])).tolist() == [1, 0]


def test_bars_carry_the_microbatch_where_a_rank_has_several() -> None:
    line = as_timeline(one_f_one_b(2, 3))
    last = line.rank == 1
    kinds = {"forward", "backward", "recv", "send"}
    works = np.array([line.typs[code] in kinds for code in line.typ]) & last
    numbers = bar_numbers(line)
    samples = [min(line.sample_sets[code]) // 2 for code in line.samples[works]]
    assert numbers[works].tolist() == samples
    assert set(numbers[~works & last].tolist()) == {-1}


def test_bars_carry_the_layer_where_a_rank_has_one_microbatch() -> None:
    line = as_timeline(data_parallel(2, 3))
    assert bar_numbers(line).tolist() == line.layer.tolist()
    nameless = as_timeline([[Event("barrier", None, 0, 0, 1, 0, stream=COMM)]])
    assert bar_numbers(nameless).tolist() == [-1]


def test_hovering_says_what_ran_with_whom_and_how_much() -> None:
    samples = frozenset([4, 5])
    logs = [
        [Event("send", 3, 0, 0.0, 1.0, 2**29, samples, stream=SEND, peer=1, size_bytes=2**20)],
        [Event("recv", 3, 1, 0.5, 0.5, 0, samples, stream=RECV, peer=0, launched=0.0, waited_for=0)],
        [Event("barrier", None, 2, 0.5, 0.25, 0, stream=COMM, group=(1, 2))],
    ]
    texts = hover_texts(make_bars(as_timeline(logs)), bytes_per_element=2)
    assert texts == [
        "<b>send</b> · rank 0<br>layer 3 · samples 4-5<br>1 s from 0 s<br>1 MiB to rank 1<br>memory 1 GiB",
        "<b>waiting</b> · rank 1<br>500 ms from 0 s<br>for rank 0's send of layer 3<br>warm-up bubble",
        "<b>recv</b> · rank 1<br>layer 3 · samples 4-5<br>500 ms from 500 ms<br>from rank 0<br>memory 0 bytes",
        "<b>waiting</b> · rank 2<br>500 ms from 0 s<br>for what comes before barrier<br>straggler",
        "<b>barrier</b> · rank 2<br>250 ms from 500 ms<br>among ranks 1-2<br>memory 0 bytes",
        "<b>waiting</b> · rank 2<br>250 ms from 750 ms<br>for the step's end, which rank 0 sets<br>step's end",
    ]
