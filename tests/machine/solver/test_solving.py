"""`mt.solve`: names and lists, tables, explanations in words, and the roofline plot."""

import subprocess
import sys
from dataclasses import replace

import pytest

import minitrain as mt
from minitrain.errors import HardwareConfigError, UsageError
from minitrain.machine.solver.engine import PrecisionFallbackWarning, SolveTable, roofline_figure
from minitrain.machine.solver.systems import SYSTEMS


def test_lists_give_a_table_in_the_order_asked() -> None:
    table = mt.solve("ResNet50", "A100", batch_size=[1, 256], precision=["fp16", "int8"])
    assert isinstance(table, SolveTable)
    cases = [(row.batch_size, row.precision) for row in table.rows]
    assert cases == [(1, "fp16"), (1, "int8"), (256, "fp16"), (256, "int8")]
    assert table.rows[2].latency_ms == table[2].latency.to("ms").magnitude == 6.743205128205129
    assert [profile.bottleneck for profile in table] == ["Compute"] * 4
    assert len(table) == len(str(table).splitlines()) - 1 == 4
    several = mt.solve(["BERT", "llama3-8b"], ["A100", "h100_80g_nvl8", SYSTEMS["V100"].hardware])
    assert [row.system for row in several.rows] == ["A100", "h100_80g_nvl8", "V100"] * 2


def test_a_larger_batch_is_never_slower_per_inference() -> None:
    rows = mt.solve("GPT2", "A100", batch_size=range(1, 400, 40)).rows
    rates = [row.throughput_per_s for row in rows]
    assert rates == sorted(rates)


def test_no_power_is_none_in_a_table_and_a_dash_in_its_text() -> None:
    with pytest.warns(PrecisionFallbackWarning, match="Phone states no peak rate for int8; that for fp16 is used"):
        table = mt.solve(["MobileNetV2"], "Phone", precision="int8")
    assert table.rows[0].energy_J is None
    assert "  -  " in str(table)


@pytest.mark.parametrize(
    ("model", "system", "message"),
    [
        ("resnet", "A100", "there is no model 'resnet'; the solver knows ResNet50, BERT"),
        ("BERT", "a1000", "there is no system 'a1000'; the solver knows V100, A100"),
        ([], "A100", "one of the lists is empty"),
        ("BERT", "./nope.json", "expected a config file, found no such file"),
    ],
)
def test_unknown_names_are_told_with_what_there_is(model: str, system: str, message: str) -> None:
    with pytest.raises((UsageError, HardwareConfigError), match=message):
        mt.solve(model, system)


def test_an_explanation_names_the_wall_and_what_would_move_it() -> None:
    memory = mt.solve("Llama2-70B", "H100").explain()
    assert memory.wall == "memory"
    assert "limited by memory" in str(memory)
    assert "It does not fit: the weights take 140 GB of 85.9 GB." in memory.lines
    best = {remedy.what for remedy in memory.remedies[:4]}
    assert best == {"twice the bandwidth", "twice the batch", "twice the devices", "int8 instead of fp16"}
    worthless = next(remedy for remedy in memory.remedies if remedy.what == "twice the peak rate")
    assert "no faster" in str(worthless)


def test_what_would_make_a_model_fit_does_and_one_step_less_does_not() -> None:
    said = mt.solve("llama3-70b", "h100_80g_nvl8").explain()
    assert said.to_fit[:3] == (
        "fp8 instead of fp16: 70.55 GB",
        "int8 instead of fp16: 70.55 GB",
        "2 devices instead of 1: 70.55 GB each",
    )
    assert "What would make it fit:\n- fp8" in str(said)
    layers = int(said.to_fit[3].split()[0])
    model = mt.models()["llama3-70b"]
    fits = [mt.solve(replace(model, num_layers=each), "h100_80g_nvl8").feasible for each in (layers, layers + 1)]
    assert fits == [True, False]
    assert mt.solve("Llama2-70B", "H100").explain().to_fit[-1] == "42.95e9 parameters instead of 70e9"
    assert mt.solve("BERT", "H100").explain().to_fit == ()


def test_many_small_devices_hit_the_wall_between_them() -> None:
    said = mt.solve("llama3-8b", "t4", num_devices=32).explain()
    assert said.wall == "communication"
    assert "The devices all_reduce activations for " in str(said)
    silent = mt.solve("GPT3", "H100", num_devices=8).explain()
    assert "Communication between the devices is left out" in str(silent)


def test_compute_and_dispatch_are_walls_too() -> None:
    assert mt.solve("ResNet50", "A100", batch_size=256).explain().wall == "compute"
    with pytest.warns(PrecisionFallbackWarning):
        tiny = mt.solve("MobileNetV2", "Phone", precision="int8")
    explanation = tiny.explain()
    assert explanation.wall == "dispatch"
    assert explanation.remedies[0].what == "no dispatch tax"


def test_the_batch_that_hits_both_walls_is_told_truly() -> None:
    line = mt.solve("GPT2", "A100").explain().lines[2]
    batch = int(line.split("batch ")[1].split()[0])
    below, above = mt.solve("GPT2", "A100", batch_size=[batch - 1, batch + 1])
    assert (below.bottleneck, above.bottleneck) == ("Memory", "Compute")


def test_only_solved_profiles_can_be_explained_drawn_and_tabled() -> None:
    bare = replace(mt.solve("BERT", "A100"), case=None)
    with pytest.raises(UsageError, match=r"only profiles that Engine\.solve made can be explained"):
        bare.explain()
    with pytest.raises(UsageError, match=r"a roofline plot needs profiles that Engine\.solve made"):
        roofline_figure(bare)
    with pytest.raises(UsageError, match="have a row in a table"):
        SolveTable((bare,)).rows  # noqa: B018


def test_the_roofline_plot_places_every_model_below_the_roof_of_its_device() -> None:
    table = mt.solve(["ResNet50", "GPT2"], ["A100", "V100"], batch_size=[1, 64])
    figure = roofline_figure(table)
    roofs, points = figure.data[::2], figure.data[1::2]
    assert [trace.name for trace in roofs] == ["A100, fp16", "V100, fp16"]
    for roof, models in zip(roofs, points, strict=True):
        assert len(models.x) == 4
        for intensity, rate in zip(models.x, models.y, strict=True):
            assert rate < min(max(roof.y), intensity * roof.y[0] / roof.x[0]) * 1.0001


def test_importing_minitrain_and_solving_import_pint_only_when_used() -> None:
    code = "import sys, minitrain; before = 'pint' in sys.modules; minitrain.solve('BERT', 'A100'); print(before)"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "False"
