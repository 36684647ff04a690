"""Every figure of a hardware config on one line: its key path, its value with its unit, and where it comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, final

from minitrain.hardware.config_faults import key_path

_ROW = re.compile(r"^\| `([^`]+)` \| `[^`]+` \| (.+) \|$", re.MULTILINE)

UNITS: Mapping[str, str] = MappingProxyType(
    {
        "tflops": "TFLOP/s",
        "gflops_efficiency": "[GFLOP, share]",
        "GiB": "GiB",
        "usable_GiB": "GiB",
        "GBps": "GB/s",
        "MB_efficiency": "[MB, share]",
        "bandwidth": "GB/s",
        "size": "ranks",
        "latency": "s",
        "latency_per_rank": "s a rank",
        "ranks_GBps": "[ranks, GB/s]",
        "half_MB": "MB",
        "launch": "s",
        "graph_launch": "s",
        "prologue": "steps along k",
        "head_efficiency": "[head size, share]",
        "clock_Hz": "Hz",
        "bytes": "B",
        "bytes_per_s": "B/s",
        "registers": "of 32 bits",
        "smem_bytes": "B",
        "dispatch_s": "s",
        "tdp_W": "W",
        "idle_W": "W",
        "price_usd_per_hour": "USD/h",
        "vector_bits": "bit",
        "latency_s": "s",
    }
)
"""The unit of a figure by the last key of its path; what is missing here is a count, a share or a word."""


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a config.

    Args:
        path: where it stands.
        value: as the file has it.
        unit: what it counts; empty for counts, shares and words.
        source: where it comes from; empty where nothing says.
    """

    path: str
    value: Any
    unit: str
    source: str

    @property
    def text(self) -> str:
        """The value with its unit."""
        value = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return f"{value} {self.unit}".rstrip()


def figures(data: Any, sources: Mapping[str, str]) -> list[Figure]:
    """Return every figure of a config.

    Args:
        data: what is in its file.
        sources: by key path; a path covers everything below it.
    """
    return [
        Figure(path, value, UNITS.get(path.rpartition(".")[2], ""), _source_of(path, sources))
        for path, value in _leaves(data, ())
    ]


def _leaves(value: Any, place: tuple[int | str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the figures below a value; the rows of a curve or an operation are one figure."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*place, key))
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for index, item in enumerate(value):
            yield from _leaves(item, (*place, index))
    else:
        yield key_path(place), value


def _source_of(path: str, sources: Mapping[str, str]) -> str:
    """Return the source of the longest path that covers a path."""
    covering = [known for known in sources if path == known or path.startswith((f"{known}.", f"{known}["))]
    return sources[max(covering, key=len)] if covering else ""


@lru_cache(maxsize=1)
def _sections() -> Mapping[str, Mapping[str, str]]:
    """Read where the figures of the shipped configs come from."""
    from importlib.resources import files  # noqa: PLC0415 - a good part of the package's import time

    text = files("minitrain.hw_configs").joinpath("SOURCES.md").read_text("utf-8")
    sections = re.split(r"^## (\S+)$", text, flags=re.MULTILINE)[1:]
    pairs = zip(sections[::2], sections[1::2], strict=True)
    return {name: {path: source.replace("`", "") for path, source in _ROW.findall(body)} for name, body in pairs}


def sources_of(name: str) -> Mapping[str, str]:
    """Return where a shipped config's figures come from, by key path; empty for other configs.

    Example:
        >>> sources_of("a100_80g")["class"]
        'NVIDIA: it is a GPU'
    """
    return _sections().get(name, {})
