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
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

from minitrain.errors import UsageError
from minitrain.evidence.columns import (
    Assumption,
    Reading,
    ReadingError,
    columns,
    is_about,
    read_number,
    read_words,
    unknown_columns,
)
from minitrain.files import read_cells
from minitrain.machine import load_config
from minitrain.workloads.architecture import PRECISIONS, Precision
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.workload import as_recompute

if TYPE_CHECKING:
    from minitrain.machine.config import SystemConfig
    from minitrain.machine.network import Network, Rows, TransferCurve

_Read = TypeVar("_Read")


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

    def words(self, column: str) -> Reading:
        """Return what a column of words says.

        Raises:
            LackingError: a word is not known, has no price, or contradicts another one.
        """
        return self._read(lambda: read_words(column, self.text(column)))

    def number(self, column: str) -> float | None:
        """Return the number of a column, or None where it says nothing.

        Raises:
            LackingError: something else stands there.
        """
        return self._read(lambda: read_number(column, self.text(column))[0])

    def _read(self, read: Callable[[], _Read]) -> _Read:
        try:
            return read()
        except ReadingError as error:
            raise LackingError(f"line {self.line}: {error}") from error

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


def require_known(row: Row) -> tuple[str, ...]:
    """Read every cell of a row in the common columns, and return what was not read, in words.

    Raises:
        LackingError: a column or a word is not known; all of them at once.
    """
    faults, unread = unknown_columns(tuple(row.values))
    remarks = [f'column "{name:.40}" is not known: not read' for name in unread]
    for name in row.values:
        column = columns().get(name)
        try:
            if column is not None and column.kind == "words":
                remarks += read_words(name, row.text(name)).remarks
            elif column is not None and column.kind != "text" and row.text(name) != QUICKEST:
                remark = read_number(name, row.text(name))[1]
                remarks += [f"{name} has {remark!r:.60}: not read"] if remark else []
        except ReadingError as error:
            faults.append(str(error))
    if faults:
        raise LackingError(f"line {row.line}: {'; '.join(faults)}")
    return tuple(remarks)


QUICKEST = "quickest"
"""In the column mbs: nobody published the microbatch."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework.

    Args:
        name: what pages call it.
        words: the names that its row has all of, of those that `columns.json` gives to words of the column
            `framework`; several such sets are joined by "|".
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

    def is_named(self, names: Set[str]) -> bool:
        """Return whether names of a row are this framework's."""
        return any(names >= set(needed.split()) for needed in self.words.split("|"))

    def platform_of(self, row: Row) -> str | None:
        """Return the name of the platform for a row's device; None for prices of components alone."""
        device = row.text("gpu").lower()
        return next((name for pattern, name in self.platforms if re.search(pattern, device)), None)


_OLD_MEGATRON = Framework(
    name="Megatron-LM of 2020 and 2021",
    words="megatron-lm 2021",
    platforms=((r".", "megatron-2021"),),
    dropout=0.1,
    attention="unfused",
    overlap="one stage",
    batches_messages=True,
    gradient_accesses=2,
)
_MEGATRON_DEEPSPEED = Framework(
    name="Megatron-DeepSpeed",
    words="megatron-deepspeed",
    platforms=((r".", "megatron-2021"),),
    dropout=0.1,
    attention="unfused",
    gradient_bytes=2,
)
_NEMO = Framework(
    name="NeMo",
    words="nemo",
    platforms=((r"h100|h200|b200", "nemo-h100"),),
    dropout=0.1,
    overlap="always",
    batches_messages=True,
)

_MEGATRON_CORE = replace(
    _NEMO, name="Megatron-Core", words="megatron-core|megatron-lm", parts_overlap="gradients", gradient_accesses=4
)

FRAMEWORKS = (
    replace(
        _MEGATRON_CORE,
        name="Megatron-LM of zero-bubble pipelines",
        words="zero-bubble",
        platforms=((r"a100", "zero-bubble"), *_NEMO.platforms),
    ),
    _OLD_MEGATRON,
    replace(
        _MEGATRON_DEEPSPEED,
        name="Megatron-DeepSpeed of BLOOM",
        words="megatron-deepspeed bloom",
        platforms=((r"a100", "bloom"),),
    ),
    _MEGATRON_DEEPSPEED,
    replace(_NEMO, name="NeMo Megatron of 2023", words="nemo-2023", platforms=(), attention="unfused"),
    _NEMO,
    Framework(name="JAX", words="jax", overlap="always", recompute=None),
    _MEGATRON_CORE,
    Framework(
        name="MosaicML Composer",
        words="composer",
        platforms=((r"h100|h200|b200", "eager-h100"), (r".", "eager-a100")),
        overlap="always",
    ),
    Framework(name="nanotron", words="nanotron", platforms=((r".", "nanotron"),), balances=True),
    Framework(
        name="InternEvo",
        words="internevo",
        platforms=((r".", "internevo"),),
        overlap="always",
        gradient_bytes=2,
    ),
    Framework(
        name="torchtitan without torch.compile",
        words="torchtitan eager",
        platforms=((r"h100|h200|b200", "eager-h100"), (r".", "eager-a100")),
        overlap="always",
    ),
    Framework(
        name="torchtitan",
        words="torchtitan",
        platforms=((r"h100|h200|b200", "torchtitan-h100"), (r".", "eager-a100")),
        overlap="always",
    ),
    Framework(
        name="PyTorch FSDP",
        words="fsdp",
        platforms=((r"h100|h200|b200", "eager-h100"), (r".", "eager-a100")),
        overlap="always",
    ),
    Framework(name="DeepSpeed", words="deepspeed", dropout=0.1, overlap="always"),
)
"""The frameworks, the more special ones first."""

UNKNOWN = Framework(name="unknown", words="own", overlap="always")
"""For a row that names none of them, or one of its own: components alone."""


def framework_of(row: Row) -> Framework:
    """Return the framework that a row names, or `UNKNOWN` where it names none.

    Raises:
        LackingError: it is none that is known.
    """
    names = set(row.words("framework").facts.get("is", ()))
    found = next((each for each in (*FRAMEWORKS, UNKNOWN) if each.is_named(names)), None)
    if found is None and not row.words("framework").is_empty:
        known = ", ".join(dict.fromkeys(each.name for each in FRAMEWORKS))
        raise LackingError(
            f"line {row.line}: framework is {row.text('framework')!r:.60}, which names none of {known}; name one, or "
            'write "own" for components alone'
        )
    return found or UNKNOWN


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
    fields = {**_sizes(row, tp), **_kind(row), **_experts(row)}
    if "tied" in row.words("tied_emb").facts:
        fields["tied_embeddings"] = row.words("tied_emb").facts["tied"]
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


def _kind(row: Row) -> dict[str, Any]:
    """Return what kind of model has the MLP of a row.

    Raises:
        LackingError: there is no such MLP.
    """
    facts = row.words("mlp").facts
    if "mlp" not in facts:
        raise LackingError(f"mlp is {row.text('mlp')!r}, where one of gelu, relu, relu2, swiglu and geglu is needed")
    kinds: dict[str, dict[str, Any]] = {
        "gated": {"mlp": "swiglu", "norm": "rmsnorm"},
        "relu": {"mlp": "relu", "norm": "layernorm", "positions": "rotary", "bias": False},
        "gelu": {"mlp": "gelu", "norm": "layernorm", "bias": True},
    }
    return kinds[facts["mlp"]] | {name: facts[name] for name in ("bias", "positions") if name in facts}


def _experts(row: Row) -> dict[str, Any]:
    """Return the experts of a row; nothing for a dense model."""
    if row.number("n_experts") in (None, 0, 1):
        says = [name for name in ("top_k", "moe_ffn") if (row.number(name) or 0) > 1]
        says += ["mlp"] * bool(row.words("mlp").facts.get("experts"))
        if says:
            raise LackingError(f"{says[0]} is {row.text(says[0])!r}, which has experts, but n_experts says none")
        return {}
    return {
        "num_experts": row.count("n_experts"),
        "experts_per_token": row.count("top_k"),
        "moe_ffn_hidden_size": row.count("moe_ffn"),
    }


def _attention(row: Row, framework: Framework) -> str:
    """Return "flash" or "unfused"."""
    return str(row.words("attention").facts.get("attention", framework.attention))


def _precision(row: Row, framework: Framework) -> Precision:
    """Return the precision that a row trains in; fp8 concerns multiplications with weights alone.

    Raises:
        LackingError: it names gradients alone.
    """
    facts = row.words("precision").facts
    if facts and not facts.keys() & {"datatype", "weights"}:
        raise LackingError(f"precision is {row.text('precision')!r}, where one of bf16, fp16, fp32 and fp8 is needed")
    if facts.get("datatype") == "fp32":
        if "weights" in facts:
            raise LackingError(f"precision is {row.text('precision')!r}: FP8 beside single precision has no price here")
        return PRECISIONS["fp32"]
    gradient_bytes = facts.get(
        "gradient_bytes", row.words("overlap").facts.get("gradient_bytes", framework.gradient_bytes)
    )
    precision = replace(PRECISIONS[facts.get("datatype", "bf16")], gradient_bytes=gradient_bytes)
    return replace(precision, weight_datatype=facts["weights"]) if "weights" in facts else precision


_EXPORT_GBPS = 200.0


def device_of(row: Row) -> str:
    """Return the name of the shipped config that a row's device has.

    Raises:
        LackingError: there is none, or its memory is said twice.
    """
    facts, size = row.words("gpu").facts, row.number("gpu_mem_gb")
    if "config" not in facts:
        raise LackingError(f"gpu is {row.text('gpu')!r}, for which there is no hardware config")
    if size is not None and not is_about(size, facts.get("memory_gb", size)):
        raise LackingError(f"gpu is {row.text('gpu')!r}, but gpu_mem_gb is {row.text('gpu_mem_gb')!r}; write one")
    name = str(facts["config"])
    return "a100_40g" if name == "a100_80g" and 40 in (size, facts.get("memory_gb")) else name


def machine_of(row: Row) -> SystemConfig:
    """Return the config of a row's machine: nodes as large as it says, joined by the interfaces that it names.

    Raises:
        LackingError: there is no config for its device, or the config has no prices of kernels.
    """
    name = device_of(row)
    if load_config(name).kernels is None:
        raise LackingError(f"config {name} says nothing of kernels, so that none can be priced")
    within = row.words("intra_node").facts
    if (within.get("pcie") and "pcie" not in name) or (within.get("nvlink") and "pcie" in name):
        raise LackingError(f"intra_node is {row.text('intra_node')!r}, but config {name} joins devices by other links")
    node_size = row.count("gpus_per_node", load_config(name).networks[0].size)
    system = _machine(name, node_size, _interfaces(row, node_size), is_switched="switched" in within)
    return _with_fewer_links(system) if row.words("gpu").facts.get("export") else system


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


def _interfaces(row: Row, node_size: int) -> tuple[int, float] | None:
    """Return how many network interfaces a node has and the GB/s of each; None where the row does not say."""
    facts = row.words("inter_node").facts
    if 0 in facts.values():
        raise LackingError(f"inter_node is {row.text('inter_node')!r}, where rates and interfaces must be above 0")
    if "nics" in facts:
        return int(facts["nics"]), facts["gbps"] / 8
    if "node_gbps" in facts:
        return 8, facts["node_gbps"] / 64
    return (node_size, facts["gpu_gbps"] / 8) if "gpu_gbps" in facts else None


@lru_cache(maxsize=64)
def _machine(name: str, node_size: int, interfaces: tuple[int, float] | None, *, is_switched: bool) -> SystemConfig:
    """Return a config with other nodes and interfaces."""
    system = load_config(name)
    inner, *outer = sorted(system.networks, key=lambda tier: tier.size)
    within = _switched(inner) if is_switched else inner
    within = replace(within, size=node_size)
    tiers = [within, *(_with_interfaces(tier, node_size, interfaces) for tier in outer)]
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
        schedule: the order of the pipeline, in the words of `megatron`.
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
    assumed: tuple[Assumption, ...] = ()
    schedule: str = "1f1b"

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
    assumed: list[Assumption] = []
    mbs, num_microbatches = _microbatches(row, dp)
    zero, shard_size = _sharding(row, dp, assumed)
    schedule, num_chunks = _schedule(row, pp, assumed)
    return Layout(
        world_size=world_size,
        tp=tp,
        sequence_parallel=_sequence_parallel(row, tp, assumed),
        pp=pp,
        num_chunks=num_chunks,
        schedule=schedule,
        cp=cp,
        ep=row.count("ep", 1),
        dp=dp,
        zero=zero,
        shard_size=shard_size if zero else 1,
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
    elif batch is not None and batch != size * dp * num:
        raise LackingError(
            f"gbs is {row.text('gbs')!r}, but mbs x n_micro x dp is {size:.0f} x {num:.0f} x {dp}; leave one out"
        )
    if size < 1 or num < 1:
        raise LackingError("mbs and n_micro must be at least 1")
    return int(size), int(num)


def _sequence_parallel(row: Row, tp: int, assumed: list[Assumption]) -> bool:
    """Return whether sequence parallelism is on; off where the row does not say."""
    stated = row.words("sp").facts.get("sp")
    if stated is not None or tp == 1:
        return tp > 1 and bool(stated)
    needs_it = bool(row.words("overlap").facts.get("tp"))  # Megatron-LM overlaps with it alone
    said = "on, as tp-comm-overlap needs it" if needs_it else "off"
    assumed.append(Assumption(f"sp not stated: {said}", "sp", ("on", "off")))
    return needs_it


V_SHAPED = ("zbv", "dualpipe_v")
"""Schedules in which each rank has two stages, down the ranks and back."""


def _schedule(row: Row, pp: int, assumed: list[Assumption]) -> tuple[str, int]:
    """Return the order of a pipeline, and the stages of a rank: one where the row does not say, as frameworks have it.

    Raises:
        LackingError: both contradict each other.
    """
    stated, value = row.words("schedule").facts.get("schedule"), row.number("vpp")
    if pp == 1:
        return "1f1b", 1
    num_chunks = row.count("vpp", 2 if stated in V_SHAPED else 1)
    if (stated == "interleaved" and value == 1) or (stated in V_SHAPED and num_chunks > 2):
        needed = "2" if stated in V_SHAPED else "2 or more"
        raise LackingError(
            f"schedule is {row.text('schedule')!r:.60} and vpp {row.text('vpp')!r:.40}, where {needed} stages a rank"
        )
    if stated is None:
        order = "interleaved" if num_chunks > 1 else "1f1b"
        assumed.append(Assumption(f"schedule not stated: {order}", "schedule", ("gpipe", "ZB-H1")))
    if value is None and stated not in V_SHAPED:
        although = ", although interleaved" if stated == "interleaved" else ""
        assumed.append(Assumption(f"vpp not stated: 1{although}", "vpp", ("2", "4")))
    if stated in V_SHAPED:
        return str(stated), 2
    return ("1f1b" if stated in (None, "interleaved") else str(stated)), num_chunks


def _sharding(row: Row, dp: int, assumed: list[Assumption]) -> tuple[int, int]:
    """Return the stage of ZeRO, fully sharded being stage 3, and how many ranks share shards.

    Raises:
        LackingError: groups of shards do not divide the replicas.
    """
    facts = row.words("zero").facts
    stage = facts.get("zero", 3 if "fsdp" in facts else 0)
    size = int(facts.get("shard_size", dp // facts.get("copies", 1)))
    if "hybrid" in facts and "shard_size" not in facts:
        size = min(dp, row.count("gpus_per_node", load_config(device_of(row)).networks[0].size))
        assumed.append(Assumption(f"ranks of a group of shards not stated: {size}, those of a node", "zero"))
    size = min(size, dp) if stage < 3 else size
    if not 0 < size <= dp or dp % size or facts.get("copies", dp // size) != dp // size:
        raise LackingError(f"zero is {row.text('zero')!r}, whose groups of shards do not divide the {dp} replicas")
    return stage, size


def _recompute(row: Row, framework: Framework, assumed: list[Assumption]) -> str:
    """Return what backward computes again; where the row does not say, what the framework does by default."""
    found = row.words("recompute")
    if found.facts.get("per_op") and not framework.name.startswith("torchtitan"):
        raise LackingError(
            f"recompute is {row.text('recompute')!r}: checkpoints of single operations have no price here"
        )
    if found.facts.get("per_op"):
        text = "recompute of single operations: the attention core, the rest as the platform's clock has it"
        assumed.append(Assumption(text, is_open=True))
    if found.is_guessed:
        assumed.append(Assumption(f"recompute: {row.text('recompute')}", "recompute", ("none", "selective", "full")))
    if "modules" in found.facts:
        if found.facts.get("recompute", "selective") != "selective":
            raise LackingError(
                f"recompute is {row.text('recompute')!r}, which names modules beside all or none of them"
            )
        return as_recompute("+".join(found.facts["modules"]))
    if "recompute" in found.facts:
        return str(found.facts["recompute"])
    if found.is_empty and framework.recompute:
        others = ("none", "selective", "full")
        assumed.append(Assumption(f"recompute not stated: {framework.recompute}", "recompute", others))
        return framework.recompute
    raise LackingError(f"recompute is {row.text('recompute')!r}, where none, selective or full is needed")


def stage_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return how many transformer layers each stage has.

    Equal shares where they divide. Where they divide with embedding and head counted as a layer each, the first and the
    last stage have one less, and where they divide with the head alone, the last one has: Megatron-Core's
    `account_for_embedding_in_pipeline_split` and `account_for_loss_in_pipeline_split`. Such a stage may hold embedding
    or head alone. Otherwise earlier stages have one more.

    Example:
        >>> stage_layers(96, 4), stage_layers(126, 8), stage_layers(7, 2)
        ((24, 24, 24, 24), (15, 16, 16, 16, 16, 16, 16, 15), (4, 3))
    """
    if num_layers % num_stages and not (num_layers + 2) % num_stages and num_stages > 1:
        each = (num_layers + 2) // num_stages
        if num_stages == 2:
            return (each - 1, each - 1)
        return (each - 1, *[each] * (num_stages - 2), each - 1)
    if not (num_layers + 1) % num_stages and num_stages > 1:
        each = (num_layers + 1) // num_stages
        return (*[each] * (num_stages - 1), each - 1)
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
