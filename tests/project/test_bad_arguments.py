"""Whatever is given to a public function or class, an error of minitrain's says what is wrong with it."""

from __future__ import annotations

import asyncio
import inspect
import math
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.run.parameters import DEFAULTS

MADE_BY_OTHERS = {
    *("Comparison", "DisturbedRun", "FailedRun", "Gap", "Goodput", "Grade", "LossCurves", "MeasuredRun", "MonteCarlo"),
    *("Plan", "Priced", "Profiled", "Proof", "Replayed", "Run", "Sensitivity", "StrategyModel", "Sweep", "Tuning"),
    *("Validation", "Calibration", "MeasuredLayers", "Model"),
}
CALLED = [
    name
    for name in mt.__all__
    if callable(getattr(mt, name)) and name not in MADE_BY_OTHERS and not name.endswith("Error")
]
SIZES: dict[str, Any] = {"world_size": 2, "num_layers": 2, "global_batch_size": 4}
QUICK = sorted(
    {*CALLED} - {"validate", "tune", "train", "calibrate", "loss_curves"}
)  # which do much with what they take


@cache
def valid() -> dict[str, Any]:
    """Return a valid value of every parameter that has no default, but for numbers, such as 8."""
    run = mt.simulate("ddp", **SIZES)
    return SIZES | {
        "run": run,
        "runs": run,
        "before": run,
        "after": run,
        "predicted": run,
        "noise": mt.Noise(jitter=0.1),
        "groups": [mt.Devices("a100_80g", 2)],
        "cluster": mt.Cluster([mt.Devices("a100_80g", 2)]),
        "kind": "a100_80g",
        "count": 2,
        "name": "mine",
        "rank": 0,
        "at_s": 0.1,
        "bytes_per_s": 1e9,
        "hidden_size": 64,
        "num_heads": 4,
        "vocab_size": 256,
        "seq_len": 16,
        "workload": "gpt2",
        "resistance_K_per_W": 0.1,
        "capacity_J_per_K": 100.0,
        "throttle_C": 90.0,
        "edges": (0.9, 1.1),
        "counts": (1.0,),
        "probability": 0.5,
        "factor": 2.0,
        "path": "none.jsonl",
        "source": "none.json",
        "traces": ["none.json"],
        "tool": "deepspeed",
        "strategy": "ddp",
        "strategies": ["ddp"],
        "options": {},
        "sizes": [{"num_layers": 2}],
        "grid": {"world_size": [2]},
        "exercise": "01",
        "model": "gpt2",
        "system": "a100_80g",
        "start": 0,
        "stop": 2,
        "steps": 2,
        "compression": lambda each: each,
        "schedule": mt.schedules.gpipe(2, 2),
        "recipe": mt.Recipe("ddp", {}),
    }


def call(name: str, bad: str, value: Any) -> None:
    """Call something public with one bad argument."""
    parameters = inspect.signature(getattr(mt, name)).parameters.values()
    given = {
        each.name: valid().get(each.name, 8)
        for each in parameters
        if (each.default is each.empty and each.kind is not each.VAR_KEYWORD) or each.name in SIZES
    }
    given[bad] = value
    first = [given.pop(each.name) for each in parameters if each.kind is each.POSITIONAL_ONLY]
    found = getattr(mt, name)(*first, **given)
    if inspect.iscoroutine(found):
        asyncio.run(found)


def parameters_of(name: str) -> list[str]:
    """Return the parameters that something public has of its own."""
    parameters = inspect.signature(getattr(mt, name)).parameters.values()
    taken = set() if name == "simulate" else set(DEFAULTS)  # which all hand to one class
    return [each.name for each in parameters if each.kind is not each.VAR_KEYWORD and each.name not in taken]


@pytest.mark.parametrize("name", CALLED)
def test_an_argument_of_a_wrong_type_is_refused(name: str) -> None:
    for parameter in parameters_of(name):
        with pytest.raises(mt.MinitrainError, match=r"\w"):
            call(name, parameter, object())


@pytest.mark.parametrize("name", QUICK)
def test_whatever_is_given_no_error_is_of_pythons_own(name: str, tmp_path: Path) -> None:
    for parameter in parameters_of(name):
        values: list[Any] = [-1, math.nan, b"\xff", tmp_path, []]
        for value in values:
            with suppress(mt.MinitrainError):
                call(name, parameter, value)


PUBLIC: Any = mt


class NoHandler:
    """Given where an instance is meant."""


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: PUBLIC.simulate("ddp", watch=NoHandler, **SIZES), "watch must be of type Callable"),
        (lambda: PUBLIC.sweep("ddp", {"world_size": [2]}, progress=lambda: None), "progress must be of type Callable"),
        (lambda: PUBLIC.Model(dist="x"), r"dist must be a Dist, such as Dist\(4\), got 'x'"),
        (lambda: PUBLIC.Model(runtime_predictor="x"), "runtime_predictor must be a predictor, such as"),
        (lambda: PUBLIC.compare([]), "compare needs at least one strategy, got none"),
        (lambda: PUBLIC.compare(np.array(4)), r"strategies must be of type .*, got array\(4\)"),
        (lambda: PUBLIC.simulate("ddp", world_size=np.int64(4)), r"got .*4.*; write int\(world_size\)"),
        (lambda: PUBLIC.simulate("ddp", platform=np.int64(4)), "platform must be a framework"),
        (lambda: PUBLIC.tune("tiny", world_size={"a": 1}), "world_size must be an integer of at least 1, got {'a': 1}"),
        (
            lambda: PUBLIC.calibrate(["ddp"], [{"world_size": 2}]),
            "all sizes of a calibration share world_size; give it",
        ),
        (lambda: PUBLIC.calibrate(["ddp"], [{}], hardware="a100_80g"), "measures this machine; leave hardware out"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(call: Any, said: str) -> None:
    with pytest.raises(mt.UsageError, match=said):
        call()


@cache
def results() -> dict[str, Any]:
    """Return an object of each kind that functions return."""
    run = mt.simulate("ddp", fold=False, **SIZES)
    return {
        "run": run,
        "folded": mt.simulate("ddp", world_size=8, fold=True),
        "comparison": mt.compare(["ddp"], **SIZES),
        "sweep": mt.sweep("ddp", {"world_size": [2]}, jobs=1, num_layers=2),
        "gap": mt.diff(run, run),
        "noise": mt.monte_carlo(run, mt.Noise(jitter=0.1), samples=3),
        "sensitivity": mt.sensitivity(run),
        "goodput": mt.goodput("ddp", days=1, samples=2, **SIZES),
    }


RESULTS = ["run", "folded", "comparison", "sweep", "gap", "noise", "sensitivity", "goodput"]


@pytest.mark.parametrize("name", RESULTS)
def test_whatever_methods_of_results_are_given_no_error_is_of_pythons_own(name: str, tmp_path: Path) -> None:
    methods = inspect.getmembers(results()[name], inspect.ismethod)
    for method in [method for public, method in methods if public[0] != "_"]:
        for parameter in inspect.signature(method).parameters:
            values: list[Any] = [object(), -1, math.nan, b"\xff", [], None]
            for value in values:
                given = {parameter: value} if parameter == "path" else {"path": tmp_path / "file", parameter: value}
                known = inspect.signature(method).parameters
                with suppress(mt.MinitrainError):
                    method(**{each: value for each, value in given.items() if each in known})


@pytest.mark.parametrize("path", [None, -1, b"\xff", ["a"]])
def test_a_path_that_is_none_is_refused_by_name(path: Any) -> None:
    with pytest.raises(mt.UsageError, match=r"path must be of type str \| PathLike\[str\], got"):
        results()["run"].write_html(path)


OF_MODULES = {
    "heterogeneous": ["WorkloadProfile", "EnhancedWorkloadProfile", "FusionRule", "HeterogeneousScheduler"],
    "platform": ["VirtualComputeDevice", "VirtualNetworkLink"],
    "devices": ["DeviceSpec"],
    "hw": ["calibrate"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in OF_MODULES.items() for name in names])
def test_what_modules_are_given_of_a_wrong_type_is_refused_by_name(module: str, name: str) -> None:
    public = getattr(getattr(mt, module), name)
    parameters = inspect.signature(public).parameters.values()
    needed = [each.name for each in parameters if each.default is each.empty] or ["backend"]
    with pytest.raises(mt.UsageError, match=rf"^({'|'.join(needed)})\b.* must be "):
        public(**dict.fromkeys(needed, object()))
