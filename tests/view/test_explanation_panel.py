"""The explanation above a figure: where the time goes, why ranks wait, and what would help."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest

import minitrain as mt
from minitrain.operations import Event
from minitrain.run.analysis.explanation import Explanation
from minitrain.run.analysis.labels import BUBBLE, duration
from minitrain.run.analysis.timeline import as_timeline
from minitrain.view.bars import USES, WAITING, kind_of
from minitrain.view.explanation_panel import MAX_LINES, explanation_panel, lines_table, rank_lines


def _text(page: str) -> str:
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())


@pytest.fixture(scope="module")
def run() -> mt.Run:
    return mt.simulate(
        "1f1b:overlap_messages=False",
        hardware="specified_h100_80g_nvl8",
        world_size=4,
        num_layers=8,
        global_batch_size=32,
        microbatch_size=4,
    )


def test_the_answer_names_the_bubble_of_the_run_and_what_it_is(run: mt.Run) -> None:
    assert f"the bubble , {run.bubble_fraction:.1%}: {BUBBLE}." in _text(explanation_panel(run.explain()))


def test_the_answer_gives_the_reasons_of_waiting_in_milliseconds_the_largest_first(run: mt.Run) -> None:
    told = _text(explanation_panel(run.explain()))
    mean = run.explain().gaps.seconds().mean(axis=0)
    assert mean[0] == mean.max()
    assert f"longest wait warm-up bubble {duration(mean[0])} {mean[0] / run.step_time:.1%}" in told
    assert "1.117 ms on rank 3, for rank 2's send of layer 6" in told


def test_the_answer_says_what_the_step_would_take_if_something_took_no_time(run: mt.Run) -> None:
    told, free = _text(explanation_panel(run.explain())), run.explain().what_ifs["messages"]
    assert f"messages {free * 1e3:.4g} ms {1 - free / run.step_time:.1%}" in told
    assert "minitrain trace explain RUN" in told


def test_a_run_in_which_nobody_waits_says_so() -> None:
    assert "No rank ever waits." in explanation_panel(
        mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4).explain()
    )
    assert explanation_panel(Explanation(as_timeline([[], []]), 2)) == ""


def test_every_rank_of_a_few_has_a_bar_whose_parts_add_up(run: mt.Run) -> None:
    split = run.breakdown
    parts = np.stack([split.computing, split.exposed, split.waiting], axis=1)
    lines = rank_lines(parts)
    assert [line.name for line in lines] == ["all ranks", "rank 0", "rank 1", "rank 2", "rank 3"]
    drawn = lines_table(lines, run.step_time)
    for row in re.findall("<tr.*?</tr>", drawn):
        assert sum(map(float, re.findall(r"width:([\d.]+)%", row))) == pytest.approx(100, abs=0.03)


def test_ranks_that_do_alike_share_a_bar() -> None:
    parts = np.array([[1.0, 2.0, 1.0], [3.0, 1.0, 0.0]])[np.arange(1024) % 2]
    assert [line.name for line in rank_lines(parts)] == ["all ranks", "ranks 0-1022 step 2", "ranks 1-1023 step 2"]
    alike = rank_lines(np.tile([1.0, 2.0, 1.0], (1024, 1)))
    assert [(line.name, line.seconds) for line in alike] == [("all 1,024 ranks alike", (1.0, 2.0, 1.0))]


def test_many_ranks_that_all_differ_are_shown_in_groups_of_neighbours() -> None:
    waiting = np.linspace(0, 1, 100)
    lines = rank_lines(np.stack([1 - waiting, np.zeros(100), waiting], axis=1))
    assert len(lines) <= MAX_LINES + 1
    assert lines[1].name == "ranks 0-8"
    assert lines[-1].name == "rank 99"
    assert lines[0].seconds[2] == pytest.approx(0.5)


def test_names_in_the_answer_are_escaped() -> None:
    log = [Event("<own>", 0, 0, 0.0, 1.0, 0)]
    assert "<own>" not in explanation_panel(Explanation(as_timeline([log, []]), 2))


def test_the_names_of_many_scattered_ranks_are_cut_short() -> None:
    kinds = np.array([0, 1, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0])
    names = [line.name for line in rank_lines(np.eye(3)[kinds])]
    assert names == ["all ranks", "10 ranks: 0, 3, 5 ...", "10 ranks: 1, 2, 4 ..."]


# Machado et al. (2009), table 1: what people without one kind of cone see, in linear RGB
_SIGHT = {
    "normal": np.eye(3),
    "protan": np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
    "deutan": np.array([[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]),
    "tritan": np.array([[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]),
}
_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
_PAPER = {"light": "#ffffff", "dark": "#0d1117"}


def _lab(color: str, sight: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    channels = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    parts = _XYZ @ np.clip(_SIGHT[sight] @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(parts > 0.008856, np.cbrt(parts), 7.787 * parts + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def _distance(left: str, right: str, sight: str) -> float:
    """Return how far two colours are apart in CIE Lab; 2.3 is just noticeable."""
    return float(np.linalg.norm(_lab(left, sight) - _lab(right, sight)))


def _waiting_on(paper: str) -> str:
    """Return the colour of a wait, of which 16 % is grey, on white or black."""
    assert kind_of(WAITING).color == "rgba(128,128,128,0.16)"
    mixed = [round(0.16 * 128 + 0.84 * int(paper[place : place + 2], 16)) for place in (1, 3, 5)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


@pytest.mark.parametrize("sight", _SIGHT)
def test_computing_communicating_and_waiting_look_different_to_everyone(sight: str) -> None:
    for bands in ([(use.color, use.pale) for use in USES], [(use.dark,) for use in USES]):
        strong = [band[0] for band in bands]
        assert min(_distance(a, b, sight) for a in strong for b in strong if a != b) > 30
        mixed = [(a, b) for one in bands for other in bands if one is not other for a in one for b in other]
        assert min(_distance(a, b, sight) for a, b in mixed) > 15


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_messages_look_different_from_waiting_and_from_one_another(mode: str) -> None:
    looks = map(kind_of, ("send", "recv"))
    send, receive = ((look.dark if mode == "dark" else "") or look.color for look in looks)
    for sight in _SIGHT:
        assert _distance(send, _waiting_on(_PAPER[mode]), sight) > 35
        assert _distance(send, receive, sight) > 25
