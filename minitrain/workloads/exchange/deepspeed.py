"""DeepSpeed's configuration: batch, precision and ZeRO. It says nothing of the model, which is the program's.

Source: `deepspeed/runtime/config.py` and `deepspeed/runtime/zero/config.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from minitrain.errors import refuse
from minitrain.workloads.exchange.recipe import Recipe, known_words

TOOL = "deepspeed"
_STRATEGIES = {0: "megatron", 1: "megatron", 2: "zero2", 3: "fsdp"}


def layout_faults(recipe: Recipe) -> list[str]:
    """Return why DeepSpeed cannot lay work out so, a line each."""
    options = recipe.options
    divided = [name for name in ("tp", "pp", "cp", "ep") if options.get(name, 1) > 1]
    found = [f"{', '.join(divided)} of more than 1; use megatron-lm"] if divided else []
    if options.get("offload") == "optimizer":
        found.append("offload=optimizer, which updates on the device: its offload_optimizer steps on the host")
    if (share := options.get("optimizer_offload_fraction", 0)) not in (0, 1):
        found.append(f"optimizer_offload_fraction={share}")
    if share and not options.get("zero"):
        found.append("an optimizer on the host without zero=1 or 2")
    return found if recipe.strategy in _STRATEGIES.values() else [*found, f"the strategy {recipe.strategy}"]


def write(recipe: Recipe) -> str:
    """Return the configuration of a recipe that DeepSpeed can have."""
    options, world_size, batch = recipe.options, recipe.world_size or 1, recipe.global_batch_size or 1
    stage = {"fsdp": 3, "zero2": 2}.get(recipe.strategy, options.get("zero", 0))
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": bool(options.get("overlap_replicas", stage > 1))}
    if (replicas := options.get("replicas", 1)) > 1:
        zero["mics_shard_size"] = world_size // replicas
    there = {"device": "cpu", "pin_memory": True}
    if options.get("offload") in ("optimizer_step", "parameters") or options.get("optimizer_offload_fraction"):
        zero["offload_optimizer"] = there
    if options.get("offload") == "parameters":
        zero["offload_param"] = there
    size = options["microbatch_size"]
    precision = recipe.model.precision.name if recipe.model else "bf16"
    config: dict[str, Any] = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": size,
        "gradient_accumulation_steps": batch // world_size // size,
        **({precision: {"enabled": True}} if precision in ("bf16", "fp16") else {}),
        "zero_optimization": zero,
    }
    if options.get("offload") == "activations":
        config["activation_checkpointing"] = {"cpu_checkpointing": True}
    return json.dumps(config, indent=2) + "\n"


def read(config: Mapping[str, Any], name: str) -> Recipe:  # noqa: ARG001  (it describes no model)
    """Return the recipe of a configuration, which has no model.

    Raises:
        UsageError: there are keys that are not known, or that cannot be modelled; all at once.
    """
    zero = config.get("zero_optimization", {})
    faults = [*_faults(config, zero)]
    if faults:
        raise refuse(f"the configuration of {TOOL}", faults)
    size, batch = config.get("train_micro_batch_size_per_gpu"), config.get("train_batch_size")
    steps = config.get("gradient_accumulation_steps")
    world_size = batch // (size * steps) if batch and size and steps else None
    stage = zero.get("stage", 0)
    strategy = _STRATEGIES[stage]
    options: dict[str, Any] = {} if size is None else {"microbatch_size": size}
    if stage == 1:
        options |= {"zero": 1, "overlap_replicas": True} if zero.get("overlap_comm") else {"zero": 1}
    if zero.get("mics_shard_size", -1) > 0 and world_size:
        options["replicas"] = world_size // zero["mics_shard_size"]
    if config.get("activation_checkpointing", {}).get("cpu_checkpointing"):
        options["offload"] = "activations"
    notes = ["the model, and what its backward computes again, are the program's own"]
    if _is_on(zero.get("offload_optimizer")) and stage == 3:
        options["offload"] = "parameters" if _is_on(zero.get("offload_param")) else "optimizer_step"
    elif _is_on(zero.get("offload_optimizer")):
        strategy, options = "megatron", {**options, "zero": stage, "optimizer_offload_fraction": 1}
        notes.append("--platform megatron:host_update_s=0.257 has the time of DeepSpeed's Adam, without it PyTorch's")
    return Recipe(strategy, options, None, world_size, batch, tuple(notes), TOOL)


def read_accelerate(config: Mapping[str, Any], name: str) -> Recipe:
    """Return the recipe of a configuration of Accelerate that has DeepSpeed's stage; its batch is the program's.

    Source: `DeepSpeedPlugin` in `accelerate/utils/dataclasses.py`, whose `zero_stage` is 2 if not given.

    Raises:
        UsageError: it is of something else than DeepSpeed, or has what is not known or cannot be modelled.
    """
    kind, given = config.get("distributed_type"), config.get("deepspeed_config") or {}
    faults = [f"deepspeed_config.{key} is not known" for key in given if key not in known_words("Accelerate")]
    if kind != "DEEPSPEED":
        faults.append(f"distributed_type must be DEEPSPEED, got {kind}; give the layout's options themselves")
    if "deepspeed_config_file" in given:
        faults.append(f"deepspeed_config_file holds what matters; give {given['deepspeed_config_file']} itself")
    if faults:
        raise refuse("the configuration of accelerate", faults)
    offloads = {f"offload_{what}": {"device": given.get(f"offload_{what}_device")} for what in ("optimizer", "param")}
    recipe = read({"zero_optimization": {"stage": given.get("zero_stage", 2), **offloads}}, name)
    return replace(recipe, world_size=config.get("num_processes"), tool="accelerate")


def _is_on(offload: Any) -> bool:
    return bool(offload) and (offload.get("device") or "none") != "none"


def _faults(config: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is not known, or cannot be modelled."""
    yield from (f"{key} is not known" for key in config if key not in known_words("DeepSpeed"))
    yield from (
        f"zero_optimization.{key} is not known"
        for key in zero
        if key not in known_words("DeepSpeed, zero_optimization")
    )
    if zero.get("stage", 0) not in _STRATEGIES:
        yield f"zero_optimization.stage must be 0 to 3, got {zero['stage']!r}"
    yield from _faults_of_offloading(config, zero)
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        if not isinstance(config.get(key, 1), int):
            yield f'{key} must be an integer, got {config[key]!r}; put in what "auto" stands for'


def _faults_of_offloading(config: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[str]:
    """Yield what cannot be modelled of what lies on the host."""
    optimizer, weights = (zero.get(f"offload_{what}") or {} for what in ("optimizer", "param"))
    stage, activations = zero.get("stage", 0), config.get("activation_checkpointing", {}).get("cpu_checkpointing")
    if not (isinstance(optimizer, Mapping) and isinstance(weights, Mapping)):
        yield 'zero_optimization.offload_optimizer and offload_param must be objects such as {"device": "cpu"}'
        return
    found = {
        "offload_param without offload_optimizer is not modelled": _is_on(weights) and not _is_on(optimizer),
        "offload_param must be on the cpu, since drives are not modelled": weights.get("device") == "nvme",
        f"offload_optimizer must be all on the cpu, since other is not modelled, got {optimizer}": _is_on(optimizer)
        and (optimizer["device"], optimizer.get("ratio", 1)) != ("cpu", 1),
        "offload_optimizer needs stage 1, 2 or 3": _is_on(optimizer) and stage == 0,
        "stage must be 3, without offload_optimizer, beside cpu_checkpointing": activations
        and (stage != 3 or _is_on(optimizer)),
    }
    yield from (f"zero_optimization.{what}" for what, is_so in found.items() if is_so)
