"""Adapters as PEFT writes them: what is read, and what is refused because it would cost something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.errors import UsageError
from minitrain.workloads.hugging_face import TARGETS

WRITTEN: dict[str, Any] = {  # the fields of peft 0.21.2, with LoraConfig(r=16, lora_alpha=32, ...)
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": None,
    "base_model_name_or_path": "meta-llama/Meta-Llama-3-8B",
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 32,
    "lora_bias": False,
    "lora_dropout": 0.05,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "monteclora_config": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "r": 16,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["v_proj", "q_proj"],
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}


def test_a_config_of_peft_is_read_from_its_folder_its_file_and_as_it_is(tmp_path: Path) -> None:
    wanted = mt.Lora(rank=16, alpha=32, targets=("query", "value"))
    (tmp_path / "adapter_config.json").write_text(json.dumps(WRITTEN))
    for source in (WRITTEN, tmp_path, tmp_path / "adapter_config.json"):
        assert mt.read_lora(source) == wanted
    run, same = (
        mt.simulate("ddp", world_size=2, global_batch_size=2, workload="llama3-8b", lora=lora, log="summary")
        for lora in (str(tmp_path), wanted)
    )
    assert run.step_time == same.step_time


def test_the_command_takes_a_rank_or_a_config(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({**WRITTEN, "target_modules": "all-linear"}))
    command = ["run", "fsdp", "--model", "gpt2", "--world-size", "2", "--batch", "2", "--no-trace", "--json", "--lora"]
    shown = [json.loads(CliRunner().invoke(app, [*command, lora]).stdout) for lora in ("16", str(tmp_path))]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("changes", "scale", "targets"),
    [
        ({"use_rslora": True}, 8.0, ("query", "value")),
        ({"target_modules": "all-linear"}, 2.0, mt.Lora().targets),
        ({"target_modules": list(TARGETS)}, 2.0, set(mt.Lora().targets or ())),
    ],
)
def test_scales_and_targets_are_those_of_peft(changes: dict[str, Any], scale: float, targets: Any) -> None:
    found = mt.read_lora({**WRITTEN, **changes})
    assert found.scale == pytest.approx(scale)
    assert set(found.targets or ()) == set(targets or ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, 'peft_type must be "LORA"'),
        ({"velora_config": {"rank": 1}}, "velora_config must be null, since others are not modelled"),
        ({"use_dora": True}, "use_dora must be false, since others are not modelled"),
        ({"bias": "all"}, 'bias must be "none", since others are not modelled'),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save must be null or"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern must be"),
        ({"r": 0}, "r must be an integer of at least 1"),
        ({"lora_alpha": "x"}, "lora_alpha must be a positive number"),
        ({"target_modules": ["c_attn"]}, r'target_modules has "c_attn", and matrices of experts'),
        ({"target_modules": ["qproj"]}, 'did you mean "q_proj"'),
        ({"target_modules": r".*q_proj"}, "patterns of names are not read"),
        ({"lora_aplha": 3}, "lora_aplha is not known for PEFT's LoRA"),
    ],
)
def test_what_would_cost_something_else_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as told:
        mt.read_lora({**WRITTEN, **changes})
    assert message in str(told.value)


def test_a_config_that_is_none_is_said_with_its_name() -> None:
    with pytest.raises(UsageError, match=r"nowhere must be an adapter_config.json that can be read"):
        mt.simulate("ddp", workload="tiny", world_size=1, global_batch_size=1, lora="nowhere")
