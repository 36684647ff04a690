"""Rows of a table of measurements, with errors for values that are missing.

A table is a CSV file in the common columns that `docs/accuracy.md` lists, or in those of one of the tables beside this
file. Nothing is guessed: a value that is missing, or that is no number, makes the row one that cannot be simulated,
with its reason.

The frameworks that were measured: their defaults, and the platform that stands for each.

A framework is found by words of the row's column `framework`. Its fields come from its documentation or source code,
never from a fit: the dropout it trains with by default, how it hides communication, and whether each of a stage's ranks
sends a part of an activation (Narayanan et al. 2021, section 4.1, "scatter/gather").

The transformer of a row: its sizes are the row's, its kind follows from the MLP and the framework.

A gated MLP ("swiglu", "geglu") means a model like Llama: RMSNorm, rotary positions, no biases. "relu2" means one like
Nemotron: LayerNorm, rotary positions, no biases. "gelu" means one like GPT: LayerNorm, learned positions, biases,
unless the row says "no bias".

The machine of a row: a shipped hardware config, with the interfaces between nodes that the row names.

How a row divides its model among ranks: degrees, microbatches, stages and what is sharded.

Runs that divide each sequence among ranks, beside tensor and pipeline parallelism (`cp` of a row).

No shipped strategy divides the sequence beside stages. In time such a run is one of more replicas: each rank of a
sequence takes its share of the tokens through the network, and gradients are summed over replicas and shares together,
as Megatron-Core does. So a share is simulated as a sample of its own, shorter in tokens, whose attention has the
keys of the whole sequence and an equal part of the pairs that the causal mask leaves ("zigzag" shares).

Left out: the exchange of keys and values. It runs beside attention (Transformer Engine sends a block while it computes
on another), and takes less time than that where a sequence's ranks are of one node and keys have few heads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import UsageError
from minitrain.files import read_cells
from minitrain.machine import load_config
from minitrain.workloads.architecture import PRECISIONS, Precision
from minitrain.workloads.degrees import Work
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.transformer_workload import TransformerWorkload, find_workload
from minitrain.workloads.workload import PassMode, Workload

if TYPE_CHECKING:
    from minitrain.machine.config import SystemConfig
    from minitrain.machine.network import Network, Rows, TransferCurve


_LEADING_NUMBER = re.compile(r"\s*([-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?)")


@final
class LackingError(Exception):
    """A row lacks what the model needs; its text says what."""


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One measurement as its table has it.

    Args:
        table: what the table is called.
        values: text by column.
        line: its line in the file, from 2.
    """

    table: str
    values: Mapping[str, str]
    line: int

    @property
    def row_id(self) -> str:
        """What the row is called: its own id, or its place in the file."""
        return self.text("row_id") or self.text("case") or f"{self.table}-{self.line}"

    def text(self, column: str) -> str:
        """Return a value, or "" where the table has none."""
        return (self.values.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """Return the number that a value begins with, or None."""
        found = _LEADING_NUMBER.match(self.text(column))
        return float(found.group(1)) if found else None

    def count(self, column: str, default: int | None = None) -> int:
        """Return a number of things, at least 1.

        Raises:
            LackingError: there is none, and no default.
        """
        value = self.number(column)
        if value is None and default is not None:
            return default
        if value is None or value < 1 or value != int(value):
            raise LackingError(f"{column} is {self.text(column)!r}, where a whole number of at least 1 is needed")
        return int(value)

    def positive(self, column: str) -> float:
        """Return a number above 0.

        Raises:
            LackingError: there is none.
        """
        value = self.number(column)
        if value is None or not value > 0:
            raise LackingError(f"{column} is {self.text(column)!r}, where a number above 0 is needed")
        return value


def read_rows(path: str | os.PathLike[str], table: str | None = None) -> list[Row]:
    """Return the rows of a CSV file.

    Args:
        path: the file; its first line names the columns.
        table: what the table is called; the file's name without ".csv" if None.

    Raises:
        UsageError: the file cannot be read as such a table.
    """
    file = Path(path)
    try:
        found = read_cells(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the table {file}: {error}; give a CSV file in UTF-8") from error
    return [Row(table or file.stem, values, line) for line, values in found]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework.

    Args:
        name: what pages call it.
        words: what the column `framework` contains, as a regular expression; case does not matter.
        platforms: the platform by a word of the device ("a100"), as a regular expression; the first that fits is taken.
        dropout: what models with biases are trained with by default.
        attention: "flash" or "unfused", where the row does not say.
        overlap: whether communication between replicas is hidden behind compute: "always", "never", or "one stage"
            where only a model that is not cut into stages does that (PyTorch's DistributedDataParallel).
        gradient_bytes: bytes of an element of a gradient, kept and summed, where the row does not say.
        recompute: what backward computes again where the row does not say; None where that is not known.
        balances: whether stages are cut by the parameters of layers and head, as nanotron does.
        batches_messages: whether a stage sends and receives at once (`batch_isend_irecv` of Megatron-LM's schedules).
        parts_overlap: how the collectives of tensor parallelism are hidden where the row does not say: "" as its
            platform has it, or a way of `minitrain.machine.platforms.EXPOSED`.
        gradient_accesses: how often a step of replicas reads or writes an element of a rank's whole gradients, beside
            what the optimizer does with its shards. Megatron-LM divides its buffer of gradients by the number of
            replicas before it is summed (two accesses: `allreduce_gradients` of `model/distributed.py` in 2021).
            Megatron-Core 0.8 also takes its norm, to find what is no number, and sets it to zero (four together:
            `Bucket.start_grad_sync` and `zero_grad_buffer` of `core/distributed`).
    """

    name: str
    words: str
    platforms: tuple[tuple[str, str], ...] = ()
    dropout: float = 0.0
    attention: str = "flash"
    overlap: str = "never"
    gradient_bytes: int = 4
    recompute: str | None = "none"
    balances: bool = False
    batches_messages: bool = False
    parts_overlap: str = ""
    gradient_accesses: float = 0.0

    def platform_of(self, row: Row) -> str | None:
        """Return the name of the platform for a row's device; None for prices of components alone."""
        device = row.text("gpu").lower()
        return next((name for pattern, name in self.platforms if re.search(pattern, device)), None)


_OLD_MEGATRON = Framework(
    name="Megatron-LM of 2020 and 2021",
    words=r"megatron-lm (2020|\(sc21\))|megatron-lm.*(2019|2020|2021)",
    platforms=((r".", "megatron-2021"),),
    dropout=0.1,
    attention="unfused",
    overlap="one stage",
    batches_messages=True,
    gradient_accesses=2,
)
_MEGATRON_DEEPSPEED = Framework(
    name="Megatron-DeepSpeed",
    words=r"megatron-deepspeed",
    platforms=((r".", "megatron-2021"),),
    dropout=0.1,
    attention="unfused",
    gradient_bytes=2,
)
_NEMO = Framework(
    name="NeMo",
    words=r"nemo|megatron-bridge",
    platforms=((r"h100|h200|b200", "nemo-h100"),),
    dropout=0.1,
    overlap="always",
    batches_messages=True,
)

FRAMEWORKS = (
    _OLD_MEGATRON,
    replace(
        _MEGATRON_DEEPSPEED,
        name="Megatron-DeepSpeed of BLOOM",
        words=r"megatron-deepspeed.*bloom",
        platforms=((r"a100", "bloom"),),
    ),
    _MEGATRON_DEEPSPEED,
    replace(_NEMO, name="NeMo Megatron of 2023", words=r"nemo megatron 2[23]", platforms=(), attention="unfused"),
    _NEMO,
    Framework(name="JAX", words=r"jax|maxtext|pax", overlap="always", recompute=None),
    replace(
        _NEMO,
        name="Megatron-Core",
        words=r"megatron-core|megatron-lm|megatron",
        parts_overlap="gradients",
        gradient_accesses=4,
    ),
    Framework(
        name="MosaicML Composer",
        words=r"llm-foundry|composer|mosaic",
        platforms=((r"h100|h200|b200", "eager-h100"), (r".", "eager-a100")),
        overlap="always",
    ),
    Framework(name="nanotron", words=r"nanotron", platforms=((r".", "nanotron"),), balances=True),
    Framework(
        name="InternEvo",
        words=r"internevo|internlm",
        platforms=((r".", "internevo"),),
        overlap="always",
        gradient_bytes=2,
    ),
    Framework(
        name="torchtitan without torch.compile",
        words=r"torchtitan.*eager",
        platforms=((r"h100|h200|b200", "eager-h100"), (r".", "eager-a100")),
        overlap="always",
    ),
    Framework(
        name="torchtitan",
        words=r"torchtitan",
        platforms=((r"h100|h200|b200", "torchtitan-h100"), (r".", "eager-a100")),
        overlap="always",
    ),
    Framework(
        name="PyTorch FSDP",
        words=r"fsdp|pytorch|huggingface|transformers|accelerate",
        platforms=((r"h100|h200|b200", "eager-h100"), (r".", "eager-a100")),
        overlap="always",
    ),
    Framework(name="DeepSpeed", words=r"deepspeed|zero", dropout=0.1, overlap="always"),
)
"""The frameworks, the more special ones first."""

UNKNOWN = Framework(name="unknown", words=r"", overlap="always")
"""For a row that names none of them: components alone."""


def framework_of(row: Row) -> Framework:
    """Return the framework that a row names, or `UNKNOWN`."""
    text = row.text("framework").lower()
    return next((each for each in FRAMEWORKS if re.search(each.words, text)), UNKNOWN)


_VOCABULARY_MULTIPLE = 128  # Megatron-LM pads to a multiple of this times tp; others have vocabularies that divide


def model_of(row: Row, framework: Framework, tp: int = 1) -> Transformer:
    """Return what a row trains.

    Args:
        row: the row.
        framework: what trained it.
        tp: parts of a layer, whose multiple the vocabulary is padded to.

    Raises:
        LackingError: a size is missing, or sizes contradict one another.
    """
    fields = {**_sizes(row, tp), **_kind(row.text("mlp").lower()), **_experts(row)}
    tied = row.text("tied_emb").lower()
    if tied:
        fields["tied_embeddings"] = tied in ("true", "1", "yes")
    fields["attention"] = _attention(row, framework)
    fields["dropout"] = framework.dropout if fields["mlp"] == "gelu" and fields.get("bias", True) else 0.0
    try:
        return Transformer(name=row.text("model") or "custom", precision=_precision(row, framework), **fields)
    except UsageError as error:
        raise LackingError(f"its sizes are no transformer's: {error}") from error


def _sizes(row: Row, tp: int) -> dict[str, Any]:
    """Return the sizes of a row."""
    heads = row.count("n_heads")
    multiple = _VOCABULARY_MULTIPLE * tp
    sizes: dict[str, Any] = {
        "num_layers": row.count("n_layers"),
        "hidden_size": row.count("hidden"),
        "num_heads": heads,
        "num_kv_heads": row.count("n_kv_heads", heads),
        "vocab_size": -(-row.count("vocab") // multiple) * multiple,
        "seq_len": row.count("seq_len"),
    }
    for column, field in (("ffn", "ffn_hidden_size"), ("head_dim", "head_dim")):
        if row.text(column):
            sizes[field] = row.count(column)
    return sizes


def _kind(mlp: str) -> dict[str, Any]:
    """Return what kind of model has an MLP of that name.

    Raises:
        LackingError: there is no such MLP.
    """
    if re.search("swiglu|geglu|silu", mlp):
        return {"mlp": "swiglu", "norm": "rmsnorm"}
    if "relu" in mlp:
        return {"mlp": "relu", "norm": "layernorm", "positions": "rotary", "bias": False}
    if "gelu" in mlp:
        return {"mlp": "gelu", "norm": "layernorm", "bias": "no bias" not in mlp}
    raise LackingError(f"mlp is {mlp!r}, where one of gelu, relu, relu2, swiglu and geglu is needed")


def _experts(row: Row) -> dict[str, Any]:
    """Return the experts of a row; nothing for a dense model."""
    if row.number("n_experts") in (None, 0, 1):
        return {}
    return {
        "num_experts": row.count("n_experts"),
        "experts_per_token": row.count("top_k"),
        "moe_ffn_hidden_size": row.count("moe_ffn"),
    }


def _attention(row: Row, framework: Framework) -> str:
    """Return "flash" or "unfused"."""
    text = row.text("attention").lower()
    if "not stated" in text or not text:
        return framework.attention
    return "unfused" if "unfused" in text else "flash"


def _precision(row: Row, framework: Framework) -> Precision:
    """Return the precision that a row trains in; fp8 concerns multiplications with weights alone."""
    text = row.text("precision").lower()
    if "fp32" in text.split(",")[0].split(" with ")[0] or "single" in text:
        return PRECISIONS["fp32"]
    precision = PRECISIONS["fp16" if text.startswith("fp16") else "bf16"]
    precision = replace(precision, gradient_bytes=_gradient_bytes(text + " " + row.text("overlap").lower(), framework))
    return replace(precision, weight_datatype="float8") if "fp8" in text else precision


def _gradient_bytes(text: str, framework: Framework) -> int:
    """Return the bytes of an element of a gradient, as a row says it or as the framework does by default."""
    if "fp32 grad" in text:
        return 4
    return 2 if "bf16 grad" in text or "mp=pure" in text else framework.gradient_bytes


# What a device is called in tables, and its config; the first that is found in the text is taken. A800 and H800 are the
# same devices with fewer links among them.
_CONFIGS = (
    (r"gb200", "gb200_nvl72"),
    (r"gh200|gh-96", "gh200_96g_nvl4"),
    (r"b200", "b200_192g_nvl8"),
    (r"h200", "h200_141g_nvl8"),
    (r"h[18]00", "h100_80g_nvl8"),
    (r"a100.*40|a100_40g", "a100_40g"),
    (r"a[18]00", "a100_80g"),
    (r"v100", "v100_32g_nvl8"),
    (r"titan-rtx", "titan_rtx"),
    (r"rtx-2080", "rtx_2080ti"),
    (r"rtx-3090", "rtx_3090"),
)
_LINKS = re.compile(r"(\d+)\s*x\s*(\d+)\s*G", re.IGNORECASE)  # 8x200Gb/s
_HDR = re.compile(r"(\d+)\s*x\s*HDR200", re.IGNORECASE)
_PER_NODE = re.compile(r"(\d+)\s*Gb/s per node", re.IGNORECASE)
_OMNI_PATH = re.compile(r"(\d+)\s*x?\s*Omni-Path", re.IGNORECASE)
_OMNI_PATH_GBPS = 100
_EXPORT_GBPS = 200.0


def device_of(row: Row) -> str:
    """Return the name of the shipped config that a row's device has.

    Raises:
        LackingError: there is none.
    """
    text = row.text("gpu").lower()
    memory = row.number("gpu_mem_gb")
    for pattern, name in _CONFIGS:
        if re.search(pattern, text):
            return "a100_40g" if name == "a100_80g" and memory == 40 else name
    raise LackingError(f"gpu is {row.text('gpu')!r}, for which there is no hardware config")


def machine_of(row: Row) -> SystemConfig:
    """Return the config of a row's machine: nodes as large as it says, joined by the interfaces that it names.

    Raises:
        LackingError: there is no config for its device, or the config has no prices of kernels.
    """
    name = device_of(row)
    if load_config(name).kernels is None:
        raise LackingError(f"config {name} says nothing of kernels, so that none can be priced")
    is_switched = "nvswitch" in row.text("intra_node").lower()
    node_size = row.count("gpus_per_node", load_config(name).networks[0].size)
    if "a800" in row.text("gpu").lower() or "h800" in row.text("gpu").lower():
        return _with_fewer_links(_machine(name, node_size, _interfaces(row), is_switched=is_switched))
    return _machine(name, node_size, _interfaces(row), is_switched=is_switched)


@lru_cache(maxsize=8)
def _with_fewer_links(system: SystemConfig) -> SystemConfig:
    """Return a system whose devices have eight links of 25 GB/s into their node, one way."""
    inner, *outer = system.networks
    share = _EXPORT_GBPS / inner.bandwidth
    curves = {op: replace(curve, bandwidths=_scaled(curve.bandwidths, share)) for op, curve in inner.curves.items()}
    return replace(system, networks=(replace(inner, bandwidth=_EXPORT_GBPS, curves=curves), *outer))


def _scaled(rows: Rows | None, share: float) -> Rows | None:
    """Return bandwidths times a share."""
    return None if rows is None else tuple((bound, value * share) for bound, value in rows)


def _interfaces(row: Row) -> tuple[int, float] | None:
    """Return how many network interfaces a node has and the GB/s of each; None where the row does not say."""
    text = row.text("inter_node")
    if "not stated" in text.lower() and not _LINKS.search(text):
        return None
    found = _LINKS.search(text)
    if found:
        return int(found.group(1)), float(found.group(2)) / 8
    found = _HDR.search(text)
    if found:
        return int(found.group(1)), 25.0
    found = _OMNI_PATH.search(text)
    if found:
        return int(found.group(1)), _OMNI_PATH_GBPS / 8
    found = _PER_NODE.search(text)
    return (8, float(found.group(1)) / 64) if found else None


@lru_cache(maxsize=64)
def _machine(name: str, node_size: int, interfaces: tuple[int, float] | None, *, is_switched: bool) -> SystemConfig:
    """Return a config with other nodes and interfaces."""
    system = load_config(name)
    inner, *outer = sorted(system.networks, key=lambda tier: tier.size)
    within = _switched(inner) if is_switched else inner
    if node_size > inner.size:
        within = replace(within, size=node_size)
    tiers = [within, *(_with_interfaces(tier, inner.size, interfaces) for tier in outer)]
    return replace(system, networks=tuple(tiers))


def _switched(tier: Network) -> Network:
    """Return a tier in which any ranks reach what all of them reach: a switch has no rings that need certain ranks."""
    return replace(tier, curves={op: _of_all_ranks(curve) for op, curve in tier.curves.items()})


def _of_all_ranks(curve: TransferCurve) -> TransferCurve:
    """Return a curve whose bandwidth does not drop by half or more with the number of ranks."""
    bandwidths = curve.bandwidths
    if not bandwidths or min(value for _, value in bandwidths) > max(value for _, value in bandwidths) / 2:
        return curve
    return replace(curve, bandwidths=((0.0, max(value for _, value in bandwidths)),))


def _with_interfaces(tier: Network, node_size: int, interfaces: tuple[int, float] | None) -> Network:
    """Return the tier between nodes with another number of interfaces."""
    if interfaces is None:
        return tier
    num_nics, nic_GBps = interfaces  # noqa: N806 - a unit
    return replace(tier, bandwidth=num_nics * nic_GBps / node_size, nics=num_nics)


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a row.

    Args:
        world_size: ranks.
        tp: parts of a layer.
        sequence_parallel: whether the sequence is divided between layers' parts.
        pp: ranks of a pipeline.
        num_chunks: stages a rank.
        cp: parts of the sequence.
        ep: parts of the experts.
        dp: replicas.
        zero: what replicas shard: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too.
        shard_size: ranks that share shards; dp where all do.
        microbatch_size: samples a microbatch.
        num_microbatches: microbatches a replica and step.
        recompute: "none", "selective" or "full".
        assumed: what the row does not say, and was taken as the framework's default.
    """

    world_size: int
    tp: int
    sequence_parallel: bool
    pp: int
    num_chunks: int
    cp: int
    ep: int
    dp: int
    zero: int
    shard_size: int
    microbatch_size: int
    num_microbatches: int
    recompute: str
    assumed: tuple[str, ...] = ()

    @property
    def num_replicas(self) -> int:
        """Return the ranks that hold the same weights: they sum gradients over samples, and over shares of these."""
        return self.dp * self.cp

    @property
    def global_batch_size(self) -> int:
        """Return the samples of a step."""
        return self.dp * self.microbatch_size * self.num_microbatches


def layout_of(row: Row, framework: Framework) -> Layout:
    """Return the layout of a row.

    Raises:
        LackingError: degrees or sizes are missing, or do not fit one another.
    """
    world_size, tp, pp, cp = (row.count(name, default) for name, default in _DEGREES)
    dp = row.count("dp", max(1, world_size // (tp * pp * cp)))
    if tp * pp * cp * dp != world_size:
        raise LackingError(f"tp {tp} x pp {pp} x cp {cp} x dp {dp} is not n_gpus {world_size}")
    assumed = [row.text("assumed")] if row.text("assumed") else []
    mbs, num_microbatches = _microbatches(row, dp)
    zero = _zero(row)
    return Layout(
        world_size=world_size,
        tp=tp,
        sequence_parallel=_sequence_parallel(row, tp, assumed),
        pp=pp,
        num_chunks=_chunks(row, pp, assumed),
        cp=cp,
        ep=row.count("ep", 1),
        dp=dp,
        zero=zero,
        shard_size=_shard_size(row, dp) if zero else 1,
        microbatch_size=mbs,
        num_microbatches=num_microbatches,
        recompute=_recompute(row, framework, assumed),
        assumed=tuple(assumed),
    )


_DEGREES = (("n_gpus", None), ("tp", 1), ("pp", 1), ("cp", 1))


def _microbatches(row: Row, dp: int) -> tuple[int, int]:
    """Return the samples of a microbatch, and how many microbatches a replica has."""
    size, num = row.number("mbs"), row.number("n_micro")
    batch = row.number("gbs")
    if size is None:
        raise LackingError(f"mbs is {row.text('mbs')!r}: without the samples of a microbatch nothing can be priced")
    if num is None:
        if batch is None or batch % (size * dp):
            raise LackingError(f"gbs {row.text('gbs')!r} is no multiple of mbs x dp, so that microbatches are unknown")
        num = batch / (size * dp)
    if size < 1 or num < 1:
        raise LackingError("mbs and n_micro must be at least 1")
    return int(size), int(num)


def _sequence_parallel(row: Row, tp: int, assumed: list[str]) -> bool:
    """Return whether sequence parallelism is on; off where the row does not say."""
    text = row.text("sp").lower()
    if text or tp == 1:
        return tp > 1 and text in ("1", "true", "yes")
    needs_it = "tp-comm-overlap" in row.text("overlap").lower()  # Megatron-LM accepts that with it alone
    assumed.append(f"sp not stated: {'on, as tp-comm-overlap needs it' if needs_it else 'off'}")
    return needs_it


def _chunks(row: Row, pp: int, assumed: list[str]) -> int:
    """Return the stages of a rank; one where the row does not say, as is the default of frameworks."""
    value = row.number("vpp")
    if value is None and pp > 1:
        assumed.append("vpp not stated: 1")
    return 1 if value is None or pp == 1 else max(1, int(value))


def _zero(row: Row) -> int:
    """Return the stage of ZeRO; fully sharded is stage 3."""
    text = row.text("zero").lower()
    if "fsdp" in text:
        return 3
    value = row.number("zero")
    return 0 if value is None else min(3, int(value))


def _shard_size(row: Row, dp: int) -> int:
    """Return how many ranks share shards."""
    text = row.text("zero")
    found = re.search(r"within (?:an? )?(\d+)|FSDP=(\d+)", text)
    size = int(found.group(1) or found.group(2)) if found else dp
    return size if 0 < size <= dp and dp % size == 0 else dp


def _recompute(row: Row, framework: Framework, assumed: list[str]) -> str:
    """Return what backward computes again; where the row does not say, what the framework does by default."""
    text = row.text("recompute").lower()
    for name in ("full", "selective", "none"):
        if text.startswith(name):
            return name
    if ("not stated" in text or not text) and framework.recompute:
        assumed.append(f"recompute not stated: {framework.recompute}")
        return framework.recompute
    raise LackingError(f"recompute is {text!r}, where none, selective or full is needed")


def stage_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return how many transformer layers each stage has.

    Equal shares where they divide. Where they divide with the embedding, with the head, or with both counted as a
    layer, the first or last stage has one less; otherwise earlier stages have one more.

    Example:
        >>> stage_layers(96, 4), stage_layers(126, 8), stage_layers(7, 2)
        ((24, 24, 24, 24), (15, 16, 16, 16, 16, 16, 16, 15), (4, 3))
    """
    if num_layers % num_stages and not (num_layers + 2) % num_stages and num_stages > 1:
        each = (num_layers + 2) // num_stages
        if num_stages == 2:
            return (each - 1, each - 1)
        return (each - 1, *[each] * (num_stages - 2), each - 1)
    each, rest = divmod(num_layers, num_stages)
    return tuple(each + (stage < rest) for stage in range(num_stages))


def balanced_layers(costs: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Return how many transformer layers each stage has, if stages are cut where sums of costs pass equal shares.

    Args:
        costs: of each layer, and last of the head, which counts as no layer.
        num_stages: how many stages.

    Source: `build_and_set_rank` of github.com/huggingface/nanotron (`models/__init__.py` of December 2024).

    Example:
        >>> balanced_layers([1.0] * 8 + [4.0], 4)
        (3, 3, 2, 0)
    """
    shares = [sum(costs) * (stage + 1) / num_stages for stage in range(num_stages)]
    counts, stage, total = [0] * num_stages, 0, 0.0
    for cost in costs[:-1]:
        total += cost
        while stage < num_stages - 1 and total > shares[stage] * (1 + 1e-12):
            stage += 1
        counts[stage] += 1
    return tuple(counts)


def unit_stages(layers: Sequence[int]) -> list[int]:
    """Return how many of the engine's layers each stage has: two a transformer layer, embedding and head one each."""
    units = [2 * count for count in layers]
    units[0] += 1
    units[-1] += 1
    return units


@final
class SequenceShares(TransformerWorkload):
    """A transformer whose samples are equal shares of sequences.

    Args:
        model: the transformer.
        cp: ranks that share a sequence.

    Raises:
        UsageError: the sequence does not divide.
    """

    def __init__(self, model: Transformer, cp: int) -> None:
        super().__init__(model)
        self.cp = cp
        self._output_bytes = [size_bytes // cp for size_bytes in self._output_bytes]

    def _work(self, num_samples: int, mode: PassMode) -> Work:
        work = super()._work(num_samples, mode)
        return replace(work, degrees=replace(work.degrees, cp=self.cp))


@lru_cache(maxsize=16)
def workload_of(model: Transformer, cp: int) -> Workload:
    """Return what a rank trains, if some ranks share each sequence; the same object for equal arguments."""
    return find_workload(model) if cp == 1 else SequenceShares(model, cp)
