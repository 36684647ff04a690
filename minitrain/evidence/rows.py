"""Rows of a table of measurements, with errors for values that are missing.

A table is a CSV file in the common columns that `minitrain validate --template` lists, or in those of one of the tables
beside this file. Nothing is guessed: a value that is missing, or that is no number, makes the row one that cannot be
simulated, with its reason.

The frameworks that were measured, with their defaults: `minitrain/machine/frameworks.json`, with what their code and
documentation say under "said".

A framework is found by words of the row's column `framework`. Its fields come from its documentation or source code,
never from a fit: the dropout it trains with by default, how it hides communication, and whether each of a stage's ranks
sends a part of an activation (Narayanan et al. 2021, section 4.1, "scatter/gather").

The transformer of a row: its sizes are the row's, its kind follows from the MLP and the framework.

A gated MLP ("swiglu", "geglu") means a model like Llama: RMSNorm, rotary positions, no biases. "relu2" means one like
Nemotron: LayerNorm, rotary positions, no biases. "gelu" means one like GPT: LayerNorm, learned positions, biases,
unless the row says "no bias".

The machine of a row: a shipped hardware config, with the interfaces between nodes that the row names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from minitrain.errors import MinitrainError, UsageError
from minitrain.evidence.columns import (
    Reading,
    ReadingError,
    cells_apart,
    cells_of_model,
    columns,
    is_about,
    latent_of,
    read_number,
    read_words,
    unknown_columns,
)
from minitrain.files import StrPath, read_cells
from minitrain.machine import load_config
from minitrain.machine.config import machine_name, shipped_machines
from minitrain.machine.device_groups import clock_share
from minitrain.machine.kernel_device import rates_of
from minitrain.machine.platforms import COMPONENTS, Platform, frameworks, platform_of_framework
from minitrain.workloads.architecture import PRECISIONS, Precision
from minitrain.workloads.transformer import Transformer, find_model, models

if TYPE_CHECKING:
    from minitrain.machine.config import SystemConfig
    from minitrain.machine.network import Network, Rows, TransferCurve
    from minitrain.workloads.mixers import LatentAttention

_Read = TypeVar("_Read")


class LackingError(Exception):
    """A row lacks what the model needs; its text says what."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement as its table has it.

    Args:
        table: what the table is called.
        values: text by column.
        line: its line in the file, from 2.
        model: what it trains, where its name alone tells the sizes.
    """

    table: str
    values: Mapping[str, str]
    line: int
    model: Transformer | None = None

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

    def latent(self, usual: LatentAttention | None) -> LatentAttention | None:
        """Return the latents of attention: those of its model's name, but the sizes that the row states.

        Raises:
            LackingError: sizes are missing.
        """
        return self._read(lambda: latent_of(self.text("attention"), usual))

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


def read_rows(path: StrPath, table: str | None = None) -> list[Row]:
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
    return [Row(table or file.stem, cells_apart(values), line) for line, values in found]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework.

    Args:
        name: what pages call it.
        words: the names that its row has all of, of those that `columns.json` gives to words of the column
            `framework`; several such sets are joined by "|".
        platforms: the platform by a regular expression that the name of the device's config fits; the first is taken.
            XLA fuses what eager PyTorch does not: lists of PyTorch's end with all devices but Google's and AWS's.
        dropout: what models with biases are trained with by default.
        attention: "flash" or "unfused", where the row does not say.
        overlap: whether communication between replicas is hidden behind compute: "always", "never", or "one stage"
            where only a model that is not cut into stages does that (PyTorch's DistributedDataParallel).
        gradient_bytes: bytes of an element of a gradient, kept and summed, where the row does not say.
        of_autograd: whether gradients are those that PyTorch's autograd leaves, which are of their weight's type.
        halved_states: bytes of a parameter's state with moments in 16 bits: these, or also what a weight lacks.
        recompute: what backward computes again where the row does not say; None where that is not known.
        selective: what it computes again where a row says "selective": with Megatron-Core the attention core, whatever
            kernel that is (`_checkpointed_attention_forward` of `core/transformer/attention.py`).
        balances: whether stages are cut by the parameters of layers and head, as nanotron does.
        blocking_zero: whether ZeRO-3 beside it is DeepSpeed's of 2021: computing waits for each gather
            (`torch.cuda.synchronize()` in `_allgather_param`), whose shares are copied one by one (DeepSpeed's issues
            1069 and 1174).
        overlaps_messages: whether, where the row does not say and stages are interleaved, messages between them travel
            beside compute (`overlap_p2p_comm` where there are virtual stages, of Megatron Bridge's
            `training/comm_overlap.py` and NeMo's before it; Megatron-LM's default too).
        splits_experts: whether, with tensor parallelism, the matrices of an expert are divided too where the row does
            not say (Megatron-Core's default).
        pairs_passes: whether, where the row does not say, stages are interleaved and experts lie on several nodes, a
            forward runs beside a backward, each computing while the other's tokens travel.
        is_compiled: whether its platform stands for what `torch.compile` makes of it.
        repeats_keys: whether, with fewer heads of keys than parts of a layer, parts have the same ones.
        adds_up_once: whether a batch is one microbatch where the row does not say.
        size_of_device: what its configs call the samples of a device; "" where its rows have those of a replica.
        habits: what its platforms have otherwise than their own values, by its code.
    """

    name: str
    words: str
    platforms: tuple[tuple[str, str], ...] = ()
    dropout: float = 0.0
    attention: str = "flash"
    overlap: str = "never"
    gradient_bytes: int = 4
    of_autograd: bool = False
    halved_states: int = 4
    recompute: str | None = "none"
    selective: str = "selective"
    balances: bool = False
    blocking_zero: bool = False
    overlaps_messages: bool = False
    splits_experts: bool = True
    pairs_passes: bool = False
    is_compiled: bool = False
    repeats_keys: bool = False
    adds_up_once: bool = False
    size_of_device: str = ""
    habits: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def is_named(self, names: Set[str]) -> bool:
        """Return whether names of a row are this framework's."""
        return any(names >= set(needed.split()) for needed in self.words.split("|"))

    def lacks_buffers(self, row: Row) -> bool:
        """Return whether a row's numbers have four bits, for which Megatron Bridge runs no collective in pieces.

        `tp_comm_overlap = False if precision == "nvfp4"` of its scripts/performance/configs/llama.
        """
        return self.name == "Megatron Bridge" and row.words("precision").facts.get("weights") == "float4"

    def platform_of(self, row: Row) -> Platform:
        """Return the platform for a row's device, as `simulate` takes it; components alone where none is known."""
        return platform_of_framework(self.name, device_of(row), is_alone=row.number("n_gpus") == 1)


def _frameworks() -> tuple[Framework, ...]:
    """Return the frameworks of `minitrain.machine.platforms.frameworks`."""
    known = {each.name for each in fields(Framework)}
    return tuple(
        Framework(name=name, **{key: value for key, value in given.items() if key in known})
        for name, given in frameworks().items()
    )


FRAMEWORKS = _frameworks()
"""The frameworks, the more special ones first."""

UNKNOWN = Framework(name=COMPONENTS.name, words="own", overlap="always")
"""For a row that names none of them, or one of its own: components alone."""


def framework_of(row: Row) -> Framework:
    """Return the framework that a row names, or `UNKNOWN` where it names none.

    Raises:
        LackingError: it is none that is known.
    """
    names = {*row.words("framework").facts.get("is", ()), *(["experts"] if row.text("n_experts") else [])}
    names |= {"compiled"} if compiles_silently(row) else set()
    found = next((each for each in (*FRAMEWORKS, UNKNOWN) if each.is_named(names)), None)
    if found is None and not row.words("framework").is_empty:
        known = ", ".join(dict.fromkeys(each.name for each in FRAMEWORKS))
        raise LackingError(
            f"line {row.line}: framework is {row.text('framework')!r:.60}, which names none of {known}; name one, or "
            'write "own" for components alone'
        )
    return found or UNKNOWN


def compiles_silently(row: Row) -> bool:
    """Return whether torchtitan's multiplications are of few bits, which are quicker by `torch.compile` alone.

    It fuses their scales and casts, without which they are no gain (torchtitan, `docs/float8.md`).
    """
    facts = row.words("framework").facts
    is_silent = "torchtitan" in facts.get("is", ()) and facts.get("compiled") is None
    return is_silent and "weights" in row.words("precision").facts


def with_sizes(row: Row) -> Row:
    """Return a row that states no size with those of the model that it names: a shipped one, or a config.json.

    Raises:
        LackingError: there is no such model.
    """
    sizes = ("n_layers", "hidden", "ffn", "n_heads", "n_kv_heads", "head_dim", "vocab", "mlp", "n_experts")
    if any(row.text(column) for column in sizes) or not row.text("model"):
        return row
    name = next((name for name in models() if _letters(name) == _letters(row.text("model"))), row.text("model"))
    try:
        model = find_model(name)
    except UsageError as error:
        raise LackingError(f"it states no size, such as n_layers, and of its model {error}") from error
    stated = {column: text for column, text in row.values.items() if text.strip()}
    return replace(row, values=cells_of_model(model) | stated, model=model)


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
    sizes = _sizes(row, framework, tp)
    if row.model is None:
        of_model = {**sizes, **_kind(row), **_experts(row), **_of_named(row), **_window(row)}
    else:
        of_model = {**{each.name: getattr(row.model, each.name) for each in fields(row.model)}, **sizes, **_window(row)}
    if "tied" in row.words("tied_emb").facts:
        of_model["tied_embeddings"] = row.words("tied_emb").facts["tied"]
    of_model["prediction_layers"] = int(row.number("mtp_layers") or 0)
    of_model["attention"] = _attention(row, framework)
    is_gpt = (of_model["mlp"] == "gelu" or of_model.get("positions") == "learned") and of_model.get("bias", True)
    of_model["dropout"] = framework.dropout if is_gpt else 0.0
    try:
        return Transformer(
            **{**of_model, "name": row.text("model") or "custom", "precision": _precision(row, framework)}
        )
    except UsageError as error:
        raise LackingError(f"its sizes are no transformer's: {error}") from error


def _sizes(row: Row, framework: Framework, tp: int) -> dict[str, Any]:
    """Return the sizes of a row."""
    hidden = row.count("hidden")
    heads = row.count("n_heads", usual_heads(hidden, tp, row.number("head_dim") or USUAL_HEAD))
    kv_heads, multiple = row.count("n_kv_heads", heads), _VOCABULARY_MULTIPLE * tp
    sizes: dict[str, Any] = {
        "num_layers": row.count("n_layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": tp if framework.repeats_keys and tp % kv_heads == 0 else kv_heads,
        "vocab_size": -(-row.count("vocab") // multiple) * multiple,
        "seq_len": row.count("seq_len"),
    }
    for column, size in (("ffn", "ffn_hidden_size"), ("head_dim", "head_dim")):
        if row.text(column):
            sizes[size] = row.count(column)
    return sizes


USUAL_HEAD = 128
"""Elements of a head of most models, from GPT-3 of 175B on."""


def usual_heads(hidden_size: int, tp: int, head_dim: float) -> int | None:
    """Return how many heads have about so many elements, if tp ranks divide them; None where they cannot.

    >>> usual_heads(4096, 8, 128), usual_heads(14400, 8, 128)
    (32, 120)
    """
    fitting = (heads for heads in range(tp, hidden_size + 1, tp) if hidden_size % heads == 0)
    return min(fitting, key=lambda heads: abs(hidden_size / heads - head_dim), default=None)


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
        "relu2": {"mlp": "relu2", "norm": "layernorm", "positions": "rotary", "bias": False},
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
    dense = int(row.number("n_dense_layers") or 0)
    return {
        "num_experts": row.count("n_experts"),
        "experts_per_token": row.count("top_k"),
        "moe_ffn_hidden_size": row.count("moe_ffn"),
        "num_shared_experts": int(row.number("n_shared_experts") or row.words("mlp").facts.get("shared", 0)),
        "moe_layers": range(dense, row.count("n_layers")),
    }


def _window(row: Row) -> dict[str, Any]:
    """Return the sliding window that a row states, and the layers that have it: the first of each group of layers.

    Raises:
        LackingError: more layers of a group have it than the group has.
    """
    facts = row.words("attention").facts
    if "window" not in facts:
        return {}
    windowed, group = int(facts.get("windowed", 1)), int(facts.get("windowed_of", 1))
    if not 1 <= windowed <= group:
        raise LackingError(f"attention is {row.text('attention')!r}; give a window in at most all layers of a group")
    layers = [layer for layer in range(row.count("n_layers")) if layer % group < windowed]
    return {"window": int(facts["window"]), "window_layers": layers}


def named_model(row: Row) -> Transformer | None:
    """Return the shipped model of a row's name and sizes, of which a table may have fewer layers.

    Experts and latent attention need more figures than most tables have.
    """
    name, heads = _letters(row.text("model")), row.number("n_heads")
    sizes = row.count("hidden"), row.number("n_experts") or 0
    for shipped in models().values():
        alike = (shipped.hidden_size, shipped.num_experts) == sizes and heads in (None, shipped.num_heads)
        if alike and _letters(shipped.name) in name and (shipped.num_experts or shipped.latent):
            return shipped
    return None


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


def _of_named(row: Row) -> dict[str, Any]:
    """Return what a row leaves out of a model that its name tells.

    Raises:
        LackingError: it has latent attention, of which neither the name nor the row has all sizes.
    """
    found = named_model(row)
    if found is None:
        latent = row.latent(None)
        if latent is not None:
            return {"latent": latent, "head_dim": latent.key_head_dim, "num_kv_heads": row.count("n_heads")}
        letters = _letters(row.text("model"))
        return next(({"qk_norm": norm} for family, norm in _NORMED.items() if letters.startswith(family)), {})
    fields: dict[str, Any] = {}
    if row.number("n_heads") is None:
        kv_heads = row.count("n_kv_heads", found.num_kv_heads)
        fields |= {"num_heads": found.num_heads, "num_kv_heads": kv_heads}
    if row.number("n_shared_experts") is None and "shared" not in row.words("mlp").facts:
        fields["num_shared_experts"] = found.num_shared_experts
    if row.number("n_dense_layers") is None:
        fields["moe_layers"] = [layer for layer in found.moe_layers if layer < row.count("n_layers")]
    latent = row.latent(found.latent)
    if latent is not None:
        fields |= {"latent": latent, "head_dim": latent.key_head_dim, "num_kv_heads": found.num_kv_heads}
    if found.window is not None:
        layers = [layer for layer in found.window_layers if layer < row.count("n_layers")]
        fields |= {"window": found.window, "window_layers": layers, "chunked_windows": found.chunked_windows}
    names = _UNTOLD if "bias" in row.words("mlp").facts else (*_UNTOLD, *_BIASES)
    return fields | {name: getattr(found, name) for name in names}


_NORMED = {"qwen3": "head", "gemma3": "head", "olmo2": "whole", "olmo3": "whole"}
"""Families of dense models whose queries and keys have norms, as Hugging Face's transformers has them."""

_UNTOLD = ("sinks", "gate_clamp", "qk_norm", "rope_factor", "expert_groups", "groups_per_token")
_BIASES = ("qkv_bias", "output_bias", "mlp_bias")


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
        if "moment_bytes" in {**row.words("framework").facts, **facts}:
            raise LackingError("this optimizer has no price here beside single precision")
        if "weights" in facts:
            raise LackingError(f"precision is {row.text('precision')!r}: FP8 beside single precision has no price here")
        return PRECISIONS["fp32"]
    keeps_halves = framework.of_autograd and "optimizer_bytes" in facts  # `.grad` is of its weight's type
    usual = PRECISIONS["bf16"].parameter_bytes if keeps_halves else framework.gradient_bytes
    gradient_bytes = facts.get("gradient_bytes", row.words("overlap").facts.get("gradient_bytes", usual))
    precision = replace(PRECISIONS[facts.get("datatype", "bf16")], gradient_bytes=gradient_bytes)
    precision = replace(precision, optimizer_bytes=_optimizer_bytes(row, framework, precision.optimizer_bytes))
    if "weights" not in facts:
        return precision
    return replace(precision, weight_datatype=facts["weights"], scaling=facts.get("scaling", "delayed"))


def _optimizer_bytes(row: Row, framework: Framework, usual: int) -> int:
    """Return the bytes of a parameter's state: Adam's moments, and a copy of the weight, unless states are halves."""
    facts = row.words("precision").facts
    found = framework.halved_states if "optimizer_bytes" in facts else usual
    moment_bytes = row.words("framework").facts.get("moment_bytes", facts.get("moment_bytes"))
    if moment_bytes is None:
        return found
    return int(moment_bytes) + (_COPY_BYTES if found == usual else 0)


_COPY_BYTES = 4
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
    size = size or facts.get("memory_gb", 0)
    for other, memory, other_size in facts.get("others", ()):
        if facts.get("memory") == memory or is_about(size, other_size):
            return str(other)
    return str(facts["config"])


def machine_of(row: Row) -> SystemConfig:
    """Return the config of a row's machine: nodes as large as it says, joined by the interfaces that it names.

    Raises:
        LackingError: there is no config for its device, or the config has no prices of kernels.
    """
    name, facts = device_of(row), row.words("gpu").facts
    system = load_config(name)
    if system.kernels is None and system.sheet.num_units is None:
        raise LackingError(f"config {name} says nothing of kernels, so that none can be priced")
    if "closes" in facts:
        system = _slices(name, _chips_of_slice(row, system.networks[0].size), facts["closes"])
        return replace(system, kernels=rates_of(system).scaled(facts["clock"])) if "clock" in facts else system
    within = row.words("intra_node").facts
    if (within.get("pcie") and "pcie" not in name) or (within.get("nvlink") and "pcie" in name):
        raise LackingError(f"intra_node is {row.text('intra_node')!r}, but config {name} joins devices by other links")
    node_size, num_trays = nodes_of(row, system)
    interfaces = _interfaces(row, node_size // num_trays)
    if interfaces is not None:
        interfaces = interfaces[0] * num_trays, interfaces[1]
    system = _machine(name, node_size, interfaces, _network(row, name), is_switched="switched" in within)
    system = _with_fewer_links(system) if facts.get("export") else system
    return _at_power(system, facts["power_w"]) if "power_w" in facts else system


def nodes_of(row: Row, system: SystemConfig) -> tuple[int, int]:
    """Return how many devices NVLink joins, and the trays among which these are: what racks of GB200 call nodes."""
    usual = system.networks[0].size
    size = row.count("gpus_per_node", usual)
    is_rack = system.name.endswith("nvl72")
    domain = int(row.words("intra_node").facts.get("domain", usual)) if is_rack else size
    return (domain, domain // size) if domain > size and domain % size == 0 else (size, 1)


@lru_cache(maxsize=16)
def _at_power(system: SystemConfig, watts: float) -> SystemConfig:
    """Return a system whose devices may draw so much: their arithmetic at the clock which that leaves."""
    try:
        share = clock_share(system.sheet.power, watts, system.name)
    except MinitrainError as error:
        raise LackingError(f"gpu has {watts:g} W: {error}") from error
    return system if share == 1 else replace(system, kernels=rates_of(system).scaled(share))


def _chips_of_slice(row: Row, most: int) -> int:
    """Return how many chips of a TPU a torus joins.

    Raises:
        LackingError: what the row says of slices is not its number of chips.
    """
    facts, num_chips = row.words("gpu").facts, row.count("n_gpus")
    num_slices = {**row.words("intra_node").facts, **row.words("inter_node").facts}.get("slices")
    named = facts.get("chips", facts.get("cores", 0) / 2)
    if named and not num_slices and num_chips == facts.get("cores"):
        raise LackingError(
            f"gpu is {row.text('gpu')!r}, a slice of {named:g} chips of two cores, but n_gpus is {num_chips}; count "
            "chips, or say in inter_node how many slices there are"
        )
    chips = named or num_chips / (num_slices or -(-num_chips // most))
    if chips % 1 or chips > most or num_chips % chips or num_slices not in (None, num_chips / chips):
        raise LackingError(
            f"gpu is {row.text('gpu')!r} and n_gpus {num_chips}, which are no whole slices of at most {most} chips"
        )
    return int(chips)


_OF_A_RING = 0.855
"""The share of its links that a ring reaches: gathers along an axis of TPU v5e take 0.95 of 45 GB/s a link, of which
configs have 50 (jax-ml/scaling-book (GitHub), `sharding.md`)."""


@lru_cache(maxsize=64)
def _slices(name: str, num_chips: int, closes: int) -> SystemConfig:
    """Return a TPU of slices of some chips: a ring over two links of each where they are too few for a closed torus."""
    system = load_config(name)
    inner, *outer = system.networks
    if num_chips < closes:
        inner = replace(inner, bandwidth=inner.bandwidth / (inner.torus or 1), efficiency=_OF_A_RING)
    inner = replace(inner, size=num_chips)
    outer = [replace(tier, size=num_chips * -(-tier.size // num_chips)) for tier in outer]
    return replace(system, networks=(inner, *outer))


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
    if "gbps" in facts:
        return int(facts["nics"]), facts["gbps"] / 8
    if "node_gbps" in facts:
        return 8, facts["node_gbps"] / 64
    if "gpu_gbps" in facts:
        return node_size, facts["gpu_gbps"] / 8
    rate = facts.get("rate_gbyte", facts.get("rate", 0) / 8)
    if rate and row.count("n_gpus") > node_size:
        if "nics" in facts:
            return int(facts["nics"]), rate
        if "rate_of" not in facts:
            raise LackingError(
                f"inter_node is {row.text('inter_node')!r}, which does not say of what; write 8x400Gb/s, 3200 Gb/s per "
                "node or 400 Gb/s per GPU"
            )
        return (node_size, rate) if facts["rate_of"] == "gpu" else (8, rate / 8)
    machine = _cloud_machine(facts)
    return (machine["nics"], machine["Gbps"] / 8) if machine else None


def _cloud_machine(facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what is known of the cloud's machine that a row names."""
    name = machine_name(facts["machine"]) if "machine" in facts else None
    return None if name is None else {"name": name, **shipped_machines()["machines"][name]}


def _network(row: Row, config: str) -> str | None:
    """Return the name of a cloud's network; EFA is that of the device's machine, or of one with such interfaces.

    Raises:
        LackingError: the cloud's machine has another device.
    """
    facts = row.words("inter_node").facts
    machine = _cloud_machine(facts)
    if machine is not None:
        if machine["name"].partition("_")[0] != config.partition("_")[0]:
            raise LackingError(f"inter_node is {row.text('inter_node')!r}, which has {machine['like']}, not {config}")
        return machine.get("network")
    said = facts.get("network")
    fitting = [each for each in shipped_machines()["machines"].values() if said and said in each.get("network", "")]
    fitting.sort(key=lambda each: (each["like"] != config, each["Gbps"] != facts.get("gbps")))
    return fitting[0]["network"] if fitting else None


@lru_cache(maxsize=64)
def _machine(
    name: str, node_size: int, interfaces: tuple[int, float] | None, network: str | None, *, is_switched: bool
) -> SystemConfig:
    """Return a config with other nodes, interfaces and a cloud's network."""
    system = load_config(name)
    inner, *outer = sorted(system.networks, key=lambda tier: tier.size)
    within = _switched(inner) if is_switched else inner
    within = replace(within, size=node_size)
    tiers = [
        within,
        *(_on_network(_with_interfaces(tier, inner.size, node_size, interfaces), network) for tier in outer),
    ]
    return replace(system, networks=tuple(tiers))


def _on_network(tier: Network, name: str | None) -> Network:
    """Return the tier between nodes with the steps and curves of a cloud's network."""
    if name is None:
        return tier
    listed = shipped_machines()
    machine = next(each for each, about in listed["machines"].items() if about.get("network") == name)
    said, known = listed["networks"][name], load_config(machine).networks[-1]
    curves = {**tier.curves, **{op: known.curves[op] for op in said["curves"]}}
    return replace(tier, **{key: getattr(known, key) for key in said if key != "curves"}, curves=curves)


def _switched(tier: Network) -> Network:
    """Return a tier in which any ranks reach what all of them reach: a switch has no rings that need certain ranks."""
    return replace(tier, curves={op: _of_all_ranks(curve) for op, curve in tier.curves.items()})


def _of_all_ranks(curve: TransferCurve) -> TransferCurve:
    """Return a curve whose bandwidth does not drop by half or more with the number of ranks."""
    bandwidths = curve.bandwidths
    if not bandwidths or min(value for _, value in bandwidths) > max(value for _, value in bandwidths) / 2:
        return curve
    return replace(curve, bandwidths=((0.0, max(value for _, value in bandwidths)),))


def _with_interfaces(tier: Network, usual_size: int, node_size: int, interfaces: tuple[int, float] | None) -> Network:
    """Return the tier between nodes with another number of interfaces."""
    usual_GBps = tier.bandwidth * usual_size
    if interfaces is not None:
        num_nics, nic_GBps = interfaces
        tier = replace(tier, bandwidth=num_nics * nic_GBps / node_size, nics=num_nics)
    share = tier.bandwidth * node_size / usual_GBps
    return replace(tier, curves={op: _with_wires(curve, share) for op, curve in tier.curves.items()})


def _with_wires(curve: TransferCurve, share: float) -> TransferCurve:
    """Return a curve of a group with a share of the wires, whose ring takes as long to begin its steps."""
    return replace(curve, half_bytes=curve.half_bytes * share) if curve.half_ranks else curve
