"""The parameters of a run: one list of names, defaults, rules and exclusions for all who take them."""

from __future__ import annotations

import inspect
import re
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

import minitrain as mt
from minitrain.cli.generation import Given
from minitrain.cli.options import strategy_options
from minitrain.engine.observers import Observer
from minitrain.errors import UsageError
from minitrain.run.parameters import DEFAULTS, EXCLUSIONS, OPTIONS, Exclusion, RunParameters, split_keywords
from minitrain.run.simulation import StepKeywords, choose_variant
from minitrain.run.strategy_loading import options_of
from minitrain.run.summary_log import SummaryRun

EXCLUDED = [(exclusion, other) for exclusion in EXCLUSIONS.values() for other in exclusion.others]


@pytest.mark.parametrize("function", [mt.simulate, mt.simulate_async, mt.compare])
def test_the_signature_shows_every_parameter_with_its_default(function: Any) -> None:
    shown = inspect.signature(function).parameters
    assert list(shown)[-len(DEFAULTS) - 1 : -1] == list(DEFAULTS)
    assert {name: shown[name].default for name in DEFAULTS} == dict(DEFAULTS)
    assert shown["options"].kind is inspect.Parameter.VAR_KEYWORD


def what_type_checkers_see() -> None:
    """Is read by mypy and never run: an ignored error that is none is an error there."""

    async def mine(model: mt.Model, depth: int = 1) -> mt.Model:
        return model

    run: mt.Run = mt.simulate("pp_dp:pp=2", world_size=4, pp=2, microbatch_size=1, watch=None, loop_factory=None)
    run = mt.simulate(strategy=mine, options={"depth": 2})
    assert run
    assert mt.compare(["ddp", mine], world_size=4, progress=print).winner
    priced: mt.Priced = mt.price("ddp", ["a100_80g"], world_size=8, vary={"mem1.GBps": [1]})
    priced = mt.price("ddp", hardware=["a100_80g", "h100_80g_nvl8"])
    assert priced
    mt.simulate("ddp", hardware=mt.FixedPredictor(forward=1))
    mt.simulate("ddp", wrld_size=3)  # type: ignore
    mt.simulate(mine, wrld_size=3)  # type: ignore
    mt.simulate("ddp", hardware=["a100_80g", "h100_80g_nvl8"])  # type: ignore
    mt.simulate("ddp", world_size="3")  # type: ignore
    mt.compare("ddp", hardware=["a100_80g"])  # type: ignore
    mt.price("ddp", ["a100_80g"], wrld_size=3)  # type: ignore
    sweep: mt.Sweep = mt.sweep(["ddp", mine], {"world_size": [2, 4]}, jobs=1, num_layers=4)
    proof: mt.Proof = mt.prove("zero3", world_size=2, num_layers=2, backend="numpy")
    goodput: mt.Goodput = mt.goodput("zero3", days=2, world_size=64)
    assert all([sweep, proof, goodput])
    mt.sweep("ddp", {"world_size": [2, 4]}, num_layer=4)  # type: ignore
    mt.prove("zero3", wrld_size=2)  # type: ignore
    mt.goodput("zero3", day=2)  # type: ignore


def test_type_checkers_see_the_options_of_all_shipped_strategies() -> None:
    own = {field.name: str(field.type) for field in fields(StepKeywords)}
    for name in {*DEFAULTS, "options", "watch"}:
        del own[name]
    shipped: dict[str, list[str]] = {}
    for strategy in mt.strategies().values():
        for name, option in options_of(strategy).items():
            shipped.setdefault(name, []).append(inspect.formatannotation(option.annotation))
    assert own.keys() == shipped.keys()
    for name, kinds in shipped.items():
        widest = max(kinds, key=len)
        assert own[name] == widest.replace("collections.abc.", "").replace("'", ""), name


def test_every_parameter_is_documented() -> None:
    documented = re.findall(r"^        (\w+): ", inspect.getdoc(RunParameters) or "", re.MULTILINE)
    documented += re.findall(r"^    (\w+): ", inspect.getdoc(RunParameters) or "", re.MULTILINE)
    assert [name for name in documented if name in DEFAULTS] == [field.name for field in fields(RunParameters)]


def test_parameters_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError, match="world_size"):
        RunParameters().world_size = 4  # type: ignore[misc]  # on purpose


def test_keywords_that_are_no_parameters_are_the_options_of_the_strategy() -> None:
    parameters, options = split_keywords({"world_size": 2, "pp": 2, "log": "summary"})
    assert (parameters, options) == (RunParameters(world_size=2, log="summary"), {"pp": 2})


def _excluding(exclusion: Exclusion, other: str) -> dict[str, Any]:
    """Return parameters that exclude each other."""
    asks: dict[str, Any] = {"slowdown": {0: 2}, "steps": 2}
    value = asks.get(exclusion.name, True) if exclusion.value is None else exclusion.value
    return {exclusion.name: value, other: asks.get(other, True)}


@pytest.mark.parametrize(("exclusion", "other"), EXCLUDED, ids=lambda value: getattr(value, "name", value))
def test_what_excludes_each_other_is_refused_wherever_it_is_given(exclusion: Exclusion, other: str) -> None:
    given = _excluding(exclusion, other)
    rule = re.escape(f"{exclusion.spelling} does not go with {other}{exclusion.reason}; leave one out")
    with pytest.raises(UsageError, match=rule):
        RunParameters(**given)
    with pytest.raises(UsageError, match=rule):
        mt.simulate("ddp", **given)
    with pytest.raises(UsageError, match=rule):
        replace(RunParameters(), **given)
    (failed,) = mt.compare("ddp", **given).failed
    assert re.search(rule, str(failed.error))


@pytest.mark.parametrize("other", EXCLUSIONS["fold"].others)
def test_a_sweep_refuses_what_tells_ranks_apart_before_it_begins(other: str) -> None:
    with pytest.raises(UsageError, match=f"fold=True does not go with {other}, which tells ranks apart"):
        mt.sweep("ddp", {"world_size": [2]}, **_excluding(EXCLUSIONS["fold"], other))


def test_what_excludes_nothing_goes_together() -> None:
    for exclusion in EXCLUSIONS.values():
        exclusion.require({exclusion.name: DEFAULTS[exclusion.name], **dict.fromkeys(exclusion.others, True)})
        assert {exclusion.name, *exclusion.others} <= DEFAULTS.keys()


@pytest.mark.parametrize("name", [*DEFAULTS, "strategy", "options"])
def test_no_parameter_is_taken_for_an_option_on_the_command_line(name: str) -> None:
    with pytest.raises(UsageError, match=f"--option: {name} is no option of a strategy; "):
        strategy_options(Given(option=[f"{name}=1"], microbatch_size=None))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"strict": True},
        {"numerics": "numpy"},
        {"strict": True, "numerics": "numpy"},
        {"strict": True, "observers": [Observer()]},
    ],
    ids=["plain", "strict", "numerics", "strict numerics", "strict, observed"],
)
def test_parameters_choose_what_models_do(given: dict[str, Any]) -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=2, **given)
    assert (type(run.models[0]) is mt.Model) is (not given)  # nobody else pays for hooks
    assert hasattr(run.models[0], "final_states") is ("numerics" in given)
    assert (run.held_outside is not None) is ("strict" in given)
    assert choose_variant(RunParameters(**given)).run_kind is type(run) is mt.Run


def test_totals_have_a_class_of_run_of_their_own() -> None:
    assert choose_variant(RunParameters(log="summary")).run_kind is SummaryRun


def test_the_command_line_has_the_names_of_python() -> None:
    for name, option in OPTIONS.items():
        assert option.flags[0].partition("/")[0] == f"--{name.replace('_', '-')}"


@pytest.mark.parametrize("name", ["world_size", "num_layers", "global_batch_size", "steps"])
def test_a_size_that_would_fill_the_memory_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name} must be at most \d+, got 1000000000000000000000000000000"):
        RunParameters(**{name: 10**30})  # type: ignore[arg-type]  # of any parameter
