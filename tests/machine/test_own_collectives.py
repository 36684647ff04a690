"""Laws of one's own price the collectives of a run, of a search and of many machines, and faults in them are said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.machine import load_config
from minitrain.machine.predictor import make_predictor
from minitrain.machine.price import Pricing

SIZES: dict[str, Any] = {"world_size": 16, "num_layers": 4, "global_batch_size": 32}
FILE = """
def doubling(size_bytes, ranks, tiers):
    steps = (ranks.num_ranks - 1).bit_length()
    if tiers[-1].bandwidth > 1:  # a law may ask for one number
        return steps * (tiers[-1].latency + size_bytes / (tiers[-1].bandwidth * 1e9))
    return 1.0


def negative(size_bytes, ranks, tiers):
    return -1.0


def raises(size_bytes, ranks, tiers):
    return {}["missing"]
"""


@pytest.fixture(autouse=True)
def laws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "laws.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)


def of_all_reduces(run: mt.Run) -> set[float]:
    return {event.duration for log in run.logs for event in log if event.typ == "all_reduce"}


@pytest.mark.parametrize(("world_size", "steps"), [(16, 4), (8, 3)])
def test_a_collective_takes_what_the_law_says_of_its_ranks_and_the_outermost_tier(world_size: int, steps: int) -> None:
    run = mt.simulate("ddp", **{**SIZES, "world_size": world_size}, collectives="all_reduce=laws.py:doubling")
    tiers = sorted(load_config("h100_80g_nvl8").networks, key=lambda tier: tier.size)
    tier, size_bytes = tiers[world_size > 8], 4096 * 4096 * 2
    assert of_all_reduces(run) == {steps * (tier.latency + size_bytes / (tier.bandwidth * 1e9))}
    (price,) = [price for price in run.timeline.prices if price.size_bytes]
    assert price.algorithm == "doubling"


def test_an_algorithm_that_is_asked_for_and_other_collectives_keep_their_prices() -> None:
    def free(_bytes: float, _ranks: Any, _tiers: Any) -> float:
        return 0.0

    usual = mt.simulate("zero3", **SIZES)
    assert mt.simulate("zero3", **SIZES, collectives={"all_reduce": free}).step_time == usual.step_time
    assert mt.simulate("zero3", **SIZES, collectives={"all_gather": free}).step_time < usual.step_time

    predictor = make_predictor("h100_80g_nvl8", 16, pricing=Pricing(collectives={"all_reduce": free}))
    found = [predictor.collective("all_reduce", 2**20, range(16), asked) for asked in (None, "ring")]
    assert [(price.seconds == 0, price.algorithm) for price in found] == [(True, "free"), (False, "ring")]


def test_a_search_prices_layouts_by_the_law_as_simulate_does() -> None:
    found = mt.tune(
        "tiny",
        world_size=16,
        global_batch_size=32,
        strategies="megatron",
        space={"tp": [1, 2], "pp": [1, 2], "microbatch_size": [1], "overlap_parts": [True]},
        collectives="reduce_scatter=laws.py:doubling,all_gather=laws.py:doubling",
        jobs=1,
    )
    assert found.best.step_time_s == found.best.simulate().step_time
    assert "--collectives reduce_scatter=laws.py:doubling,all_gather=laws.py:doubling" in found.best.command


def test_many_machines_and_several_laws_are_priced_as_one_by_one() -> None:
    law, bandwidths = "all_reduce=laws.py:doubling", [10.0, 40.0]
    priced = mt.price("ddp", **SIZES, collectives=law, vary={"networks.1.bandwidth": bandwidths})
    assert list(priced.step_time) == [
        mt.price("ddp", **SIZES, collectives=law, vary={"networks.1.bandwidth": [one]}).step_time[0]
        for one in bandwidths
    ]
    several = mt.price("ddp", **SIZES, vary={"collectives": [None, law]})
    assert list(several.step_time) == [mt.simulate("ddp", **SIZES, collectives=one).step_time for one in (None, law)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"allreduce": "laws.py:doubling"}, "a law must be of one of all_reduce, .*, got 'allreduce'"),
        ("all_reduce=laws.py:nothing", "the law of all_reduce must be a function, got 'laws.py:nothing'"),
        ("all_reduce", "the law of all_reduce must be a function, got ''; write all_reduce=FILE.py:FUNCTION"),
        ("all_reduce=no.py:law", "the law of all_reduce cannot be read from 'no.py:law': .*No such file"),
        ("all_reduce=laws.py:negative", "negative, must return seconds from 0 on for 33554432 bytes .*, got -1.0"),
        ("all_reduce=laws.py:raises", "raises, must return .* raised KeyError: 'missing', in .*laws.py, line 14"),
    ],
)
def test_a_law_that_is_none_is_said(given: Any, said: str) -> None:
    with pytest.raises(mt.UsageError, match=said):
        mt.simulate("ddp", **SIZES, collectives=given)


def test_a_cluster_refuses_laws_of_one_network() -> None:
    with pytest.raises(mt.UsageError, match="a cluster has several; leave them out"):
        mt.simulate("ddp", **SIZES, hardware="two_generations", collectives="all_reduce=laws.py:doubling")
