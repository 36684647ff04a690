"""Closed forms of queues, and simulated queues against them."""

from __future__ import annotations

from math import exp, log
from typing import Any

import pytest
from typer.testing import CliRunner

from minitrain.cli import app
from minitrain.errors import UsageError
from minitrain.machine.platform.scenario import Scenario
from tests.machine.platform.queueing import md1_latency_s, mmc_latency_s, waiting_probability


def test_one_exponential_server_has_exponential_latencies() -> None:
    assert waiting_probability(0.7, 1.0, 1) == pytest.approx(0.7)
    for share in (0.5, 0.95, 0.99):  # Gross and Harris: the rate of M/M/1's latency is what is spare
        assert mmc_latency_s(share, 0.7, 1.0, 1) == pytest.approx(-log(1 - share) / 0.3)


def test_two_servers_wait_as_erlang_c_says() -> None:
    assert waiting_probability(1.0, 1.0, 2) == pytest.approx(1 / 3)
    time = mmc_latency_s(0.9, 1.0, 1.0, 2)  # a spare server of none: the limit of the formula
    assert exp(-time) * (1 + time / 3) == pytest.approx(0.1)
    assert mmc_latency_s(0.9, 0.999999, 1.0, 2) == pytest.approx(time, rel=1e-5)


def test_an_equal_server_that_is_free_takes_the_time_of_service() -> None:
    for load in (0.2, 0.5, 0.8):
        assert md1_latency_s(1 - load, load, 1.0) == pytest.approx(1.0)
        waited = md1_latency_s(0.99, load, 1.0) - 1
        assert 0 < waited < mmc_latency_s(0.99, load, 1.0, 1) - 1
    # within the first time of service, P(wait <= t) = (1 - load) exp(load t)
    assert md1_latency_s(0.5 * exp(0.25), 0.5, 1.0) == pytest.approx(1.5)


def served(units: int, rate_per_s: float, service: str, count: int = 4000) -> Scenario:
    """Return the run of requests of 10 ms on one of some units."""
    device = {"device_id": "gpu0", "peak_tflops": {"fp16": 100 * units}, "memory_capacity_bytes": 1}
    arrivals = {"rate_per_s": rate_per_s, "count": count, "seed": 1, "service": service}
    request = {"task_id": "request", "compute": "gpu0", "flops_required": 1e12, "num_processing_units_requested": 1}
    devices = [{**device, "memory_gbps": 1, "processing_units": units}]
    found = Scenario.read(
        {"hardware_profile": {"compute_devices": devices}, "tasks": [{**request, "arrivals": arrivals}]}
    )
    found.run()
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("units", "rate_per_s", "service"), [(1, 60, "equal"), (1, 50, "exponential"), (4, 260, "exponential")]
)
def test_simulated_latencies_agree_with_the_closed_forms(units: int, rate_per_s: float, service: str) -> None:
    latencies = served(units, rate_per_s, service).latencies_s()["request"]
    for share in (0.5, 0.9, 0.95):
        if service == "equal":
            expected = md1_latency_s(share, rate_per_s, 0.01)
        else:
            expected = mmc_latency_s(share, rate_per_s, 0.01, units)
        assert latencies[int(share * len(latencies))] == pytest.approx(expected, rel=0.1)


def test_arrivals_are_those_of_their_seed() -> None:
    assert served(1, 50, "equal", 20).latencies_s() == served(1, 50, "equal", 20).latencies_s()
    moments = [task["at_s"] for task in served(1, 50, "equal", 2000).tasks]
    assert moments == sorted(moments)
    assert moments[-1] / len(moments) == pytest.approx(1 / 50, rel=0.1)


def test_the_command_prints_percentiles_of_many_tasks(tmp_path: Any) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        "{hardware: a100_80g, world_size: 1, tasks: [{task_id: request, compute: gpu0, flops_required: 3.12e12,"
        " arrivals: {rate_per_s: 1, count: 5}}]}"
    )
    result = CliRunner().invoke(app, ["platform", "run", str(path)])
    assert "request: 5 of 5 ended, p50 " in result.output


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        (3, "arrivals must be an object"),
        ({"rate_per_s": 0, "count": 1}, "rate_per_s must be a number above 0"),
        ({"rate_per_s": 1}, "count must be an integer"),
        ({"rate_per_s": 1, "count": 1, "sede": 1}, 'did you mean "seed"'),
        ({"rate_per_s": 1, "count": 1, "seed": "a"}, "seed must be an integer"),
        ({"rate_per_s": 1, "count": 1, "service": "fast"}, '"equal" or "exponential"'),
    ],
)
def test_wrong_arrivals_are_one_clear_error(arrivals: Any, message: str) -> None:
    task = {"task_id": "a", "compute": "gpu0", "arrivals": arrivals}
    with pytest.raises(UsageError, match=message):
        Scenario.read({"hardware": "a100_80g", "world_size": 1, "tasks": [task]})


def test_nothing_comes_after_many_and_only_computing_is_random() -> None:
    arrivals = {"rate_per_s": 1, "count": 1}
    many = {"task_id": "a", "compute": "gpu0", "arrivals": arrivals}
    for tasks, message in (
        ([many, {"compute": "gpu0", "after": ["a"]}], "stands for many tasks"),
        ([{"allocate": "gpu0", "size_bytes": 1, "arrivals": {**arrivals, "service": "exponential"}}], "is for compute"),
    ):
        with pytest.raises(UsageError, match=message):
            Scenario.read({"hardware": "a100_80g", "world_size": 1, "tasks": tasks})


def test_a_load_that_cannot_be_served_is_refused() -> None:
    with pytest.raises(UsageError, match="below 2 servers"):
        mmc_latency_s(0.5, 2.0, 1.0, 2)
    with pytest.raises(UsageError, match=r"share must be in \(0, 1\)"):
        md1_latency_s(1.0, 0.5, 1.0)
