"""Files of hardware and tasks: what they mean, how they are drawn, and what is told of mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from minitrain.cli import app
from minitrain.errors import MinitrainError
from minitrain.machine.platform.scenario import Scenario

TWO_JOBS = """
hardware: specified_h100_80g_nvl8
world_size: 16
nics: 1
tasks:
  - {task_id: forward a, compute: gpu0, flops_required_fp16: 2.0e12, memory_read_bytes: 1.0e9}
  - {task_id: forward b, compute: gpu1, flops_required_fp16: 1.0e12, num_processing_units_requested: 66}
  - {task_id: forward c, compute: gpu1, flops_required_fp16: 2.0e12}
  - {task_id: sum a, after: [forward a], collective: all_reduce, participants: [gpu0, gpu8], size_bytes: 100000000}
  - {task_id: sum b, after: [forward b], collective: all_reduce, participants: [gpu1, gpu9], size_bytes: 100000000}
  - {task_id: offload, at_s: 0.001, transfer: [gpu0, node0.host], size_bytes: 2000000000}
  - {task_id: hold, allocate: gpu0, size_bytes: 1000000000}
  - {task_id: serve, model: llama3-8b, device: gpu2, num_tokens: 512}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "two_jobs.yaml"
    path.write_text(TWO_JOBS)
    return path


def ends(scenario: Scenario) -> dict[str, float]:
    scenario.run()
    return {one.task_id: one.end for one in scenario.platform.results}


def test_tasks_arrive_wait_for_others_and_share(file: Path) -> None:
    found = ends(Scenario.read(file))
    assert found["forward a"] == 0.002
    assert found["forward c"] == 0.004
    assert found["sum a"] == found["sum b"] == pytest.approx(0.002 + 2 * 1e8 / 45e9)
    assert Scenario.read(file).platform.get_device_info("gpu0")["memory_used_bytes"] == 0


def test_the_command_prints_and_draws(file: Path, tmp_path: Path) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    result = CliRunner().invoke(app, ["platform", "run", str(file), "--html", str(page), "--chrome", str(trace)])
    assert result.exit_code == 0, result.output
    assert "7 tasks" in result.output
    assert ".nic0, with sum" in " ".join(result.output.split())
    assert "Links, 0 to" in page.read_text()
    assert any(event.get("name", "").startswith("task") for event in json.loads(trace.read_text())["traceEvents"])


def test_the_command_prints_json(file: Path) -> None:
    result = CliRunner().invoke(app, ["platform", "run", str(file), "--json", "--detail", "medium"])
    found = json.loads(result.output)
    assert {task["task_id"] for task in found["tasks"]} >= {"forward a", "sum b", "offload"}
    assert found["utilization"]["gpu2"] == pytest.approx(1.0)


def test_a_file_names_the_shipped_database_and_efficiencies() -> None:
    task = {"task_id": "images", "model": "resnet50", "device": "gpu0", "num_tokens": 64}
    small = {"task_id": "product", "compute": "gpu1", "flops_required": 1e12, "operation_type": "matmul"}
    data = scenario(task, small, hardware="specified_h100_80g_nvl8", model_params="configs/model_params.json")
    assert ends(Scenario.read(data)) == pytest.approx({"images": 64 * 8.2e9 / 1e15, "product": 1e-3 / 0.8})
    efficiency = {"mfu": 0.5, "matmul": {"mfu": 0.4}}
    assert ends(Scenario.read({**data, "efficiency": efficiency})) == pytest.approx(
        {"images": 64 * 8.2e9 / 0.5e15, "product": 1e-3 / 0.2}
    )


def scenario(*tasks: Any, **top: Any) -> dict[str, Any]:
    return {"hardware": "h100_80g_nvl8", "world_size": 2, "tasks": list(tasks), **top}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (scenario(), "a list of at least one"),
        (scenario({"compute": "gpu0"}, speed=1), "no key 'speed'"),
        (scenario({"computes": "gpu0"}), "a task says one of compute, model"),
        (scenario({"compute": "gpu0", "at_s": -1}), "at_s must be a number of seconds"),
        (scenario({"compute": "gpu0", "after": ["b"]}), "after names 'b'"),
        (scenario({"transfer": ["gpu0", "gpu1"], "sizes": 1}), 'did you mean "size_bytes"'),
        (scenario(*[{"task_id": "a", "compute": "gpu0"}] * 2), "two tasks are called"),
        (scenario({"compute": "gpu0"}, hardware_profile={}), "give one of them"),
        (scenario({"task_id": "x", "compute": "gpu7"}), "task x: there is no device 'gpu7'"),
        (scenario({"transfer": ["gpu0"], "size_bytes": 1}), "source and destination"),
        (scenario({"allocate": "gpu0", "size_bytes": 1, "wait": 1}), "task 0: wait must be true or false, got 1"),
        (scenario({"compute": "gpu0", "priority": "high"}), "priority must be a number"),
        (scenario({"compute": "gpu0"}, backfill="yes"), "backfill must be True or False"),
        (scenario({"compute": "gpu0"}, efficiency={"matmull": {}}), 'did you mean "matmul"'),
        (scenario({"compute": "gpu0"}, efficiency={"matmul": 0.5}), "must be an object with mfu and mbu"),
        ("no such file.yaml", "no such file"),
    ],
)
def test_a_mistake_in_a_file_is_one_clear_error(data: Any, message: str) -> None:
    with pytest.raises(MinitrainError, match=message):
        Scenario.read(data).run()


def test_a_shortage_of_memory_ends_one_task_with_its_reason_and_those_after_it(tmp_path: Path) -> None:
    path = tmp_path / "short.json"
    tasks = [
        {"task_id": "too large", "compute": "gpu0", "flops_required_fp16": 1e12, "memory_occupied_bytes": 1e12},
        {"task_id": "next", "after": ["too large"], "compute": "gpu0", "flops_required_fp16": 1e12},
        {"task_id": "other", "compute": "gpu0", "flops_required_fp16": 1e12},
        {"task_id": "hold", "allocate": "gpu1", "size_bytes": 80e9},
        {"task_id": "hangs", "after": ["hold"], "allocate": "gpu1", "size_bytes": 80e9, "wait": True},
        {"task_id": "then", "after": ["hangs"], "transfer": ["gpu0", "gpu1"], "size_bytes": 1},
    ]
    path.write_text(json.dumps(scenario(*tasks)))
    found = json.loads(CliRunner().invoke(app, ["platform", "run", str(path), "--json"]).output)
    assert [task["task_id"] for task in found["tasks"]] == ["other"]
    reasons = {task["task_id"]: task["reason"] for task in found["failed"]}
    assert reasons.pop("too large").startswith("gpu0: 1,000,000,000,000 bytes do not fit in")
    waits = "it still waits for memory that nobody gives back"
    assert reasons == {"next": "it comes after too large", "hangs": waits, "then": "it comes after hangs"}
    table = CliRunner().invoke(app, ["platform", "run", str(path)])
    assert (table.exit_code, "1 tasks, 4 failed" in table.output) == (0, True)
