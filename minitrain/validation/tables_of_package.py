"""The tables of measurements in the package: what each holds, and what was fitted on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import final

from minitrain.errors import UsageError
from minitrain.validation.rows import Row, read_rows


@final
@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of measurements.

    Args:
        name: what it is called here.
        about: what was measured.
        fitted: what was fitted on it, in words; "" for nothing.
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
                lacks="microbatch sizes of January 2021; chunks of table 2",
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
                "d1",
                "Llama 8B to 405B, A100, H100, H200 (torchtitan)",
                f"platform torchtitan-h100, {_ODD}",
                "checkpoints of every second layer; what selective ones compute again has no price",
            ),
            PublishedTable("m1", "GPT of 176B, A100 (BLOOM's prequel)", f"platform bloom, {_ODD}", "heads of 24 rows"),
            PublishedTable("m2", "InternLM 7B, A100 (InternEvo)", f"platform internevo, {_ODD}"),
            PublishedTable(
                "m4", "GPT 5B and 175B, A100 (NeMo 23.04)", lacks="batch (that of the yaml), layout of 175B"
            ),
            PublishedTable("l1", "GPT 0.2B to 1.3B, one A100 node (vTrain)", lacks="whether timings are independent"),
            PublishedTable("h1", "states by ZeRO's stage (Rajbhandari et al. 2020)"),
            PublishedTable("n4", "OPT and GPT-Neo, GH200 and mixed nodes (Sailor)", "layers' times are measured (n1)"),
        )
    }
)
"""The tables by name, in the order of the report."""


def tables_folder() -> Path:
    """Return the folder of the package's tables."""
    return Path(str(resources.files("minitrain.validation").joinpath("tables")))


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
