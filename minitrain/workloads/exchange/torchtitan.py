"""torchtitan's TOML: a model by its name and flavor, batch, degrees, recomputation.

torchtitan trains models that it has, so that only those can be said. Its `selective` recomputation with
`selective_ac_option = "op"` is our "op"; else it is read as ours, of the attention core, which flash attention does in
any case. Its flavors of llama3 scale rotary positions as Llama 3.1 does.

Source: `torchtitan/config/job_config.py` (0.2) and the `flavors` in `torchtitan/models/*/__init__.py`;
`torchtitan/distributed/pipeline_parallel.py` for layers a stage: the first and the last have one less by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from minitrain.errors import refuse
from minitrain.workloads.architecture import PRECISIONS
from minitrain.workloads.exchange.recipe import Recipe, known_words, same_model
from minitrain.workloads.transformer import Transformer, models
from minitrain.workloads.workload import RECOMPUTE

TOOL = "torchtitan"
STRATEGIES = ("megatron", "fsdp")
FLAVORS = {
    ("llama3", "8B"): "llama3.1-8b",
    ("llama3", "70B"): "llama3.1-70b",
    ("llama3", "405B"): "llama3.1-405b",
    ("deepseek_v3", "671B"): "deepseek-v3",
}
"""The shipped model that each flavor is."""
_SCHEDULES = {"1F1B": False, "Interleaved1F1B": True}
_PIPELINE = "pipeline_parallel"
_LESS = (f"{_PIPELINE}_first_stage_less_layers", f"{_PIPELINE}_last_stage_less_layers")
_SECTIONS = ("model", "training", "parallelism", "activation_checkpoint", "compile", "float8", "quantize")


def flavor_of(model: Transformer) -> tuple[str, str] | None:
    """Return torchtitan's name and flavor of a model but for its scaling of positions, None where it has none such."""
    found = {words: models()[name] for words, name in FLAVORS.items()}
    return next((words for words, one in found.items() if same_model(_scaled(model, one), one)), None)


def _scaled(model: Transformer, other: Transformer) -> Transformer:
    return replace(model, rope_scaling=other.rope_scaling)


def model_faults(model: Transformer) -> list[str]:
    """Return why torchtitan cannot train a model, a line each."""
    known = ", ".join(sorted(set(FLAVORS.values())))
    found = [] if flavor_of(model) else [f"sizes that are no flavor of its own (it has {known})"]
    return found if model.precision == PRECISIONS["bf16"] else [*found, f"precision {model.precision.name!r}"]


def layout_faults(recipe: Recipe) -> list[str]:
    """Return why torchtitan cannot lay work out so, a line each."""
    options = recipe.options
    found = [] if recipe.strategy in STRATEGIES else [f"the strategy {recipe.strategy}"]
    found += [f"{name} of more than 1 in {recipe.strategy}" for name in ("cp", "ep") if options.get(name, 1) > 1]
    again = options.get("recompute", "none")
    found += [] if again in (*RECOMPUTE, "op") else [f"recompute={again}"]
    chunks = options.get("num_chunks", 1)
    num_stages = options.get("pp", 1) * chunks
    if recipe.model and chunks > 1 and _num_stages(recipe.model, _layers_a_stage(recipe)) != num_stages:
        found.append(f"{num_stages} stages of {recipe.model.num_layers} layers")
    return found


def _layers_a_stage(recipe: Recipe) -> int:
    assert recipe.model is not None  # asked by the callers
    num_stages: int = recipe.options.get("pp", 1) * recipe.options["num_chunks"]
    return -(-recipe.model.num_layers // num_stages)


def _num_stages(model: Transformer, layers_a_stage: int, less: int = 0) -> int:
    """Return the stages of a model of which the first and the last have fewer layers, by so many together."""
    return -(-(model.num_layers + less) // layers_a_stage)


def write(recipe: Recipe) -> str:
    """Return the sections of the TOML that a recipe determines."""
    options, batch, world_size = recipe.options, recipe.global_batch_size or 1, recipe.world_size or 1
    replicated, sharded, pp = _degrees(recipe, world_size)
    size, tp = options["microbatch_size"], options.get("tp", 1)
    lines = [*_model_lines(recipe), "[training]"]
    lines += [
        f"local_batch_size = {batch // (replicated * sharded) if pp > 1 else size}",
        f"global_batch_size = {batch}",
    ]
    lines += [] if recipe.model is None else [f"seq_len = {recipe.model.seq_len}"]
    lines += ["enable_cpu_offload = true"] if options.get("offload") == "parameters" else []
    lines += ["", "[parallelism]", f"data_parallel_replicate_degree = {replicated}"]
    lines += [f"data_parallel_shard_degree = {sharded}", f"tensor_parallel_degree = {tp}"]
    lines += [f"pipeline_parallel_degree = {pp}", *_pipeline_lines(recipe, pp)]
    if recipe.strategy == "fsdp":
        reshards = options.get("reshard_after_forward", True)
        lines.append(f'fsdp_reshard_after_forward = "{"always" if reshards else "never"}"')
    again = str(options.get("recompute", "none"))
    lines += ["", "[activation_checkpoint]", f'mode = "{again.replace("op", "selective")}"']
    lines += ['selective_ac_option = "op"'] if again == "op" else []
    return "\n".join(lines) + "\n"


def _model_lines(recipe: Recipe) -> list[str]:
    if recipe.model is None:
        return []
    words = flavor_of(recipe.model)
    assert words is not None  # `model_faults` has been asked
    lines = ["[model]", f'name = "{words[0]}"', f'flavor = "{words[1]}"', ""]
    factor = models()[FLAVORS[words]].rope_scaling
    if factor != recipe.model.rope_scaling:
        what = f"rotary positions by {factor:g}; this model has {recipe.model.rope_scaling:g}"
        lines.insert(-1, f"# this flavor scales {what}, which its args.py must be told")
    return lines


def _pipeline_lines(recipe: Recipe, pp: int) -> list[str]:
    if pp == 1:
        return []
    options, chunks = recipe.options, recipe.options.get("num_chunks", 1)
    lines = [
        f'pipeline_parallel_schedule = "{"1F1B" if chunks == 1 else "Interleaved1F1B"}"',
        f"pipeline_parallel_microbatch_size = {options['microbatch_size']}",
    ]
    if chunks > 1 and recipe.model is not None:
        lines += [f"{_PIPELINE}_layers_per_stage = {_layers_a_stage(recipe)}", *(f"{key} = 0" for key in _LESS)]
    return lines


def _degrees(recipe: Recipe, world_size: int) -> tuple[int, int, int]:
    """Return copies of the model, ranks that share one, and stages' ranks."""
    options = recipe.options
    tp, pp = options.get("tp", 1), options.get("pp", 1)
    if recipe.strategy == "fsdp":
        replicas = options.get("replicas", 1)
        return replicas, world_size // (replicas * tp), 1
    return world_size // (tp * pp), 1, pp


def read(config: Mapping[str, Any], name: str) -> Recipe:  # noqa: ARG001  (its models have names)
    """Return the recipe of a TOML.

    Raises:
        UsageError: there are keys that are not known, or that cannot be modelled; all at once.
    """
    given = dict(_flat(config))
    faults = [*_unknown(config, given), *_not_modelled(given)]
    if faults:
        raise refuse(f"the configuration of {TOOL}", faults)
    model = _model(given)
    strategy, options, notes = _layout(given, model)
    replicated, sharded = (given.get(f"parallelism.data_parallel_{kind}_degree", default) for kind, default in _SHARES)
    tp, pp = options.get("tp", 1), options.get("pp", 1)
    world_size = replicated * sharded * tp * pp if sharded > 0 else None
    local = given.get("training.local_batch_size", given.get("training.batch_size", 8))
    batch = given.get("training.global_batch_size", -1)
    if batch <= 0:
        batch = local * replicated * sharded if sharded > 0 else None
    return Recipe(strategy, options, model, world_size, batch, notes, TOOL)


_SHARES = (("replicate", 1), ("shard", -1))


def _flat(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of the sections that have a bearing, with the section before them."""
    for section, values in config.items():
        if section in _SECTIONS and isinstance(values, Mapping):
            yield from ((f"{section}.{key}", value) for key, value in values.items())


def _unknown(config: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections and keys that nobody knows."""
    for section in config:
        if section not in _SECTIONS and section not in known_words("torchtitan, sections"):
            yield f"[{section}] is not known"
    for key in given:
        if key not in known_words("torchtitan") and not key.startswith(("float8.", "quantize.")):
            yield f"{key} is not known"


def _not_modelled(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what no strategy does."""
    words = given.get("model.name"), given.get("model.flavor")
    if words[0] is not None and words not in FLAVORS:
        known = ", ".join(f"{name} {flavor}" for name, flavor in FLAVORS)
        yield f"model {words[0]} {words[1]} is not known; known are {known}; leave [model] out and give --model"
    for key in ("context_parallel_degree", "expert_parallel_degree", "expert_tensor_parallel_degree"):
        if given.get(f"parallelism.{key}", 1) > 1:
            yield f"parallelism.{key} is not modelled beside what torchtitan shards"
    schedule = given.get("parallelism.pipeline_parallel_schedule", "1F1B")
    pp, sharded = (given.get(f"parallelism.{key}_degree", 1) for key in ("pipeline_parallel", "data_parallel_shard"))
    if given.get("training.enable_cpu_offload") and (pp > 1 or sharded == 1):
        yield "training.enable_cpu_offload is modelled where weights are sharded alone"
    if pp > 1 and schedule not in _SCHEDULES:
        yield f"parallelism.pipeline_parallel_schedule must be {' or '.join(_SCHEDULES)}, got {schedule}"
    if pp > 1 and sharded not in (-1, 1):
        yield "pipelines whose stages are sharded (data_parallel_shard_degree) are not modelled; replicate them"
    if given.get("activation_checkpoint.mode", "selective") not in ("none", "selective", "full"):
        yield f"activation_checkpoint.mode must be none, selective or full, got {given['activation_checkpoint.mode']}"


def _model(given: Mapping[str, Any]) -> Transformer | None:
    """Return the model of a flavor; with float8 converters, its multiplications with weights in 8 bits."""
    words = given.get("model.name"), given.get("model.flavor")
    if words[0] is None:
        return None
    model = models()[FLAVORS[words]]  # type: ignore[index]  # `_not_modelled` has looked
    precision = model.precision
    if any("float8" in converter for converter in given.get("model.converters", ())):
        precision = PRECISIONS.get("fp8") or replace(precision, name="fp8", weight_datatype="float8")
    return replace(model, seq_len=given.get("training.seq_len", 2048), precision=precision)


def _layout(given: Mapping[str, Any], model: Transformer | None) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return the strategy, its options, and what is read as something else."""
    key = "parallelism.{}".format
    tp, pp = (given.get(key(f"{kind}_parallel_degree"), 1) for kind in ("tensor", "pipeline"))
    mode = given.get("activation_checkpoint.mode", "selective")
    size = given.get("training.local_batch_size", given.get("training.batch_size", 8))
    options: dict[str, Any] = {
        "microbatch_size": given.get(key("pipeline_parallel_microbatch_size"), 1) if pp > 1 else size
    }
    options |= {"tp": tp, "sequence_parallel": True} if tp > 1 else {}
    if mode == "selective" and given.get("activation_checkpoint.selective_ac_option") == "op":
        mode = "op"
    options |= {} if mode == "none" else {"recompute": mode}
    notes = ("selective recomputation is read as that of the attention core",) if mode == "selective" else ()
    if given.get(key("enable_async_tensor_parallel")) and tp > 1:
        notes = (*notes, "--platform torchtitan:parts_overlap=pieces has the time of asynchronous tensor parallelism")
    replicated, sharded = (given.get(key(f"data_parallel_{kind}_degree"), default) for kind, default in _SHARES)
    if pp == 1 and sharded != 1:
        options |= {"replicas": replicated} if replicated > 1 else {}
        options |= {"offload": "parameters"} if given.get("training.enable_cpu_offload") else {}
        options |= {"reshard_after_forward": False} if given.get(key("fsdp_reshard_after_forward")) == "never" else {}
        return "fsdp", options, notes
    options |= {"pp": pp} if pp > 1 else {}
    options |= {"overlap_replicas": True} if replicated > 1 else {}  # `apply_ddp` has PyTorch's DDP sum them
    if pp > 1 and _SCHEDULES[given.get(key("pipeline_parallel_schedule"), "1F1B")]:
        layers = given.get(key("pipeline_parallel_layers_per_stage"))
        less = sum(given.get(key(name), 1) for name in _LESS)
        options["num_chunks"] = _num_stages(model, layers, less) // pp if model is not None and layers else 2
    return "megatron", options, notes
