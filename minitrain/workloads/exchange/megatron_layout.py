"""A layout as fields of Megatron Core's configuration, and such fields as options of `megatron` or `fsdp`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from minitrain.workloads.exchange.recipe import Recipe
from minitrain.workloads.workload import MODULES, OURS, as_recompute, modules_of

Fields = dict[str, Any]

DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}
STRATEGIES = ("megatron", "fsdp")
_SHARDS_ALL = "optim_grads_params"


def layout_faults(recipe: Recipe) -> list[str]:
    """Return why Megatron Core cannot lay work out so, a line each."""
    options = recipe.options
    again = as_recompute(options.get("recompute", "none"))
    found = {
        f"the strategy {recipe.strategy}": recipe.strategy not in STRATEGIES,
        f"replicas of shards ({options.get('replicas')})": options.get("replicas", 1) > 1,
        f"offload of {options.get('offload')}": bool(options.get("offload")),
        f"zero={options.get('zero')}": options.get("zero", 0) > 1,
        f"shard_size={options.get('shard_size')}": options.get("shard_size") is not None,
        **{f"recompute={module}": module in modules_of(again) for module in OURS},
        "layers_per_stage": bool(options.get("layers_per_stage")),
        f"the schedule {options.get('schedule')}": options.get("schedule", "1f1b") not in ("1f1b", "interleaved_1f1b"),
    }
    return [what for what, is_so in found.items() if is_so]


def fields_of(recipe: Recipe) -> Fields:
    """Return the fields of a layout that Megatron Core can have."""
    options = recipe.options
    found: Fields = {
        name: options[option]
        for option, name in DEGREES.items()
        if options.get(option, 1) > 1 or (option in ("tp", "pp") and option in options)
    }
    if options.get("ep", 1) > 1:
        found["expert_tensor_parallel_size"] = 1  # by default Megatron Core divides experts as other layers
    if options.get("cp", 1) > 1:
        found["cp_comm_type"] = options.get("cp_comm_type", "p2p")
    if options.get("capacity_factor") is not None:
        found["moe_expert_capacity_factor"] = options["capacity_factor"]
    found |= {"micro_batch_size": options["microbatch_size"], "global_batch_size": recipe.global_batch_size}
    if recipe.strategy == "fsdp":
        found["use_torch_fsdp2"] = True
    if (chunks := options.get("num_chunks", 1)) > 1:
        found |= {"virtual_pipeline_model_parallel_size": chunks}
        found |= {"overlap_p2p_comm": bool(options.get("overlap_messages", True))}
    if options.get("sequence_parallel"):
        found |= {"sequence_parallel": True, "tp_comm_overlap": bool(options.get("overlap_parts"))}
    zero, overlaps = bool(options.get("zero")), bool(options.get("overlap_replicas"))
    found |= {
        "use_distributed_optimizer": zero,
        "overlap_grad_reduce": overlaps,
        "overlap_param_gather": zero and overlaps,
    }
    return found | _recompute_fields(as_recompute(options.get("recompute", "none")))


def _recompute_fields(recompute: str) -> Fields:
    """Return the fields that say what backward computes again."""
    if recompute == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    modules = modules_of(recompute)
    if not modules:
        return {}
    found: Fields = {"recompute_granularity": "selective"}
    return found if recompute == "selective" else found | {"recompute_modules": sorted(modules)}


def _recompute_of(given: Mapping[str, Any]) -> str:
    """Return what backward computes again by the fields that are given."""
    granularity = "selective" if given.get("recompute_activations") else given.get("recompute_granularity") or "none"
    modules = given.get("recompute_modules")
    return as_recompute("+".join(modules)) if granularity == "selective" and modules else str(granularity)


def layout_of(given: Mapping[str, Any], faults: list[str]) -> tuple[str, Fields]:
    """Return the strategy and its options; faults are noted.

    Args:
        given: fields of Megatron Core by name.
        faults: where to write what no strategy does.
    """
    faults += _not_modelled(given)
    recompute = "none" if faults else _recompute_of(given)
    found: Fields = {option: given[name] for option, name in DEGREES.items() if given.get(name, 1) > 1}
    found |= {"microbatch_size": given["micro_batch_size"]} if "micro_batch_size" in given else {}
    found |= {} if recompute == "none" else {"recompute": recompute}
    found |= {"sequence_parallel": True} if given.get("sequence_parallel") and found.get("tp", 1) > 1 else {}
    if given.get("use_torch_fsdp2") or given.get("use_megatron_fsdp"):
        return "fsdp", found
    found |= _of_experts_and_context(given)
    found |= {"zero": 1} if given.get("use_distributed_optimizer") else {}
    found |= {"overlap_replicas": True} if given.get("overlap_grad_reduce") else {}
    found |= {"overlap_parts": True} if given.get("tp_comm_overlap") and found.get("sequence_parallel") else {}
    chunks = _num_chunks(given, faults)
    if chunks > 1:
        found |= {"num_chunks": chunks, "overlap_messages": given.get("overlap_p2p_comm", True)}
    return "megatron", found


def _of_experts_and_context(given: Mapping[str, Any]) -> Fields:
    """Return how keys and values are exchanged where that is not round a ring, and what experts take at most."""
    how, most = _cp_comm_type(given), given.get("moe_expert_capacity_factor")
    found: Fields = {} if how == "p2p" or given.get(DEGREES["cp"], 1) == 1 else {"cp_comm_type": how}
    return found if most is None else found | {"capacity_factor": most}


def _cp_comm_type(given: Mapping[str, Any]) -> str:
    return str(given.get("cp_comm_type") or "p2p").replace("allgather", "all_gather")


def notes_on(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what of a layout is read as something else."""
    tp, ep = given.get(DEGREES["tp"], 1), given.get(DEGREES["ep"], 1)
    divides = ep > 1 and given.get("expert_tensor_parallel_size", tp) > 1
    notes = ["experts are taken whole on their ranks, not divided by tensor parallelism"] * divides
    dispatcher = given.get("moe_token_dispatcher_type", "alltoall")
    if given.get("num_moe_experts") and ep > 1 and not str(dispatcher).startswith("alltoall"):
        notes.append(f"tokens travel to experts by all_to_all, not by the dispatcher {dispatcher}")
    return tuple(notes)


def _num_chunks(given: Mapping[str, Any], faults: list[str]) -> int:
    """Return the stages of a rank."""
    layers = given.get("num_layers_per_virtual_pipeline_stage")
    if layers is None:
        return int(given.get("virtual_pipeline_model_parallel_size") or 1)
    pp, num_layers = given.get(DEGREES["pp"], 1), given.get("num_layers")
    if num_layers is None or num_layers % (pp * layers):
        faults.append(f"num_layers ({num_layers}) must be a multiple of stages x layers a stage ({pp} x {layers})")
        return 1
    return int(num_layers // (pp * layers))


_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "recompute_granularity": ("full", "selective"),
        "recompute_method": ("uniform", "block"),
        "cp_comm_type": ("p2p", "all_gather", "allgather", "a2a", "a2a+p2p"),
        "data_parallel_sharding_strategy": ("no_shard", "optim", "optim_grads", _SHARDS_ALL),
        "moe_token_dispatcher_type": ("alltoall", "alltoall_seq", "allgather", "flex"),
        "moe_router_score_function": ("softmax", "sigmoid"),
        "fp8": ("e4m3", "hybrid"),
    }
)
"""What Megatron Core knows of fields whose other values would change nothing here."""


def _not_known(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield values that Megatron Core does not know."""
    for field, known in _CHOICES.items():
        if given.get(field) not in (None, "", False) and str(given[field]) not in known:
            yield f"{field} must be one of {', '.join(known)}, got {given[field]!r}"
    for field in DEGREES.values():
        if not given.get(field, 1) >= 1:
            yield f"{field} must be at least 1, got {given[field]}"
    if not (given.get("moe_expert_capacity_factor") or 1) > 0:
        yield f"moe_expert_capacity_factor must be above 0, got {given['moe_expert_capacity_factor']}"
    for one, other in (("bf16", "fp16"), ("gated_linear_unit", "squared_relu")):
        if given.get(one) and given.get(other):
            yield f"{one} and {other} exclude each other; leave one out"


def _not_modelled(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what no strategy does, and what Megatron Core does not know."""
    yield from _not_known(given)
    granularity = given.get("recompute_granularity")
    if granularity == "full" and (given.get("recompute_method"), given.get("recompute_num_layers")) != ("uniform", 1):
        yield "full recomputation must be uniform, of one layer each; that of several layers or some is not modelled"
    known = [module for module in MODULES if module not in OURS]
    unknown = [module for module in given.get("recompute_modules") or () if module not in known]
    if unknown:
        yield f"recompute_modules must be some of {', '.join(known)}, got {', '.join(unknown)}"
    sharding = given.get(
        "data_parallel_sharding_strategy", _SHARDS_ALL if given.get("use_megatron_fsdp") else "no_shard"
    )
    if given.get("use_megatron_fsdp") and sharding != _SHARDS_ALL:
        yield f"data_parallel_sharding_strategy must be {_SHARDS_ALL} with Megatron FSDP, got {sharding}"
    if given.get(DEGREES["cp"], 1) > 1 and _cp_comm_type(given) not in ("p2p", "all_gather"):
        yield f"cp_comm_type must be p2p or all_gather, since others are not modelled, got {given['cp_comm_type']}"
    is_fsdp = given.get("use_torch_fsdp2") or given.get("use_megatron_fsdp")
    for option in ("pp", "cp", "ep") if is_fsdp else ():
        if given.get(DEGREES[option], 1) > 1:
            yield f"{DEGREES[option]} ({given[DEGREES[option]]}) beside FSDP is not modelled"
