"""How far predictions are off: one value a row, and a summary a table.

The tables of measurements in the package: what each holds, and what was fitted on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from minitrain.errors import UsageError
from minitrain.evidence.rows import Row, read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """A row, measured and predicted.

    Args:
        table: the table that it is from.
        row_id: its row there.
        about: what tables call it.
        group: which figure of the table it belongs to: one table may hold several, such as step times by device.
        device: the hardware config.
        model: what is trained.
        world_size: ranks.
        measured_s: the measured time, s; None where the row has memory alone.
        predicted_s: the predicted time, s.
        measured_bytes: the measured peak memory of a device; None where the row has none.
        predicted_bytes: the predicted one.
        memory_kind: what the measured memory counts: "allocated", "reserved" or "device".
        platform: the platform whose prices these are; None for components alone.
        assumed: what the row does not say, and was taken as the framework's default.
        unread: its words and columns that are not known, and were not read.
        terms: what the predicted time is made of, s.
        kind: of its model; "" of parts of a step, and where layers were measured.
        axes: sizes by name of the axes of its layout; "fsdp" is how many ranks share weights or gradients.
        framework: what trained it; "" where that is not told.
        interval_s: where a calibration says that the measured time lies, s; None without one.
    """

    table: str
    row_id: str
    about: str
    group: str
    device: str
    model: str
    world_size: int
    measured_s: float | None = None
    predicted_s: float | None = None
    measured_bytes: float | None = None
    predicted_bytes: float | None = None
    memory_kind: str = ""
    platform: str | None = None
    assumed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    terms: Mapping[str, float] = field(default_factory=dict, hash=False)
    kind: str = ""
    axes: Mapping[str, int] = field(default_factory=dict, hash=False)
    framework: str = ""
    interval_s: tuple[float, float] | None = None

    @property
    def is_in_interval(self) -> bool | None:
        """Return whether the measured time lies in the interval of its prediction; None without both."""
        if self.interval_s is None or self.measured_s is None:
            return None
        return self.interval_s[0] <= self.measured_s <= self.interval_s[1]

    @property
    def parallelism(self) -> str:
        """Return the axes along which its model is divided: "tp pp"; "dp" where every rank has all of it."""
        return " ".join(axis for axis, size in self.axes.items() if size > 1) or "dp"

    @property
    def error(self) -> float | None:
        """Return predicted over measured time, less one; None without a time."""
        return _error(self.predicted_s, self.measured_s)

    @property
    def memory_error(self) -> float | None:
        """Return predicted over measured memory, less one; None without memory."""
        return _error(self.predicted_bytes, self.measured_bytes)

    def summary(self) -> dict[str, Any]:
        """Return the row as plain values, as `validate --json` prints it."""
        found: dict[str, Any] = {
            "parallelism": self.parallelism if self.axes else None,
            **{name: getattr(self, name) or None for name in ("framework", "memory_kind")},
            **{name: list(getattr(self, name)) for name in ("assumed", "unread")},
            "interval_s": self.interval_s and list(self.interval_s),
            "terms": dict(self.terms),
        }
        return {name: found[name] if name in found else getattr(self, name) for name in _SUMMARY}


_SUMMARY = (
    *("table", "row_id", "group", "about", "device", "model", "world_size", "framework", "parallelism", "platform"),
    *("measured_s", "predicted_s", "error", "interval_s", "measured_bytes", "predicted_bytes", "memory_error"),
    *("memory_kind", "assumed", "unread", "terms"),
)
"""What `validate --json` prints of a row."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that was not simulated, and why.

    Args:
        table: the table that it is from.
        row_id: its row there.
        reason: why, in words.
        line: its line in the file, from 2; 0 where nobody knows.
    """

    table: str
    row_id: str
    reason: str
    line: int = 0

    def summary(self) -> dict[str, Any]:
        """Return the row as plain values, as `validate --json` prints it: `skipped` is the reason."""
        return {"table": self.table, "row_id": self.row_id, "line": self.line, "skipped": self.reason}


@dataclass(frozen=True, slots=True)
class Summary:
    """The errors of some rows.

    Args:
        num_runs: how many.
        mean: of their absolute values.
        median: of their absolute values.
        p90: the absolute value that nine in ten do not exceed.
        bias: the mean error; positive where predictions are too long.
    """

    num_runs: int
    mean: float
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, slots=True)
class TableErrors:
    """The errors of a table, or of one figure of it.

    Args:
        table: its name.
        group: which figure; "" for all.
        of: "time", or what memory counts.
        errors: the summary.
        fitted: what was fitted on it; "" for nothing.
    """

    table: str
    group: str
    of: str
    errors: Summary
    fitted: str

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "table": self.table,
            "group": self.group or None,
            "of": self.of,
            **asdict(self.errors),
            "fitted": self.fitted or None,
        }


def summarize(errors: Sequence[float]) -> Summary | None:
    """Return the summary of some errors, or None for none.

    Example:
        >>> summarize([0.1, -0.3])
        Summary(num_runs=2, mean=0.2, median=0.2, p90=0.3, bias=-0.1)
    """
    if not errors:
        return None
    sizes = sorted(map(abs, errors))
    place = max(0, -(-len(sizes) * 9 // 10) - 1)
    return Summary(len(sizes), fmean(sizes), median(sizes), sizes[place], round(fmean(errors), 12))


def time_errors(rows: Iterable[RowResult]) -> list[float]:
    """Return the errors of the rows that have a time."""
    return [row.error for row in rows if row.error is not None]


def memory_errors(rows: Iterable[RowResult], kind: str) -> list[float]:
    """Return the errors of the rows that have memory of a kind."""
    return [row.memory_error for row in rows if row.memory_error is not None and row.memory_kind == kind]


def _error(predicted: float | None, measured: float | None) -> float | None:
    """Return a relative error."""
    return None if predicted is None or measured is None else predicted / measured - 1


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of measurements.

    Args:
        name: what it is called here.
        about: what was measured.
        fitted: what was fitted on it, in words; "" for nothing, "blind" where no rule was chosen by it either.
        lacks: what it does not say, and was not guessed; "" for nothing.
    """

    name: str
    about: str
    fitted: str = ""
    lacks: str = ""


_ODD = "half of the rows"

TABLES: Mapping[str, PublishedTable] = MappingProxyType(
    {
        table.name: table
        for table in (
            PublishedTable("c2", "one 22B layer, A100 (Korthikanti et al. 2022)"),
            PublishedTable(
                "e2", "stages of GPT, A100 (Qi et al. 2023)", f"platform zero-bubble, {_ODD}", "the attention's kernel"
            ),
            PublishedTable(
                "b2",
                "GPT 1.7B to 1T, A100 (Narayanan et al. 2021)",
                lacks="microbatch sizes of January 2021 (the quickest that fits), chunks of table 2",
            ),
            PublishedTable("b3", "GPT 1B to 8B, V100 and A100 (Megatron-LM, 2020)"),
            PublishedTable(
                "b1",
                "GPT 1.7B to 462B, H100 (Megatron-Core)",
                lacks="microbatch sizes (taken as the quickest that fits), chunks (as one layer each)",
            ),
            PublishedTable(
                "a1", "MPT 125M to 70B, A100 and H100 (MosaicML)", f"platforms eager-a100, eager-h100, {_ODD}"
            ),
            PublishedTable("a2", "MPT 125M to 30B, A100, older (MosaicML)", f"platform eager-a100, {_ODD}"),
            PublishedTable("j1", "Llama 1.3B to 8.9B, one H100 node (nanotron)", f"platform nanotron, {_ODD}"),
            PublishedTable("j3", "Llama, GPT, Nemotron, H100 (NVIDIA DGX Cloud)", f"platform nemo-h100, {_ODD}"),
            PublishedTable(
                "p1",
                "Llama 3, DeepSeek-V3, Qwen3, H100 to GB300 (Megatron Bridge)",
                lacks="what backward computes again of dense models (none)",
            ),
            PublishedTable(
                "p2",
                "Llama 3, DeepSeek-V3, Qwen3, H100 to GB300 (Megatron Bridge 26.02)",
                lacks="what backward computes again of dense models (none)",
            ),
            PublishedTable(
                "p3",
                "Llama, GPT, Nemotron, H100 to GB300 (NeMo 24.09 to 25.07, Megatron Bridge 25.09 to 26.06)",
                lacks="what backward computes again (none)",
            ),
            PublishedTable(
                "p4",
                "Qwen3 235B, DeepSeek-V3, Mixtral, H100 to GB300 (Megatron-Core, DeepSeek, Megatron Bridge 25.09)",
                lacks="vpp of 8x22B (1), the microbatch of DeepSeek's own run (one sample)",
            ),
            PublishedTable(
                "p5",
                "DeepSeek-V3, Qwen3, gpt-oss, H100 to GB300 (Megatron Bridge 26.04 and 26.06, NeMo AutoModel)",
                lacks="recipe of DeepSeek-V3 on B300",
            ),
            PublishedTable(
                "r1",
                "Llama 3.1 8B and 405B, GB200, GB300, MI355X (MLPerf 5.1)",
                lacks="what backward computes again (none)",
            ),
            PublishedTable(
                "r2",
                "GPT of 175B, Llama 3.1 8B and 405B, H100 to GB300 (MLPerf 3.1 to 6.0)",
                lacks="dropout of GPT (0.1), what backward computes again (none)",
            ),
            PublishedTable(
                "u1",
                "Llama 3.1 8B, Qwen2.5 7B, Qwen3 30B, MI300X, MI355X (Primus)",
                lacks="recomputation and attention of 8B and 7B (those of its configs)",
            ),
            PublishedTable("d1", "Llama 8B to 405B, A100, H100, H200 (torchtitan)", "platform compiled-fsdp"),
            PublishedTable(
                "m1",
                "GPT of 176B, A100 (BLOOM's prequel)",
                f"platform bloom, {_ODD}",
                "heads of 24 rows (of about 128)",
            ),
            PublishedTable("m2", "InternLM 7B, A100 (InternEvo)", f"platform internevo, {_ODD}"),
            PublishedTable(
                "m4", "GPT 5B and 175B, A100 (NeMo 23.04)", lacks="batch (that of the yaml), layout of 175B"
            ),
            PublishedTable(
                "m5",
                "GPT, Nemotron, Llama of 5B to 1T, A100 to GB200 (Megatron-LM 2022 to 2024, NeMo 24.03 to 25.07)",
                lacks="microbatch of 11 rows (the quickest that fits), what backward computes again",
            ),
            PublishedTable("l1", "GPT 0.2B to 1.3B, one A100 node (vTrain)", lacks="whether timings are independent"),
            PublishedTable("h1", "states by ZeRO's stage (Rajbhandari et al. 2020)"),
            PublishedTable(
                "t1",
                "models of 16B to 512B, TPU v5e and v5p (MaxText)",
                lacks="whether tokens count causal halves (they do not)",
            ),
            PublishedTable(
                "t2", "Llama, GPT-3, Mistral, TPU v6e and v5p (MaxText recipes)", lacks="samples of two rows"
            ),
            PublishedTable("t3", "Llama 3.1 70B and 405B, TPU7x (MaxText recipes)"),
            PublishedTable("t4", "22B and 52B, TPU v4 (MaxText)", lacks="heads, matrices of an MLP, attention"),
            PublishedTable(
                "t5",
                "Llama 7B and 70B, Gemma 3, 1T, TPU v4 to v6e, Trainium 2 (AXLearn, TorchPrime, MaxText)",
                "blind",
                lacks="recomputation of older AXLearn and of TorchPrime",
            ),
            PublishedTable("t6", "DeepSeek-V3, Qwen3, gpt-oss, Mixtral, TPU v5p to TPU7x (MaxText)"),
            PublishedTable("t7", "Llama to 16M tokens, Hunyuan 3, Qwen3, Llama 4, TPU v5p, TPU7x (MaxText)"),
            PublishedTable("n4", "OPT and GPT-Neo, GH200 and mixed nodes (Sailor)", "layers' times are measured (n1)"),
            PublishedTable(
                "f1",
                "Llama 2 of 7B to 70B, A100 and H100 (IBM, PyTorch FSDP)",
                "blind",
                "which blocks of 13B are recomputed (every second one)",
            ),
            PublishedTable(
                "f2",
                "Llama 3, H100 and MI300X (torchtitan at AWS and torchao; context parallelism, async TP)",
                "platform compiled-fsdp",
                lacks="power of torchao's H100, microbatch of AWS (the default)",
            ),
            PublishedTable(
                "f3",
                "Llama 3 of 7B to 175B, H200 (KempnerForge, FSDP2)",
                "platform compiled-fsdp",
                "interfaces of a node (one a device)",
            ),
            PublishedTable(
                "f4",
                "Llama 2 and 3, OLMo 2, A100 to B200 (IBM with torch.compile, OLMo-core, torchtitan, TinyLlama)",
                "platform compiled-fsdp",
                "ranks of OLMo-core's (one node), power of B200",
            ),
            PublishedTable(
                "f5",
                "Llama 1.8B to 405B, Qwen3 32B, A100 and H100 (LitGPT, torchtitan, IBM, Accelerate, ATorch)",
                lacks="batch and checkpoints of IBM's, power of two clusters",
            ),
            PublishedTable(
                "g1",
                "Llama, GPT and mixtures of experts on one H100 (PyTorch, measured for this table)",
                "kernels are listed as profiled",
            ),
            PublishedTable(
                "z1",
                "GPT 1.5B to 28.3B, zero-bubble pipelines, A100 (Qi et al. 2023)",
                "blind",
                "vocabulary and network between nodes",
            ),
            PublishedTable(
                "z2",
                "GPT 4B to 21B, vocabularies of 32k to 256k in 1F1B, A100 (Yeung et al. 2024)",
                "blind",
                "network between nodes",
            ),
        )
    }
)
"""The tables by name, in the order of the report."""


def tables_folder() -> Path:
    """Return the folder of the package's tables."""
    return Path(str(resources.files("minitrain.evidence").joinpath("tables")))


def rows_of(names: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of some tables of the package, or of all.

    Raises:
        UsageError: there is no such table.
    """
    wanted = list(TABLES) if names is None else list(names)
    for name in wanted:
        if name not in TABLES:
            raise UsageError(f"there is no table {name!r:.40}; use {', '.join(TABLES)}", table=name)
    return [row for name in wanted for row in read_rows(tables_folder() / f"{name}.csv", name)]
