"""What a row does not say and was taken for granted, and what else it could have said.

`assumptions` lists everything that the time or the memory of a row depends on, and that its columns leave open. Each
names the cells that the row could have had instead: `validate(strict=True)` simulates these, and refuses the row where
one moves the time by more than `MOST_MOVED`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from minitrain.evidence.columns import Assumption, columns, is_about, is_not_stated
from minitrain.evidence.layouts import Layout
from minitrain.evidence.rows import USUAL_HEAD, Framework, Row, named_model, usual_heads
from minitrain.machine.kernel_device import rates_of

if TYPE_CHECKING:
    from minitrain.machine.config import SystemConfig
    from minitrain.workloads.transformer import Transformer

MOST_MOVED = 0.02
"""The share of the step time that an assumption may move where rows are strict."""


def assumptions(
    row: Row, framework: Framework, layout: Layout, model: Transformer, system: SystemConfig
) -> tuple[Assumption, ...]:
    """Return what a row leaves open.

    Args:
        row: the row.
        framework: what trained it, whose defaults were taken.
        layout: how ranks divide the model, with what was assumed of it.
        model: what was trained.
        system: the machine.
    """
    own = [Assumption(row.text("assumed"), is_open=True)] if row.text("assumed") else []
    found = (
        *_of_degrees(row, layout),
        *_of_model(row, framework, layout, model),
        *_of_kernels(row, framework, model, system),
        *_of_device(row, system),
        *_of_links(row, system),
        *_of_communication(row, framework, layout, system),
        *_approximations(row),
    )
    return (*own, *layout.assumed, *found)


_MOST_PARAMETERS = 0.05
"""The share by which parameters that a row states may differ from those of its sizes: some count no embedding."""


def _lacks(row: Row, column: str) -> bool:
    return is_not_stated(row.text(column))


def _of_degrees(row: Row, layout: Layout) -> Iterator[Assumption]:
    for column in ("tp", "pp", "cp", "ep"):
        if _lacks(row, column):
            yield Assumption(f"{column} not stated: 1", column)
    if not row.words("zero").is_stated and layout.num_replicas > 1:
        yield Assumption("zero not stated: 0", "zero", ("1", "3"))
    if row.text("mem_gib") and "kind" not in row.words("mem_kind").facts:
        yield Assumption("mem_kind not stated: allocated", "mem_kind", ("allocated",))
    memory = row.words("mem_kind").facts
    if row.text("mem_gib") and memory.get("says_gb") and "unit" not in memory:
        yield Assumption("mem_kind says GB, of 1e9 or of 2**30 bytes: 2**30", "mem_kind")


def _of_model(row: Row, framework: Framework, layout: Layout, model: Transformer) -> Iterator[Assumption]:
    heads = {size: usual_heads(model.hidden_size, layout.tp, size) for size in (USUAL_HEAD // 2, 2 * USUAL_HEAD)}
    sizes = {
        "n_heads": (model.num_heads, tuple(map(str, heads.values()))),
        "n_kv_heads": (model.num_kv_heads, ("8",)),
        "ffn": (model.ffn_hidden_size, (str(4 * model.hidden_size), str(model.hidden_size * 8 // 3))),
        "head_dim": (model.head_dim, ()),
    }
    for column, (value, others) in sizes.items():
        if _lacks(row, column):
            yield Assumption(f"{column} not stated: {value}", column, others)
    if "tied" not in row.words("tied_emb").facts:
        yield Assumption(f"tied_emb not stated: {model.tied_embeddings}", "tied_emb", (str(not model.tied_embeddings),))
    said = row.number("n_params")
    if said and abs(model.num_parameters / said - 1) > _MOST_PARAMETERS:
        text = f"n_params is {row.text('n_params')}, but its sizes make {model.num_parameters / 1e9:.3g}e9"
        yield Assumption(text, is_open=True)
    if model.moe_layers:
        yield from _of_experts(row, model)
    if model.dropout:
        yield Assumption(f"dropout: {model.dropout}, the default of {framework.name}")


def _of_experts(row: Row, model: Transformer) -> Iterator[Assumption]:
    """Yield what a row leaves open of experts; a shipped model's name says what they are."""
    named, dense = named_model(row), model.num_layers - len(model.moe_layers)
    said = "" if named is None else f", as {named.name} has"
    for column, value in (("n_shared_experts", model.num_shared_experts), ("n_dense_layers", dense)):
        if _lacks(row, column) and not (column == "n_shared_experts" and "shared" in row.words("mlp").facts):
            yield Assumption(f"{column} not stated: {value}{said}", column, () if named else ("1",))
    if named is not None and model.latent is not None:
        yield Assumption(f"latent attention: that of {named.name}", is_open=True)
    if _lacks(row, "imbalance"):
        yield Assumption("load of experts not stated: balanced", "imbalance", ("1.2",))


def _of_kernels(row: Row, framework: Framework, model: Transformer, system: SystemConfig) -> Iterator[Assumption]:
    if not row.words("framework").is_stated:
        yield Assumption("framework not stated: components alone", "framework", ("Megatron-Core", "PyTorch FSDP"))
    yield from _of_precision(row, model)
    found = row.words("attention")
    if not found.is_stated or found.is_guessed:
        yield Assumption(f"attention not stated: {model.attention}", "attention", ("flash", "unfused"))
    elif model.attention == "flash":
        yield from _of_kernel(found.facts.get("kernel"), system)
    yield from _of_compilation(row, framework)


def _of_compilation(row: Row, framework: Framework) -> Iterator[Assumption]:
    """Yield whether `torch.compile` was on, where that is not said, or has no price."""
    compiled = row.words("framework").facts.get("compiled")
    if compiled is None and framework.name == "torchtitan":
        said = row.text("framework")
        yield Assumption("torch.compile not stated: on", "framework", (f"{said} eager",))
    elif compiled and framework.name != "torchtitan":
        yield Assumption(f"torch.compile: priced as {framework.name} without it", is_open=True)


def _of_device(row: Row, system: SystemConfig) -> Iterator[Assumption]:
    """Yield in what a device is another one than that of its config's data sheet."""
    facts, size = row.words("gpu").facts, row.number("gpu_mem_gb")
    power = system.sheet.power
    if power is not None and facts.get("power_w", power.tdp_W) < power.tdp_W:
        yield Assumption(f"gpu of {facts['power_w']:.0f} W: its clock by the cube root of its power", is_open=True)
    if power is not None and facts.get("power_w", 0) > power.tdp_W:
        yield Assumption(f"gpu of {facts['power_w']:.0f} W: as {system.name} at {power.tdp_W:.0f} W", is_open=True)
    if system.kernels is None:
        text = f"kernels of {system.name}: estimated from its data sheet, which may miss a step by a quarter"
        yield Assumption(text, is_open=True)
    others = {name: memory for name, memory, _ in facts.get("others", ())}
    usual = others.get(system.name, facts.get("usual_memory"))
    if facts.get("memory", usual) != usual:
        yield Assumption(f"gpu with {facts['memory']}: priced with the memory of {system.name}", is_open=True)
    size, here = size or facts.get("memory_gb"), system.mem1.GiB
    if size is not None and not is_about(size, here):
        yield Assumption(f"gpu of {size:g} GB: priced as {system.name}, which has {here:g}", is_open=True)


def _of_links(row: Row, system: SystemConfig) -> Iterator[Assumption]:
    """Yield in what the links of a node are others than those of its config."""
    if "closes" in row.words("gpu").facts:
        return
    facts, inner = row.words("intra_node").facts, min(system.networks, key=lambda tier: tier.size)
    usual = row.words("gpu").facts.get("usual_nvlink")
    rate, peak = facts.get("link_gbyte"), inner.bandwidth
    others = {
        f"NVLink {facts.get('nvlink_generation', 0):.0f}": facts.get("nvlink_generation", usual) != usual,
        f"links of {rate} GB/s": rate is not None and not (is_about(rate, peak) or is_about(rate, 2 * peak)),
        f"a domain of {facts.get('domain', 0):.0f}": facts.get("domain", inner.size) != inner.size,
    }
    for text in (text for text, is_other in others.items() if is_other):
        yield Assumption(f"intra_node has {text}: priced as {system.name}, nodes of {inner.size}", is_open=True)


def _of_precision(row: Row, model: Transformer) -> Iterator[Assumption]:
    facts = row.words("precision").facts
    said = row.text("precision") if facts else model.precision.name
    if not facts:
        yield Assumption(f"precision not stated: {said}", "precision", ("bf16", "fp32", "fp8"))
    if model.precision.name != "fp32" and "gradient_bytes" not in {**row.words("overlap").facts, **facts}:
        bits = 8 * model.precision.gradient_bytes
        others = (f"{said}, fp32 grads", f"{said}, bf16 grads")
        yield Assumption(f"precision of gradients not stated: {bits} bits", "precision", others)


def _of_kernel(kernel: str | None, system: SystemConfig) -> Iterator[Assumption]:
    """Yield the generation of attention's kernel, where none is named or the device has no figures of it."""
    rates = rates_of(system)
    known, usual = tuple(rates.attention), rates.usual_attention
    if kernel is None and len(known) > 1:
        yield Assumption(f"attention's kernel not stated: {usual}", "attention", known)
    elif kernel is not None and kernel not in known:
        yield Assumption(f"attention by {kernel}: {system.name} has no figures of it, those of {usual}", is_open=True)


def _of_communication(row: Row, framework: Framework, layout: Layout, system: SystemConfig) -> Iterator[Assumption]:
    node = min(tier.size for tier in system.networks)
    is_torus = "closes" in row.words("gpu").facts
    if is_torus:
        yield Assumption(f"slices of {node} chips, each a torus of its own", is_open=True)
    elif _lacks(row, "gpus_per_node") and layout.world_size > 1:
        yield Assumption(f"gpus_per_node not stated: {node}", "gpus_per_node", ("4", "8", "16"))
    rates = {"nics", "node_gbps", "gpu_gbps"}
    if layout.world_size > node and not is_torus and not row.words("inter_node").facts.keys() & rates:
        yield Assumption(f"rate between nodes not stated: that of {system.name}", "inter_node", _RATES)
    if layout.zero == 1 and layout.shard_size < layout.dp:
        yield Assumption(f"states that {layout.shard_size} ranks share: as shared by all replicas", is_open=True)
    if layout.zero >= 2 and layout.pp * layout.ep > 1:
        yield Assumption(f"zero {layout.zero} beside stages or experts: what it exchanges is not hidden", is_open=True)
    said, facts = row.text("overlap"), row.words("overlap").facts
    if layout.num_replicas > 1 and layout.zero < 2 and "dp" not in facts:
        others = tuple(f"{said}, {words}".lstrip(", ") for words in ("no DP overlap", "DP overlap"))
        yield Assumption(f"overlap of replicas not stated: {framework.overlap}", "overlap", others)
    if layout.tp > 1 and layout.sequence_parallel and "tp" not in facts:
        others = tuple(f"{said}, {words}".lstrip(", ") for words in ("no TP overlap", "TP overlap"))
        yield Assumption(f"overlap of tensor parallelism not stated: as {framework.name}", "overlap", others)


_RATES = ("8x200Gb/s", "8x400Gb/s")


def _approximations(row: Row) -> Iterator[Assumption]:
    """Yield words that are priced as something near."""
    for name, column in columns().items():
        near = row.words(name).facts.get("near", ()) if column.kind == "words" else ()
        for text in near:
            yield Assumption(f"{name}: {text}", is_open=True)
