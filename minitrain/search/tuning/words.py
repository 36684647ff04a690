"""A layout in the options of other tools: those of `minitrain.workloads.exchange`, PyTorch's FSDP, and Calculon.

Names are those of `torch.distributed.fsdp.fully_shard`, and of the execution files of Calculon (`calculon/llm/llm.py`).
What a tool has no option for is written as a comment, or refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from minitrain.errors import UsageError, require_count
from minitrain.files import read_json, shown
from minitrain.search.tuning.problem import Candidate, unequal_stages
from minitrain.search.tuning.search import Row
from minitrain.workloads.exchange.reading import require_words, write_recipe
from minitrain.workloads.exchange.recipe import Recipe

_RECOMPUTE_OF_CALCULON = {"none": "none", "selective": "attn_only", "full": "full"}


class Choice(Protocol):
    """A configuration that was tried: `minitrain.search.tuning.findings.Choice`."""

    candidate: Candidate
    row: Row

    @property
    def options(self) -> Row:
        """The options of its strategy."""
        ...


def in_words_of(tool: str, choice: Choice) -> str:
    """Return a layout in the words of a tool.

    Raises:
        UsageError: there is no such tool, or it has no words for the strategy.
    """
    require_tool(tool)
    return TOOLS[tool](choice)


def require_tool(tool: str, workload: Any = None) -> None:
    """Require a tool that there are words for, and that it has words for what is trained.

    Args:
        tool: its name.
        workload: what is trained; nothing is required of another workload than a transformer.

    Raises:
        UsageError: there are none.
    """
    if tool not in TOOLS:
        raise UsageError(f"a layout can be said in the words of {', '.join(TOOLS)}, got {tool!r}", tool=tool)
    require_words(getattr(workload, "model", workload), tool)


def recipe_of(choice: Choice) -> Recipe:
    """Return a layout with the model and the batch that it was chosen for."""
    machine, row = choice.candidate.problem.machine, choice.row
    model = None if machine.model is None else replace(machine.model, seq_len=machine.workload.seq_len)
    return Recipe(row["strategy"], choice.options, model, row["world_size"], row["global_batch_size"])


def _megatron(choice: Choice, tool: str) -> str:
    """Return the arguments of a tool that is made of Megatron Core, with what is to be said of stages."""
    return write_recipe(recipe_of(choice), tool) + _note_on_stages(choice)


def _note_on_stages(choice: Choice) -> str:
    """Return what is to be said of stages that Megatron Core cannot cut so."""
    options, machine = choice.options, choice.candidate.problem.machine
    if machine.model is None or "pp" not in options:
        return ""
    unequal = unequal_stages(machine, options["pp"] * options["num_chunks"], options["microbatch_size"])
    what = f"# the step time is that of stages of unequal numbers of layers: {unequal}; "
    return f"{what}--pipeline-model-parallel-layout comes near it with whole ones\n" if unequal else ""


def fsdp(choice: Choice) -> str:
    """Return the calls of PyTorch that shard a model so."""
    _require(choice, "fsdp", "fsdp")
    options = choice.options
    replicated = options["replicas"]
    sharded = choice.row["world_size"] // (replicated * options["tp"])
    sizes = [("replicate", replicated), ("shard", sharded), ("tp", options["tp"])]
    kept = [(name, size) for name, size in sizes if size > 1 or name == "shard"]
    names, shape = tuple(name for name, _ in kept), tuple(size for _, size in kept)
    axes = tuple(name for name in names if name != "tp")
    of_mesh = f"mesh[{axes!r}]" if len(axes) > 1 else f"mesh[{axes[0]!r}]"
    reshards = options["reshard_after_forward"]
    lines = [
        f"mesh = init_device_mesh('cuda', {shape!r}, mesh_dim_names={names!r})",
        "for layer in model.layers:",
        *(["    layer = checkpoint_wrapper(layer)"] if options["recompute"] == "full" else []),
        f"    fully_shard(layer, mesh={of_mesh}, reshard_after_forward={reshards})",
        f"fully_shard(model, mesh={of_mesh}, reshard_after_forward={reshards})",
    ]
    if options.get("offload") == "activations":
        lines.append("# forward under torch.autograd.graph.save_on_cpu(pin_memory=True)")
    if options.get("offload") == "optimizer":
        lines.append("# keep the optimizer's state on the host; offload_policy=CPUOffloadPolicy() moves weights too")
    share = choice.row["global_batch_size"] * options["tp"] // choice.row["world_size"]
    lines.append(f"# {share // options['microbatch_size']} microbatches of {options['microbatch_size']} a step")
    return "\n".join(lines) + "\n"


def calculon(choice: Choice) -> str:
    """Return Calculon's execution file."""
    _require(choice, "calculon", "megatron")
    if choice.candidate.problem.machine.has_experts:
        _refuse(choice, "calculon", "it has no layers with experts")
    if choice.options["recompute"] not in _RECOMPUTE_OF_CALCULON:
        _refuse(choice, "calculon", f"it has no recompute={choice.options['recompute']}")
    options, row = choice.options, choice.row
    tp, pp, size = options["tp"], options["pp"], row["world_size"]
    dp = size // (tp * pp)
    machine = choice.candidate.problem.machine
    communication = "rs_ag" if options["sequence_parallel"] else "p2p_rs_ag" if options["scatter_gather"] else "ar"
    execution = {
        "num_procs": size,
        "tensor_par": tp,
        "pipeline_par": pp,
        "data_par": dp,
        "tensor_par_net": _tier(machine, tp),
        "pipeline_par_net": _tier(machine, size if pp > 1 else 1),
        "data_par_net": _tier(machine, dp * tp),
        "batch_size": row["global_batch_size"],
        "microbatch_size": options["microbatch_size"],
        "datatype": machine.workload.datatype,
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": _RECOMPUTE_OF_CALCULON[options["recompute"]],
        "pipeline_interleaving": options["num_chunks"],
        "optimizer_sharding": bool(options["zero"]),
        "tensor_par_comm_type": communication,
        "tensor_par_overlap": "ring" if options["overlap_parts"] else "none",
        "seq_par_ag_redo": bool(options["sequence_parallel"]) and options["recompute"] != "full",
        "data_par_overlap": bool(options["overlap_replicas"]),
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }
    return json.dumps(execution, indent=2) + "\n"


def _tier(machine: Any, size: int) -> int:
    """Return the place of the smallest tier that so many neighbours lie in."""
    tiers = [tier.size for tier in machine.predictor.system.networks]
    return min((place for place, tier in enumerate(tiers) if tier >= size), key=lambda place: tiers[place])


def of_calculon(execution: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return what `simulate("megatron", ...)` takes for an execution of Calculon.

    Args:
        execution: the file, or what it holds.

    Raises:
        UsageError: it cannot be read, or says what `megatron` cannot do.
    """
    given = execution if isinstance(execution, Mapping) else _read(Path(execution))
    try:
        return _of_execution(given)
    except KeyError as error:
        raise UsageError(f"an execution of Calculon needs {error.args[0]!r}, and this one has none") from None


def _of_execution(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters and options of an execution."""
    offloaded = [name for name in ("weight_offload", "activations_offload", "optimizer_offload") if given.get(name)]
    if offloaded or not given.get("training", True):
        what = ", ".join(offloaded) or "inference"
        raise UsageError(f"megatron cannot do what an execution of Calculon asks for: {what}; leave it out")
    recompute = {word: name for name, word in _RECOMPUTE_OF_CALCULON.items()}
    counts = {name: require_count(f"{word} of an execution of Calculon", given[word]) for name, word in _COUNTS.items()}
    for name in ("optimizer_sharding", "data_par_overlap"):
        _require_word(name, given[name], (False, True))
    _require_word("activation_recompute", given["activation_recompute"], [*recompute])
    replicas = require_count("data_par of an execution of Calculon", given["data_par"])
    if counts["world_size"] != counts["tp"] * counts["pp"] * replicas:
        raise UsageError(
            f"num_procs ({counts['world_size']}) of an execution of Calculon must be tensor_par * pipeline_par * "
            f"data_par ({counts['tp']} * {counts['pp']} * {replicas})"
        )
    tp, pp, overlap = counts["tp"], counts["pp"], given.get("tensor_par_overlap", "none")
    return {
        **counts,
        "recompute": recompute[given["activation_recompute"]],
        "zero": int(given["optimizer_sharding"]),
        "sequence_parallel": tp > 1 and given["tensor_par_comm_type"] == "rs_ag",
        "scatter_gather": pp > 1 and tp > 1 and given["tensor_par_comm_type"] == "p2p_rs_ag",
        "overlap_parts": tp > 1 and overlap != "none",
        "overlap_replicas": given["data_par_overlap"],
    }


_COUNTS = {
    "world_size": "num_procs",
    "global_batch_size": "batch_size",
    "microbatch_size": "microbatch_size",
    "tp": "tensor_par",
    "pp": "pipeline_par",
    "num_chunks": "pipeline_interleaving",
}
"""What an execution of Calculon calls the numbers of `megatron`."""


def _require_word(name: str, value: Any, known: Sequence[Any]) -> None:
    """Require one of some values of an execution of Calculon."""
    if not any(value is word or (isinstance(word, str) and value == word) for word in known):
        raise UsageError(
            f"{name} of an execution of Calculon must be {' or '.join(map(shown, known))}, got {shown(value)}"
        )


def _read(path: Path) -> Mapping[str, Any]:
    """Return what a file holds."""
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path} as an execution of Calculon: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} must hold an object, as executions of Calculon do, got {type(found).__name__}")
    return found


def _require(choice: Choice, tool: str, *strategies: str) -> None:
    """Require a strategy that a tool has words for."""
    if choice.row["strategy"] not in strategies:
        _refuse(choice, tool, f"it has words for {' and '.join(strategies)}")


def _refuse(choice: Choice, tool: str, why: str) -> NoReturn:
    raise UsageError(f"{tool} cannot say {choice}: {why}", tool=tool)


TOOLS: Mapping[str, Callable[[Choice], str]] = {
    "megatron-lm": lambda choice: _megatron(choice, "megatron-lm"),
    "megatron-bridge": lambda choice: _megatron(choice, "megatron-bridge"),
    "torchtitan": lambda choice: write_recipe(recipe_of(choice), "torchtitan"),
    "deepspeed": lambda choice: write_recipe(recipe_of(choice), "deepspeed"),
    "fsdp": fsdp,
    "calculon": calculon,
}
