"""The commands `minitrain hw`: hardware configs are listed, shown, checked, measured and compared with this machine.

Two make files of one's own measurements: `fit-platform` a platform for `run`, `compare` and `tune` of measured runs,
and `layers-from-trace` a table of layer times of a profiler's trace.

`show` has a config in some twenty lines: its main figures with units. `figures` has every figure and its source in
full. A line of `show` stands for several figures, and says of their sources only the kinds: published (data sheets,
papers, public files), measured, fitted, derived, assumed.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from minitrain.cli.failures import FAILED, USAGE, print_error
from minitrain.cli.options import Count, group, require_file
from minitrain.cli.output import Counted, Progress, print_json, print_lines, print_table
from minitrain.errors import HardwareConfigError, UsageError
from minitrain.files import key_path, write_text
from minitrain.machine import SystemConfig, load_config, shipped_configs
from minitrain.machine.cluster import Cluster, names_cluster
from minitrain.machine.config import (
    LIKE,
    every_fault,
    is_shipped,
    machine_data,
    machine_name,
    machine_names,
    parse,
    read_file,
    shipped_clusters,
    shipped_text,
    unit_of,
)
from minitrain.machine.given_durations import Calibration, names_calibration
from minitrain.machine.measured_layers import write_layers
from minitrain.plain_text import printable
from minitrain.run.parameters import cluster_or_other
from minitrain.view.tables import filled_table
from minitrain.workloads.matmul import DenseRows

if TYPE_CHECKING:
    from minitrain.evidence.fitting import FittedPlatform
    from minitrain.machine.device import DataSheet, Memory, Rate
    from minitrain.machine.network import Network


def fit_platform(
    runs: list[Path],
    *,
    name: str = "mine",
    start: str | None = None,
    numbers: str | None = None,
    jobs: int | None = None,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Fit a platform to measured runs, for `--platform FILE.json` of run, compare and tune.

    Only numbers that predict runs better which were left out are fitted. The errors of these say how sure a prediction
    is that the platform makes.

    Args:
        runs (RUNS.csv): Measured runs, in the columns of validate --template.
        name (NAME): What the platform is called.
        start (NAME): The platform to begin with; that of the framework by default.
        numbers (NAME,...): The numbers that may be fitted, such as clock,eager.
        jobs (N): Processes; one a core by default.
        out (FILE.json): The file to write; NAME.json by default.
        as_json: Print JSON instead of a table.
    """
    from minitrain.evidence.fitting import NUMBERS, fit_platform  # noqa: PLC0415  (only for this command)

    wanted = NUMBERS if numbers is None else [each.strip() for each in numbers.split(",") if each.strip()]
    with Progress() as progress:
        tell = Counted(progress, lambda _, done, __: f"{done} steps simulated")
        fitted = fit_platform(runs, name=name, start=start, numbers=wanted, jobs=jobs, progress=tell)
    written = fitted.platform.write(out or Path(f"{name}.json"))
    if as_json:
        print_json({**_summary(fitted), "file": str(written)})
        return
    print_table(_numbers_table(fitted))
    print_lines(_lines(fitted, written))


def _summary(fitted: FittedPlatform) -> dict[str, object]:
    """Return a fit as plain values."""
    return {
        "platform": fitted.platform.name,
        "numbers": fitted.platform.numbers(),
        "intervals": fitted.intervals,
        "mean_error_before": fitted.before,
        "mean_error": fitted.after,
        "mean_error_left_out": fitted.left_out,
        "fitted_error": fitted.platform.fitted_error,
        "rows": list(fitted.rows),
        "skipped": [{"table": each.table, "row_id": each.row_id, "reason": each.reason} for each in fitted.skipped],
    }


def _numbers_table(fitted: FittedPlatform) -> Table:
    """Return a row for each number of the platform."""
    rows = []
    for name, value in fitted.platform.numbers().items():
        interval = fitted.intervals.get(name)
        between = "" if interval is None else f"{interval[0]:.3g} to {interval[1]:.3g}"
        shown = f"{value:.3g}" if isinstance(value, float) else str(value)
        rows.append((Text(name), Text(printable(shown)), between))
    return filled_table({"number": 17, "value": 9, "nine in ten resampled": 14}, rows)


def _lines(fitted: FittedPlatform, written: Path) -> list[str]:
    """Return how good the fit is, and how it is used."""
    platform = fitted.platform
    skipped = [f"{len(fitted.skipped)} rows were not simulated: {fitted.skipped[0].reason}"] if fitted.skipped else []
    return [
        f"{printable(platform.fitted_on)}",
        f"mean error {fitted.before:.1%} before, {fitted.after:.1%} fitted, {fitted.left_out:.1%} of runs left out",
        *(printable(line) for line in skipped),
        f"wrote {printable(str(written))}; use it by --platform {printable(str(written))}",
    ]


def layers_from_trace(
    trace: Path,
    *,
    microbatch: Count,
    annotation: str | None = None,
    embedding: str | None = None,
    head: str | None = None,
    num_layers: Annotated[int | None, typer.Option(min=1)] = None,
    tp: Count = 1,
    model: str = "",
    gpu: str | None = None,
    out: Annotated[Path, typer.Option()] = Path("layers.csv"),
) -> None:
    """Read how long each layer keeps the device busy from a profiler's trace, for `--prices`.

    Profile whole training steps with the activities CPU and CUDA. Layers are found by ranges
    named "layer 0", by those of FSDP2, by calls of modules (with_stack=True), or by the order of kernels.

    Args:
        trace (TRACE): A chrome trace of the PyTorch profiler, or .json.gz.
        microbatch (N): Samples of a pass.
        annotation (NAME): A layer's range, such as "layer {layer}"; found by default.
        embedding (NAME): The embedding's range, which is then layer 0.
        head (NAME): The head's range, loss included: the last layer.
        num_layers (N): Layers of the model, where the trace shows fewer.
        tp (N): Tensor-parallel degree.
        model (NAME): What the table calls the model.
        gpu (NAME): What it calls the device; the trace's name by default.
        out (FILE): The table to write.
    """
    from minitrain.machine.profiler_traces import Marks, TracedLayers  # noqa: PLC0415  (only for this command)

    is_marked = annotation or embedding or head
    marks = Marks(annotation or "layer {layer}", embedding, head) if is_marked else None
    traced = TracedLayers.read(trace, marks)
    rows = traced.rows(microbatch=microbatch, tp=tp, model=model, gpu=gpu, num_layers=num_layers)
    write_layers(rows, out)
    num_rows = [row.last_layer - row.first_layer + 1 for row in rows]
    forward, backward, update = (
        sum(num * getattr(row, f"{kind}_s") for num, row in zip(num_rows, rows, strict=True)) for kind in _KINDS
    )
    totals = f"forward {forward * 1e3:.4g} ms, backward {backward * 1e3:.4g} ms, update {update * 1e3:.4g} ms"
    print_lines(
        [
            f"wrote {out}: {sum(num_rows)} layers, {totals}",
            f"found by {traced.found_by}: {traced.coverage:.0%} of the time of all kernels but communication's",
        ]
    )


_KINDS = ("forward", "backward", "update")


hw = group("List, show and check hardware configs.", no_args_is_help=True)

hw.define("layers-from-trace")(layers_from_trace)
hw.define("fit-platform")(fit_platform)


@hw.define("list")
def list_configs(*, as_json: bool = False) -> None:
    """List the shipped hardware configs.

    Args:
        as_json: Print JSON instead of a table.
    """
    if as_json:
        print_json(shipped_configs())
    else:
        print_table(_configs_table([load_config(name) for name in shipped_configs()]))
        more = {"clusters of unlike devices": shipped_clusters(), "clouds' machines": machine_names()}
        print_lines(f"{what}: {', '.join(names)}" for what, names in more.items() if names)  # learners' packages: none


@hw.define()
def show(config: str, *, sources: bool = False, as_json: bool = False) -> None:
    """Show one hardware config in short; with --sources every figure and where it comes from, with --json the file.

    Args:
        config (CONFIG): A shipped config's name or a file.
        sources: Every figure, by key path, with its source.
        as_json: Print JSON instead of a table.
    """
    if names_cluster(config):
        cluster = Cluster.load(config)
        print_json(cluster.data()) if as_json else print_lines(cluster.lines())
        return
    if names_calibration(config):
        found = Calibration.read(config)
        lines = [f"{found.machine}: {found.how_sure()}", found.warning, *found.runs]
        print_json(asdict(found)) if as_json else print_lines(filter(None, lines))
        return
    system, data = load_config(config), _raw(config)
    if as_json:
        print_json(data)
        return
    known = figures(data, sources_of(system.name) if is_shipped(config) else {})
    if sources:
        print_lines([system.name])
        rows = [(figure.path, figure.text, figure.source) for figure in known]
        print_table(_texts_table({"key path": 24, "figure": 18, "source": 28}, rows))
        return
    print_lines([title(system)])
    rows = [(what, text, kinds_of(_below(known, paths))) for what, text, paths in _rows(system)]
    print_table(_texts_table({"what": 16, "figure": 36, "source": 12}, rows))
    print_lines(_rest(config, known, data))


def _rest(config: str, found: Sequence[Figure], data: Mapping[str, Any]) -> list[str]:
    """Return what an overview leaves out, and how to see it."""
    from minitrain.machine.devices.calibration import noisiest  # noqa: PLC0415 - only for what calibrate wrote

    noises = list(noisiest(data)) if "measured" in data else []
    measured = [f"Measured here; noise, interquartile range over median: {_noise(noises)}."] if noises else []
    kinds = counted(found)
    counts = f"{len(found)} figures in all{f': {kinds}' if kinds else ''}."
    return [*measured, counts, f"`minitrain hw show {printable(config)} --sources` lists each of them."]


def _raw(config: str) -> Any:
    """Return the data in the file of a valid config."""
    if machine := machine_name(config):
        return machine_data(machine)
    name = config.removesuffix(".json")
    text = shipped_text(name) if is_shipped(config) else read_file(config)
    return parse(text, config)


@hw.define()
def check(configs: list[str] | None = None) -> None:
    """Check hardware configs, clusters and calibrations, and say every fault of each by its key path.

    Args:
        configs (CONFIG): Configs to check; all shipped ones if none is given.
    """
    faulty = False
    for config in configs or shipped_configs():
        try:
            if cluster_or_other(config) is config:  # neither a cluster nor a calibration, which it has read
                load_config(config)
        except (HardwareConfigError, UsageError) as error:
            print_error("\n".join(every_fault(error.path, error.faults)) if error.path else str(error))
            faulty = True
        else:
            print_lines([f"{config}: ok"])
    if faulty:
        raise typer.Exit(USAGE)


@hw.define()
def calibrate(
    *,
    out: Annotated[Path, typer.Option()] = Path("this_machine.json"),
    backend: str | None = None,
    strategy: list[str] | None = None,
    world_size: int = 2,
    num_layers: int = 8,
    global_batch_size: int = 64,
    width: Annotated[list[int] | None, typer.Option()] = None,
    workload: str | None = None,
    steps: int = 16,
    rounds: Count = 7,
) -> None:
    """Measure this machine and write a hardware config with what it reached.

    What was measured is kept beside the config until it is complete: after Ctrl-C, the same command goes on.

    On one core (taskset -c 0 minitrain hw calibrate), times are the processor's, so that a busy machine matters less.

    With --strategy, real processes take steps of it; --hardware FILE then prices other sizes and strategies, with an
    interval (docs/train.md).

    Args:
        out (PATH): The config to write.
        backend (NAME): What to measure with: jax (by default), numpy or torch; with --strategy, what connects ranks:
            gloo (by default), or nccl on GPUs.
        strategy (STRATEGY): Train by it; may be given several times, and the more the surer.
        world_size: Ranks, each a process here.
        num_layers: Dense layers.
        global_batch_size: Samples of a step.
        width (N): Of dense layers, of at least 256; may be given several times. 256 and 512 by default.
        workload: A small transformer instead, such as tiny.
        steps (N): Of each strategy at each size.
        rounds (N): Samples of each kernel, without --strategy; more take longer, and a noisy machine matters less.
    """
    require_file("--out", out)
    if strategy:
        sizes: dict[str, Any] = {"num_layers": num_layers} if workload is None else {"workload": workload}
        widths: Sequence[Any] = width or (256, 512) if workload is None else ()
        each = [{**sizes, "workload": DenseRows(one)} for one in widths] or [sizes]
        given: dict[str, Any] = {"world_size": world_size, "global_batch_size": global_batch_size, "steps": steps}
        given |= {"backend": backend or "gloo"}
        _calibrate_by_steps(strategy, each, given, out)
        return
    from minitrain.machine.devices.calibration import calibrate as measured  # noqa: PLC0415 - JAX is heavy
    from minitrain.machine.devices.calibration import noisiest  # noqa: PLC0415

    notes = out.with_name(f"{out.stem}.measurements.json")
    try:
        with Progress() as progress:
            config = measured(
                backend or "jax", notes=notes, progress=_teller(progress, "measuring"), num_samples=rounds
            )
    except KeyboardInterrupt:
        print_error(f"stopped; what was measured is in {notes}, and the same command goes on from there")
        raise
    write_text(out, [json.dumps(config, indent=1), "\n"])
    notes.unlink(missing_ok=True)
    print_lines(
        [f"{out}: {_reached(config)}", f"noise, interquartile range over median: {_noise(list(noisiest(config)))}"]
    )


def _calibrate_by_steps(
    strategies: Sequence[str], sizes: Sequence[Mapping[str, Any]], given: Mapping[str, Any], out: Path
) -> None:
    """Measure this machine by real steps, and write the calibration."""
    from minitrain.training.calibration import calibrate as measured  # noqa: PLC0415 - SciPy is heavy

    found = measured(strategies, sizes, watch=lambda done, of, what: print_lines([f"{done}/{of} {what}"]), **given)
    found.write(out)
    print_lines([f"{out}: {found.how_sure()}", *([found.warning] if found.warning else [])])


def _reached(config: Mapping[str, Any]) -> str:
    """Return the best rates of a calibrated config."""
    rates = [f"{unit} {config[unit]['float32']['tflops'] * 1e3:.4g} GFLOP/s" for unit in ("matrix", "vector")]
    others = (f"memory {config['mem1']['GBps']:.4g} GB/s", f"dispatch {config['dispatch_s'] * 1e6:.3g} us")
    return ", ".join((*rates, *others))


def _noise(noises: Sequence[tuple[str, float]]) -> str:
    """Return how noisy measurements were."""
    median = statistics.median(noise for _, noise in noises)
    name, most = noises[0]
    return f"{median:.1%} in the middle, {most:.1%} at most ({name})"


@hw.define()
def validate(config: str, *, phase: str = "all", rounds: Count = 7, as_json: bool = False) -> None:
    """Compare predictions for a config with this machine, and judge them: pass, fail or inconclusive.

    A config that was measured with torch is compared with torch's ResNet-50, BERT-base and GPT-2 small, others by JAX.

    Args:
        config (CONFIG): What `minitrain hw calibrate` wrote, on as many cores as now.
        phase (NAME): synthetic, models or all.
        rounds (N): Samples of each case.
        as_json: Print JSON instead of a table.
    """
    from minitrain.machine.devices.calibration import num_cpus  # noqa: PLC0415 - only for what calibrate wrote
    from minitrain.machine.devices.validation import validate as validated  # noqa: PLC0415 - JAX is heavy

    load_config(config)  # before anything is measured
    raw = _raw(config)
    if "measured" not in raw:
        print_error(f"{config} was not measured here: errors tell how far this machine is from it; see hw calibrate")
    elif raw.get("class") == "cpu" and raw.get("units") != num_cpus():
        print_error(f"{config} was measured on {raw.get('units')} cores, and this process may use {num_cpus()}")
    with Progress() as progress:
        report = validated(config, phase=phase, num_rounds=rounds, progress=_teller(progress, "comparing"))
    if as_json:
        print_json(report.as_json())
    else:
        print_lines(str(report).splitlines())
    if report.verdict == "fail":
        raise typer.Exit(FAILED)


def _teller(progress: Progress, doing: str) -> Callable[[int, int, str], None]:
    """Return a function that shows how far a measurement is."""
    return lambda done, total, name: progress.say(f"{doing} {name} ({done + 1} of {total})")


def _configs_table(systems: Sequence[SystemConfig]) -> Table:
    """Return one row a hardware config."""
    rows = []
    for system in systems:
        rate = system.matrix.get("float16")
        tiers = ", ".join(f"{tier.bandwidth:g} ({tier.size})" for tier in system.networks)
        peak = "-" if rate is None else f"{rate.tflops:g}"
        rows.append((Text(system.name), peak, _in_short(system.mem1.GiB), _in_short(system.mem1.GBps), tiers))
    heads = {"\nname": 15, "float16\nTFLOP/s": None, "HBM\nGiB": None, "HBM\nGB/s": None, "network\nGB/s (ranks)": 0}
    return filled_table(heads, rows)


def _in_short(amount: float) -> str:
    """Return an amount in whole numbers from 10 on, and a tiny one as less than 1."""
    if amount < 0.1:
        return "<1"
    return f"{amount:.0f}" if amount >= 10 else f"{amount:g}"


def _texts_table(columns: Mapping[str, int | None], rows: Sequence[tuple[str, str, str]]) -> Table:
    """Return a table of texts, without a last column that is empty."""
    if not any(row[-1] for row in rows):
        columns, rows = dict(list(columns.items())[:-1]), [row[:-1] for row in rows]  # type: ignore[misc]  # shorter
    return filled_table(columns, ([Text(printable(cell)) for cell in row] for row in rows))


_ROW = re.compile(r"^\| `([^`]+)` \| `[^`]+` \| (.+) \|$", re.MULTILINE)


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


def title(system: SystemConfig) -> str:
    """Return the name of a config, and what kind of device it is."""
    sheet = system.sheet
    units = f"{sheet.num_units} units" if sheet.num_units else ""
    clock = f"at {sheet.clock_Hz / 1e9:.4g} GHz" if sheet.clock_Hz else ""
    device = f"{(sheet.device_class or '').upper()} by {sheet.vendor}" if sheet.vendor else sheet.device_class or ""
    said = ", ".join(filter(None, (device, " ".join(filter(None, (units, clock))))))
    return f"{system.name}: {said}" if said else system.name


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
