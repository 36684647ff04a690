"""Noise and histograms as values: all faults are told at once, and what is right is kept as it was given."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.cli.trace import montecarlo


def test_all_faults_of_noise_are_told_at_once() -> None:
    given: Any = {"jitter": {"forwards": -1}, "straggler": (2, 0), "slowdown": {-1: 1.5}, "slow_links": [0.1]}
    given["measured"] = [1]
    with pytest.raises(mt.UsageError) as caught:
        mt.Noise(**given)
    for fault in (
        "the noise has 7 faults: ",
        "jitter is by kind, and 'forwards' is none; use one of computing, communication, load_weights",
        "jitter of forwards must be a sigma of at least 0, such as 0.05, got -1",
        "straggler's probability must be a number from 0 to 1, got 2",
        "straggler's factor must be a number above 0, got 0",
        "slowdown must be factors above 0 by rank, got 1.5 for -1",
        "slow_links must be a list of `mt.SlowLink`, got [0.1]",
        "measured must be a `mt.Histogram` by kind, got [1]",
    ):
        assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"jitter": float("nan")}, r"a fault: jitter must be a sigma of at least 0, such as 0.05, got nan"),
        ({"jitter": True}, r"jitter must be a sigma .* got True"),
        ({"straggler": 0.1}, r"straggler must be a probability and a factor, such as \(0.01, 2.0\), got 0.1"),
        ({"slowdown": [1.5]}, r"slowdown must be factors by rank, such as \{0: 1.5\}, got \[1.5\]"),
        ({"slowdown": {0: float("inf")}}, r"slowdown must be factors above 0 by rank, got inf for 0"),
        ({"measured": {"gather": mt.Histogram((0, 1), (1,))}}, r"measured is by kind, and 'gather' is none"),
    ],
)
def test_a_fault_of_noise_is_told_with_its_rule(given: Any, message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        mt.Noise(**given)


@pytest.mark.parametrize("pair", [(1, 1), (0,), (-1, 2), 3])
def test_a_slow_link_is_between_two_ranks(pair: Any) -> None:
    with pytest.raises(mt.UsageError, match="a slow link has a fault: pair must be two different ranks"):
        mt.SlowLink(0.1, 2.0, pair=pair)
    with pytest.raises(mt.UsageError, match=r"2 faults: probability .* got 1\.5; tier must be the size"):
        mt.SlowLink(1.5, 2.0, tier=0)


def test_noise_is_copied_and_sent_to_other_processes_whole_and_cannot_be_changed() -> None:
    link = mt.SlowLink(0.1, 4.0, pair=(0, 1))
    noise = mt.Noise(jitter=0.1, straggler=(0.01, 2.0), slowdown={1: 2.0}, slow_links=[link])
    assert pickle.loads(pickle.dumps(noise)) == noise == copy.deepcopy(noise)
    with pytest.raises(TypeError):
        noise.slowdown[0] = 2.0  # type: ignore[index]


def test_noise_says_what_it_is() -> None:
    links = [mt.SlowLink(0.1, 4.0, pair=(0, 1)), mt.SlowLink(0.2, 3.0, tier=8)]
    noise = mt.Noise(jitter=0.1, straggler=(0.01, 2.0), slowdown={1: 2.5}, slow_links=links)
    assert str(noise) == (
        "jitter 0.1 on everything, computing of a rank x 2 with probability 0.01, computing of rank 1 x 2.5, link 0-1 "
        "x 4 with probability 0.1, a link in the tier of 8 x 3 with probability 0.2"
    )
    assert str(mt.Noise(jitter={"send": 0.2}, measured={"recv": mt.Histogram((0, 1), (1,))})) == (
        "jitter 0.2 on send, recv as measured"
    )


@pytest.mark.parametrize(
    ("edges", "counts"),
    [((), ()), ((1.0,), ()), ((1.0, 0.5), (1,)), ((-1.0, 1.0), (1,)), ((0.0, 1.0), (0,)), ((0.0, 1.0), (-1,))],
)
def test_what_is_no_histogram_is_refused(edges: Any, counts: Any) -> None:
    with pytest.raises(mt.UsageError, match=r"a histogram needs n \+ 1 finite edges that ascend"):
        mt.Histogram(edges, counts)


@pytest.mark.parametrize("durations", [[1.0], [2.0, 2.0], [1.0, float("inf")], [[1.0, 2.0]]])
def test_a_histogram_is_made_of_durations_that_differ(durations: Any) -> None:
    with pytest.raises(mt.UsageError, match="at least two measured durations that differ"):
        mt.Histogram.of(durations)


def test_a_histogram_draws_uniformly_within_its_bins_around_its_median() -> None:
    histogram = mt.Histogram((0.0, 2.0, 4.0), (1, 3))
    median = 2 + 2 * (0.5 - 0.25) / 0.75
    np.testing.assert_allclose(histogram.factors(np.array([0.0, 0.25, 0.5, 1.0])), np.array([0, 2, median, 4]) / median)


KINDS_OF_NOISE: dict[str, Any] = {
    "jitter": {"forward": 0.3},
    "straggler": (0.5, 2.0),
    "slowdown": {0: 1.5},
    "slow_links": [mt.SlowLink(0.5, 3.0)],
    "measured": {"backward": mt.Histogram((0.5, 1.0, 2.0), (3, 1))},
}


@pytest.mark.parametrize("kind", [field.name for field in dataclasses.fields(mt.Noise)])
def test_every_kind_of_noise_disturbs_a_step_and_says_so(kind: str) -> None:
    run = mt.simulate("ddp", world_size=4, num_layers=2, global_batch_size=8)
    wrong: Any = object()
    noise = mt.Noise(**{kind: KINDS_OF_NOISE[kind]})
    assert mt.monte_carlo(run, noise, samples=16).step_times.max() > run.step_time
    assert str(noise) != str(mt.Noise()) == "none"
    with pytest.raises(mt.UsageError, match=kind):
        mt.Noise(**{kind: wrong})


def test_the_command_has_an_option_for_every_kind_that_can_be_written() -> None:
    options = set(inspect.signature(montecarlo).parameters)
    fields = {field.name.removesuffix("s") for field in dataclasses.fields(mt.Noise)}
    assert fields - options == {"measured"}
