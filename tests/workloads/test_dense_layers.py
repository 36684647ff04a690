"""The dense layer: the specified one with a true backward, by name; and how runs say what they trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.tensors import BLOCK_SIZE, HIDDEN_SIZE
from minitrain.workloads.matmul import DENSE_LAYER, MATMUL_LAYER

SIZES: dict[str, Any] = {"world_size": 2, "num_layers": 4, "global_batch_size": 8}
NOTE = "backward counts as many FLOPs as forward, as specified (--model dense: twice)"


def test_a_dense_layer_takes_6_flop_a_weight_and_token_and_the_specified_one_4() -> None:
    one = HIDDEN_SIZE * HIDDEN_SIZE * BLOCK_SIZE
    assert DENSE_LAYER.training_flop(1, 1) == 6 * one
    assert MATMUL_LAYER.training_flop(1, 1) == 4 * one
    for layer, flop in ((DENSE_LAYER, 6), (MATMUL_LAYER, 4)):
        costs = [layer.compute_cost(typ, 1, 0) for typ in ("forward", "backward")]
        assert sum(cost.work_flop * cost.share for cost in costs) == flop * one


@pytest.mark.parametrize("layer", [DENSE_LAYER, MATMUL_LAYER])
def test_halves_of_a_backward_make_a_whole_one(layer: Any) -> None:
    whole, *halves = (layer.compute_cost(typ, 2, 0) for typ in ("backward", "backward_input", "backward_weight"))
    assert sum(half.share for half in halves) == whole.share


@pytest.mark.parametrize("fidelity", ["roofline", "kernels"])
def test_a_dense_backward_takes_twice_its_forward(fidelity: str) -> None:
    run = mt.simulate("single", **SIZES | {"world_size": 1}, workload="dense", fidelity=fidelity)
    seconds = {typ: total.seconds for typ, total in run.by_type.items()}
    assert seconds["backward"] == pytest.approx(2 * seconds["forward"])


def test_a_dense_model_is_trained_and_proved_by_name() -> None:
    dense, specified = (mt.simulate("gpipe", **SIZES, workload=workload) for workload in ("dense", None))
    assert dense.step_time > specified.step_time
    assert dense.peak_memory == specified.peak_memory
    assert mt.prove("zero3", **SIZES, workload="dense")


def test_a_run_says_what_it_trained_also_when_it_was_saved(tmp_path: Path) -> None:
    named = {"dense": "dense", "specified": None, "tiny": "tiny"}
    for name, workload in named.items():
        sizes = SIZES if workload != "tiny" else {key: SIZES[key] for key in ("world_size", "global_batch_size")}
        run = mt.simulate("ddp", workload=workload, **sizes)
        run.save(tmp_path / name)
        assert (run.workload, mt.load_run(tmp_path / name).workload) == (name, name)
        assert run.summary()["workload"] == (f"specified: {NOTE}" if workload is None else name)


def test_only_tables_of_specified_layers_say_what_their_backward_counts() -> None:
    assert NOTE in repr(mt.compare(["ddp"], **SIZES)).replace("\n", " ")
    assert "FLOPs" not in repr(mt.compare(["ddp"], workload="dense", **SIZES))
    assert "FLOPs" not in repr(mt.compare(["ddp"], hardware=mt.FixedPredictor(forward=1, backward=2), **SIZES))


def test_the_command_line_trains_dense_layers() -> None:
    given = ["compare", "ddp", "--model", "dense", "--layers", "4", "--world-size", "2", "--batch", "8", "--no-trace"]
    (found,) = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)
    assert (found["workload"], found["num_layers"]) == ("dense", 4)
    assert found["step_time_s"] == mt.simulate("ddp", workload="dense", **SIZES).step_time
