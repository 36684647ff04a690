"""A hardware config in some twenty lines: its main figures with units, and the kinds of their sources.

`figures` has every figure and its source in full. Here a line stands for several, and says of its sources only their
kinds: published (data sheets, papers, public files), measured, fitted, derived, assumed.

Every figure of a hardware config on one line: its key path, its value with its unit, and where it comes from.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

from minitrain.files import key_path
from minitrain.machine.config import LIKE, SystemConfig, unit_of

if TYPE_CHECKING:
    from minitrain.machine.device import DataSheet, Memory, Rate
    from minitrain.machine.network import Network


_ROW = re.compile(r"^\| `([^`]+)` \| `[^`]+` \| (.+) \|$", re.MULTILINE)


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
    """Return every figure of a config; of one that names another and what differs, those that differ.

    Args:
        data: what is in its file.
        sources: by key path; a path covers everything below it.
    """
    return [
        Figure(path, value, "bit" if path.endswith("_bits") else unit_of(path), _source_of(path, sources))
        for path, value in (_differences(data) if LIKE in data else _leaves(data, ()))
    ]


def _differences(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the figures below key paths."""
    for above, item in data.items():
        for below, value in _leaves(item, ()):
            yield f"{above}{'.' if below and below[0] != '[' else ''}{below}", value


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


KINDS = ("published", "measured", "fitted", "derived", "assumed")
_PUBLISHED = re.compile(r"data sheet|white paper|specifications|Guide|Google Cloud|NVIDIA|AMD|Intel|et al\.|^jax-ml")
_KIB, _MIB = 2**10, 2**20


@final
@dataclass(frozen=True, slots=True)
class OverviewLine:
    """One line of an overview.

    Args:
        what: what the line describes.
        text: its figures, with units.
        kinds: of the sources of its figures; empty where nothing says.
    """

    what: str
    text: str
    kinds: str


def title(system: SystemConfig) -> str:
    """Return the name of a config, and what kind of device it is."""
    sheet = system.sheet
    units = f"{sheet.num_units} units" if sheet.num_units else ""
    clock = f"at {sheet.clock_Hz / 1e9:.4g} GHz" if sheet.clock_Hz else ""
    device = f"{(sheet.device_class or '').upper()} by {sheet.vendor}" if sheet.vendor else sheet.device_class or ""
    said = ", ".join(filter(None, (device, " ".join(filter(None, (units, clock))))))
    return f"{system.name}: {said}" if said else system.name


def overview(system: SystemConfig, found: Sequence[Figure]) -> list[OverviewLine]:
    """Return the main figures of a config.

    Args:
        system: the config.
        found: its figures, with their sources.
    """
    return [OverviewLine(what, text, kinds_of(_below(found, paths))) for what, text, paths in _rows(system)]


def kinds_of(found: Iterable[Figure]) -> str:
    """Return the kinds of sources that some figures have, in words."""
    kinds = {kind for figure in found for kind in kinds_of_source(figure.source)}
    return ", ".join(kind for kind in KINDS if kind in kinds)


def kinds_of_source(source: str) -> tuple[str, ...]:
    """Return the kinds of source that a text names.

    Example:
        >>> kinds_of_source("NVIDIA T4 data sheet: 70 W; idle power assumed: about a twelfth")
        ('published', 'assumed')
        >>> kinds_of_source("assumed: that of `h100_80g_nvl8`")
        ('assumed',)
    """
    if not source or source.startswith("no figure"):
        return ()
    said = tuple(kind for kind in KINDS[1:] if re.search(rf"\b{kind}\b", source))
    is_published = bool(_PUBLISHED.search(source)) and not source.startswith(said)
    return ("published", *said) if is_published or not said else said


def counted(found: Sequence[Figure]) -> str:
    """Return how many figures have which kind of source, the first of each counting."""
    kinds = Counter(kinds_of_source(figure.source)[:1] for figure in found)
    return ", ".join(f"{kinds[(kind,)]} {kind}" for kind in KINDS if kinds[(kind,)])


def _below(found: Sequence[Figure], paths: Sequence[str]) -> Iterator[Figure]:
    """Yield the figures at some paths and below them."""
    for figure in found:
        if any(figure.path == path or figure.path.startswith((f"{path}.", f"{path}[")) for path in paths):
            yield figure


Row = tuple[str, str, tuple[str, ...]]


def _rows(system: SystemConfig) -> Iterator[Row]:
    """Yield name, text and key paths of each line."""
    for unit in ("matrix", "vector"):
        for name, rate in getattr(system, unit).items():
            yield f"{unit} {name}", _rate(rate), (f"{unit}.{name}",)
    yield "memory", _memory(system.mem1), ("mem1",)
    yield "host memory", _memory(system.mem2), ("mem2",)
    for place, tier in enumerate(system.networks):
        paths = tuple(f"networks[{place}].{key}" for key in ("bandwidth", "efficiency", "size", "latency"))
        yield f"network {place}", _network(tier), paths
    yield from _sheet_rows(system.sheet)


def _sheet_rows(sheet: DataSheet) -> Iterator[Row]:
    """Yield the lines of what a data sheet says beside rates and memories."""
    for place, cache in enumerate(sheet.caches):
        where = "a unit" if cache.scope == "unit" else "for all units"
        yield f"cache {cache.level}", f"{_size(cache.size_bytes)} {where}", (f"caches[{place}]",)
    if sheet.limits is not None:
        limits = sheet.limits
        held = f"{limits.warps} warps, {limits.blocks} blocks, {limits.registers} registers"
        yield "limits of a unit", f"{held}, {_size(limits.smem_bytes)} shared", ("limits",)
    if sheet.dispatch_s is not None:
        yield "dispatch", f"{sheet.dispatch_s * 1e6:.4g} us an operation", ("dispatch_s",)
    if sheet.power is not None:
        idle = "" if sheet.power.idle_W is None else f", idle {sheet.power.idle_W:g} W"
        yield "power", f"{sheet.power.tdp_W:g} W{idle}", ("power",)
    if sheet.price_usd_per_hour is not None:
        yield "price", f"{sheet.price_usd_per_hour:g} USD/h", ("price_usd_per_hour",)
    if sheet.features:
        yield "features", ", ".join(_feature(name, value) for name, value in sheet.features.items()), ("features",)
    for place, link in enumerate(sheet.links):
        ends = f"{link.source_id} {'<->' if link.bidirectional else '->'} {link.dest_id}"
        speed = f"{link.bytes_per_s / 1e9:g} GB/s, {link.latency_s * 1e6:g} us"
        yield f"link {link.link_id}", f"{ends}, {speed}", (f"links[{place}]",)


def _rate(rate: Rate) -> str:
    return f"{rate.tflops:.4g} TFLOP/s, {_best(rate.gflops_efficiency)} at best"


def _memory(memory: Memory) -> str:
    size = f"{memory.GiB:.4g} GiB" if memory.GiB >= 0.01 else _size(memory.GiB * 2**30)
    return f"{size} at {memory.GBps:.4g} GB/s, {_best(memory.MB_efficiency)} at best"


def _best(rows: Sequence[tuple[float, float]]) -> str:
    """Return the highest share of a peak that rows by size reach."""
    return f"{max(share for _, share in rows):.0%}"


def _network(tier: Network) -> str:
    ranks = "1 rank" if tier.size == 1 else f"{tier.size} ranks"
    return f"{tier.bandwidth:.4g} GB/s one way, {tier.efficiency:.0%} of it, {ranks}, {tier.latency * 1e6:.4g} us"


def _size(size_bytes: float) -> str:
    """Return a number of bytes in KiB or MiB."""
    return f"{size_bytes / _MIB:.4g} MiB" if size_bytes >= _MIB else f"{size_bytes / _KIB:.4g} KiB"


def _feature(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    shown = " x ".join(f"{item:g}" for item in value) if isinstance(value, tuple) else value
    return f"{name} {shown}"
