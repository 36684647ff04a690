"""A layout in the options of other tools: Megatron-LM, torchtitan, DeepSpeed, PyTorch's FSDP, and Calculon.

Names are those of Megatron-LM's `arguments.py`, torchtitan's `job_config.py`, DeepSpeed's `zero/config.py`,
`torch.distributed.fsdp.fully_shard`, and the execution files of Calculon (`calculon/llm/llm.py`). What a tool has no
option for is written as a comment, or refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Protocol

from minitrain.errors import UsageError
from minitrain.tuning.rows import Row
from minitrain.tuning.space import Candidate
from minitrain.tuning.stages import unequal_stages

_RECOMPUTE_OF_CALCULON = {"none": "none", "selective": "attn_only", "full": "full"}


class Choice(Protocol):
    """A configuration that was tried: `minitrain.tuning.findings.Choice`."""

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


def require_tool(tool: str) -> None:
    """Require a tool that there are words for.

    Raises:
        UsageError: there are none.
    """
    if tool not in TOOLS:
        raise UsageError(f"a layout can be said in the words of {', '.join(TOOLS)}, got {tool!r}", tool=tool)


def megatron_lm(choice: Choice) -> str:
    """Return the options of Megatron-LM's command line."""
    options, row = choice.options, choice.row
    if row["strategy"] == "fsdp":
        return _fsdp_of_megatron(choice)
    _require(choice, "megatron-lm", "megatron", "fsdp")
    words = [
        f"--tensor-model-parallel-size {options['tp']}",
        f"--pipeline-model-parallel-size {options['pp']}",
        f"--micro-batch-size {options['microbatch_size']}",
        f"--global-batch-size {row['global_batch_size']}",
        *_switches(options),
        *_recompute(options["recompute"]),
    ]
    return " \\\n".join([*words, *_sizes(choice)]) + "\n" + _note_on_stages(choice)


def _note_on_stages(choice: Choice) -> str:
    """Return what is to be said of stages that Megatron-LM cannot cut so."""
    options, machine = choice.options, choice.candidate.problem.machine
    if machine.model is None:
        return ""
    unequal = unequal_stages(machine, options["pp"] * options["num_chunks"], options["microbatch_size"])
    what = f"# the step time is that of stages of unequal numbers of layers: {unequal}; "
    return f"{what}--pipeline-model-parallel-layout comes near it with whole ones\n" if unequal else ""


def _switches(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is on."""
    if options["num_chunks"] > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {options['num_chunks']}"
        if not options["overlap_messages"]:
            yield "--no-overlap-p2p-communication"
    if options["sequence_parallel"]:
        yield "--sequence-parallel"
        if options["overlap_parts"]:
            yield "--tp-comm-overlap"
    if options["zero"]:
        yield "--use-distributed-optimizer"
    if options["overlap_replicas"]:
        yield "--overlap-grad-reduce"
        if options["zero"]:
            yield "--overlap-param-gather"


def _recompute(recompute: str) -> Iterator[str]:
    """Yield what is computed again."""
    if recompute == "selective":
        yield "--recompute-activations"
    elif recompute == "full":
        yield "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


def _fsdp_of_megatron(choice: Choice) -> str:
    """Return the options of Megatron-LM's own use of FSDP2."""
    options, row = choice.options, choice.row
    if options["replicas"] > 1 or options["offload"]:
        _refuse(choice, "megatron-lm", "--use-torch-fsdp2 has neither replicas nor offload")
    words = [
        "--use-torch-fsdp2",
        f"--tensor-model-parallel-size {options['tp']}",
        f"--micro-batch-size {options['microbatch_size']}",
        f"--global-batch-size {row['global_batch_size']}",
        *(["--sequence-parallel"] if options["sequence_parallel"] else []),
        *_recompute(options["recompute"]),
    ]
    return " \\\n".join([*words, *_sizes(choice)]) + "\n"


def _sizes(choice: Choice) -> Iterator[str]:
    """Yield the sizes of the model."""
    machine = choice.candidate.problem.machine
    if (model := machine.model) is not None:
        yield f"--num-layers {model.num_layers} --hidden-size {model.hidden_size}"
        yield f"--ffn-hidden-size {model.ffn_hidden_size} --num-attention-heads {model.num_heads}"
        if model.num_kv_heads != model.num_heads:
            yield f"--group-query-attention --num-query-groups {model.num_kv_heads}"
        yield f"--seq-length {machine.workload.seq_len}"


def torchtitan(choice: Choice) -> str:
    """Return the sections of torchtitan's TOML that a layout determines."""
    _require(choice, "torchtitan", "megatron", "fsdp")
    options, row = choice.options, choice.row
    replicated, sharded, pp = _degrees(choice)
    per_rank = row["global_batch_size"] // (replicated * sharded)
    size = options["microbatch_size"]
    lines = [
        "[training]",
        f"local_batch_size = {per_rank if pp > 1 else size}",
        f"global_batch_size = {row['global_batch_size']}",
        *_seq_len(choice),
        "",
        "[parallelism]",
        f"data_parallel_replicate_degree = {replicated}",
        f"data_parallel_shard_degree = {sharded}",
        f"tensor_parallel_degree = {options['tp']}",
        f"pipeline_parallel_degree = {pp}",
    ]
    if pp > 1:
        schedule = "1F1B" if options["num_chunks"] == 1 else "Interleaved1F1B"
        lines += [f'pipeline_parallel_schedule = "{schedule}"', f"pipeline_parallel_microbatch_size = {size}"]
    if row["strategy"] == "fsdp":
        lines.append(f'fsdp_reshard_after_forward = "{"always" if options["reshard_after_forward"] else "never"}"')
    if options["tp"] > 1 and not options["sequence_parallel"]:
        lines.append("# torchtitan always divides the sequence beside tensor parallelism; this layout does not")
    if options.get("zero"):
        lines.append("# torchtitan has no ZeRO-1; replicas keep the whole optimizer state there")
    lines += ["", "[activation_checkpoint]", f'mode = "{options["recompute"]}"']
    if options.get("offload") == "activations":
        lines.append("# offloaded activations have no key of their own")
    return "\n".join(lines) + "\n"


def _degrees(choice: Choice) -> tuple[int, int, int]:
    """Return copies of the model, ranks that share one, and stages' ranks."""
    options, world_size = choice.options, choice.row["world_size"]
    if choice.row["strategy"] == "fsdp":
        return options["replicas"], world_size // (options["replicas"] * options["tp"]), 1
    return world_size // (options["tp"] * options["pp"]), 1, options["pp"]


def _seq_len(choice: Choice) -> list[str]:
    """Return the line of the sequence's length, where there is one."""
    seq_len = getattr(choice.candidate.problem.machine.workload, "seq_len", None)
    return [] if seq_len is None else [f"seq_len = {seq_len}"]


def deepspeed(choice: Choice) -> str:
    """Return DeepSpeed's configuration: of layouts of replicas or shards alone."""
    _require(choice, "deepspeed", "megatron", "fsdp")
    options, row = choice.options, choice.row
    replicated, sharded, pp = _degrees(choice)
    if options["tp"] > 1 or pp > 1:
        _refuse(choice, "deepspeed", "its configuration has no tensor or pipeline parallelism; use megatron-lm")
    zero: dict[str, Any] = {
        "stage": options.get("zero", 3),
        "overlap_comm": bool(options.get("overlap_replicas", True)),
    }
    if row["strategy"] == "fsdp" and replicated > 1:
        zero["mics_shard_size"] = sharded
    if options.get("offload") == "optimizer":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    share = row["global_batch_size"] // row["world_size"]
    config: dict[str, Any] = {
        "train_batch_size": row["global_batch_size"],
        "train_micro_batch_size_per_gpu": options["microbatch_size"],
        "gradient_accumulation_steps": share // options["microbatch_size"],
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }
    if options.get("offload") == "activations":
        config["activation_checkpointing"] = {"cpu_checkpointing": True}
    return json.dumps(config, indent=2) + "\n"


def fsdp(choice: Choice) -> str:
    """Return the calls of PyTorch that shard a model so."""
    _require(choice, "fsdp", "fsdp")
    options = choice.options
    replicated, sharded, _ = _degrees(choice)
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
    tp = given["tensor_par"]
    return {
        "world_size": given["num_procs"],
        "global_batch_size": given["batch_size"],
        "microbatch_size": given["microbatch_size"],
        "tp": tp,
        "pp": given["pipeline_par"],
        "num_chunks": given["pipeline_interleaving"],
        "recompute": recompute[given["activation_recompute"]],
        "zero": int(given["optimizer_sharding"]),
        "sequence_parallel": tp > 1 and given["tensor_par_comm_type"] == "rs_ag",
        "scatter_gather": given["pipeline_par"] > 1 and tp > 1 and given["tensor_par_comm_type"] == "p2p_rs_ag",
        "overlap_parts": tp > 1 and given.get("tensor_par_overlap", "none") != "none",
        "overlap_replicas": bool(given["data_par_overlap"]),
    }


def _read(path: Path) -> Mapping[str, Any]:
    """Return what a file holds."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
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
    "megatron-lm": megatron_lm,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
    "fsdp": fsdp,
    "calculon": calculon,
}
