"""The usual values of the options that a search goes through, by strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minitrain.tuning.problem import Machine

RECOMPUTATIONS = ("none", "selective", "full")
_CHUNKS = (1, 2, 3, 4, 5, 6, 8, 10)
_MICROBATCHES = (1, 2, 4, 8, 16, 32)
_MOST_WITH_EXPERTS = 4  # samples of a microbatch; recipes for models with experts take 1 or 2
_MOST_EXPERTS = 8  # of a layer on one rank; recipes have 1 to 8
_LEAST_TOKENS = 4096  # of a shard of a sequence; recipes divide 8,192 tokens by 2, and Llama 3 131,072 by 16
_SWITCH = (False, True)


def _of_megatron(machine: Machine) -> dict[str, Sequence[Any]]:
    """Return the axes of `megatron`."""
    world_size, num_layers = machine.problem.world_size, num_blocks(machine)
    if machine.has_experts:
        return _of_megatron_with_experts(machine)
    return {
        "tp": [size for size in (1, 2, 4, 8) if size <= machine.node_size and world_size % size == 0],
        "cp": [size for size in _divisors(world_size) if size == 1 or size * _LEAST_TOKENS <= machine.workload.seq_len],
        "pp": [size for size in _divisors(world_size) if size == 1 or size <= num_layers // 2],
        "num_chunks": _CHUNKS,
        "microbatch_size": _microbatches(machine),
        "zero": (0, 1),
        "recompute": RECOMPUTATIONS,
        "sequence_parallel": _SWITCH,
        "overlap_replicas": _SWITCH,
        "overlap_parts": _SWITCH,
    }


def _of_megatron_with_experts(machine: Machine) -> dict[str, Sequence[Any]]:
    """Return the axes of `megatron` for a model with experts: values of recipes, since each layout is simulated.

    Recipes divide experts and stages, not layers: tp 1, pp 4, 8 chunks, ep 8 for Mixtral 8x7B on H100
    (examples/training/mixtral/h100/mixtral_8x7b_bf16.sh of github.com/NVIDIA/NeMo-Framework-Launcher), and no tensor
    parallelism for DeepSeek-V3 (section 3.2 of its report).
    """
    sizes, num_experts = _divisors(machine.problem.world_size), machine.model.num_experts
    return {
        "tp": (1,),
        "pp": [size for size in sizes if 2 * size <= num_blocks(machine)],
        "ep": [size for size in sizes if num_experts % size == 0 and num_experts // size <= _MOST_EXPERTS],
        "num_chunks": (1, 4, 8),
        "microbatch_size": (1,),
        "zero": (1,),
        "recompute": _recomputations_with_experts(machine),
        "overlap_replicas": (True,),
    }


def _recomputations_with_experts(machine: Machine) -> tuple[str, ...]:
    """Return what recipes compute again of layers with experts, each of them more than the one before.

    Norms, projections up from latents and activation functions (DeepSeek-V3, section 3.2.3); MLPs and experts beside
    these (NVIDIA's DeepSeek-V3 on H100, NVIDIA/dgxc-benchmarking); everything.
    """
    up = ["mla_up_proj"] if machine.model.latent is not None else []
    has_dense = any(unit.kind == "mlp" for unit in machine.workload.units)
    few, more = ["layernorm", *up, "moe_act"], ["layernorm", *up, *(["mlp"] if has_dense else []), "moe"]
    return ("none", "+".join(few), "+".join(more), "full")


def _of_fsdp(machine: Machine) -> dict[str, Sequence[Any]]:
    """Return the axes of `fsdp`."""
    world_size, node_size = machine.problem.world_size, machine.node_size
    if machine.has_experts:  # parts of a layer are not divided there, and each layout is simulated
        return {
            "replicas": sorted({1, max(1, world_size // node_size)}),
            "microbatch_size": [size for size in _microbatches(machine) if size <= _MOST_WITH_EXPERTS],
            "reshard_after_forward": _SWITCH,
            "recompute": ("none", "full"),
        }
    return {
        "tp": [size for size in (1, 2, 4, 8) if size <= node_size and world_size % size == 0],
        "replicas": sorted({1, max(1, world_size // node_size)}),
        "microbatch_size": _microbatches(machine),
        "reshard_after_forward": _SWITCH,
        "recompute": _recomputations(machine),
        "sequence_parallel": _SWITCH,
        "offload": (None, "optimizer", "activations"),
    }


def _recomputations(machine: Machine) -> tuple[str, ...]:
    """Return what backward may compute again; flash attention has nothing for "selective" to save."""
    is_flash = getattr(machine.model, "attention", None) == "flash"
    return tuple(name for name in RECOMPUTATIONS if not (is_flash and name == "selective"))


def _of_deepseek_like(machine: Machine) -> dict[str, Sequence[Any]]:
    """Return the axes of `deepseek_like`."""
    sizes, num_experts = _divisors(machine.problem.world_size), machine.model.num_experts
    return {
        "pp": [size for size in sizes if 2 * size <= num_blocks(machine)],
        "ep": [size for size in sizes if num_experts % size == 0],
        "microbatch_size": [size for size in _microbatches(machine) if size <= _MOST_WITH_EXPERTS],
        "zero": (1,),
        "recompute": tuple(word for word in _recomputations_with_experts(machine) if not word.endswith("+moe")),
    }


def _of_context(machine: Machine) -> dict[str, Sequence[Any]]:
    """Return the axes of strategies that divide the sequence."""
    sizes = _divisors(machine.problem.world_size)
    return {
        "cp": sizes,
        "tp": [size for size in sizes if size <= machine.node_size],
        "microbatch_size": _microbatches(machine),
        "recompute": RECOMPUTATIONS,
    }


def of_others(machine: Machine) -> dict[str, Sequence[Any]]:
    """Return the axes of a strategy that is not known: the microbatch alone."""
    return {"microbatch_size": _microbatches(machine)}


USUAL: Mapping[str, Callable[[Machine], dict[str, Sequence[Any]]]] = {
    "megatron": _of_megatron,
    "fsdp": _of_fsdp,
    "deepseek_like": _of_deepseek_like,
    "gathered_context": _of_context,
    "ring_attention": _of_context,
}


def num_blocks(machine: Machine) -> int:
    """Return the layers of a transformer, or of another workload."""
    return int(machine.num_layers if machine.model is None else machine.model.num_layers)


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    return [size for size in range(1, number + 1) if number % size == 0]


def _microbatches(machine: Machine) -> list[int]:
    """Return the usual sizes of microbatches."""
    batch = machine.problem.global_batch_size
    return [size for size in _MICROBATCHES if size <= batch] or [1]
