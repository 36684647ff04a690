"""The options that commands share, and how they become arguments of `simulate`.

How the options that price a run become arguments: --hw, --network, --fidelity with its own, or --durations.

Which files are written and how ranks are folded, by --trace, --log, --strict and --fold together.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from minitrain.cli import failures
from minitrain.errors import StrategyError, UsageError
from minitrain.hardware.fixed_durations import FixedPredictor
from minitrain.hardware.measured_layers import MeasuredLayers
from minitrain.run.command_line import OPTIONS
from minitrain.run.parameters import AUTO, DEFAULTS, EXCLUSIONS, LOGS, RunParameters, split_keywords
from minitrain.run.strategy_loading import ChosenStrategy, choose_strategy, literal, load_strategy, takes_option
from minitrain.workloads.matmul import DENSE

DEFAULT = RunParameters()

# Larger than any run in practice; without a limit, a typing error could fill the memory.
MOST_RANKS, MOST_LAYERS, MOST_SAMPLES = 2**21, 2**17, 2**24

MODEL, _MACHINE, _OUTPUT = "Model and ranks", "Machine", "Output"


def _count_option(name: str, most: int, text: str, show_default: bool | str = True) -> Any:
    """Return the option of a number of ranks, layers or samples."""
    return typer.Option(name, metavar="N", min=1, max=most, help=text, show_default=show_default, rich_help_panel=MODEL)


def world_size_option(text: str, show_default: bool | str = True) -> Any:
    """Return the option `--world-size`."""
    return _count_option("--world-size", MOST_RANKS, text, show_default)


def batch_option(show_default: bool | str = True) -> Any:
    """Return the option `--batch`."""
    return _count_option("--batch", MOST_SAMPLES, "Samples of the step, over all ranks.", show_default)


def layers_option(show_default: str) -> Any:
    """Return the option `--layers`."""
    return _count_option("--layers", MOST_LAYERS, "Layers of the model.", show_default)


def model_option(text: str) -> Any:
    """Return the option `--model`."""
    return typer.Option("--model", metavar="NAME", help=text, rich_help_panel=MODEL)


WorldSize = Annotated[int, world_size_option("Number of ranks.")]
Layers = Annotated[int | None, layers_option(str(DEFAULT.num_layers))]
TrainedModel = Annotated[
    str | None,
    model_option(
        "A transformer instead of equal layers: a name (see `minitrain models`) or a Hugging Face config.json; dense "
        "for equal layers whose backward costs twice their forward."
    ),
]
SeqLen = Annotated[
    int | None,
    typer.Option(
        "--seq", metavar="N", min=1, help="Tokens a sample; the model's own by default.", rich_help_panel=MODEL
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="NAME",
        help="bf16, fp16, fp32, or fp8: multiplications with weights in eight bits, MFU still by the peak of sixteen; "
        "the model's own by default.",
        rich_help_panel=MODEL,
    ),
]
Batch = Annotated[int, batch_option()]
Microbatch = Annotated[
    int | None,
    _count_option("--microbatch", MOST_SAMPLES, "Samples a microbatch; batch / world size by default."),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="An option of the strategy; repeat it for more.",
        rich_help_panel=MODEL,
    ),
]
Hardware = Annotated[
    str | None,
    typer.Option(
        "--hw",
        metavar="CONFIG",
        help="A shipped hardware config (see `minitrain hw list`) or a file, also of a cluster of unlike devices.",
        show_default=DEFAULT.hardware,
        rich_help_panel=_MACHINE,
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="KIND",
        help="flat: one network tier for the run; hierarchical: the tier that each group needs; auto: flat within the "
        "smallest tier, else hierarchical.",
        show_default=DEFAULT.network,
        rich_help_panel=_MACHINE,
    ),
]
Durations = Annotated[
    str | None,
    typer.Option(
        "--durations",
        metavar="TYPE=S,...",
        help="Durations by hand instead of hardware, such as forward=1,backward=2; all others last 0.",
        rich_help_panel=_MACHINE,
    ),
]
Fidelity = Annotated[
    str | None,
    typer.Option(
        "--fidelity",
        metavar="KIND",
        help="roofline: FLOPs and bytes of a layer; kernels: each kernel and transfer by what devices were measured to "
        "reach.",
        show_default="kernels with --model, else roofline",
        rich_help_panel=_MACHINE,
    ),
]
Platform = Annotated[
    str | None,
    typer.Option(
        "--platform",
        metavar="NAME",
        help="With prices of kernels: the framework, or one of its platforms (see docs/accuracy.md); components: none.",
        show_default="what the strategy stands for",
        rich_help_panel=_MACHINE,
    ),
]
Without = Annotated[
    str | None,
    typer.Option(
        "--without",
        metavar="TERM,...",
        help="With prices of kernels: terms of the prices to leave out, such as waves,launches.",
        rich_help_panel=_MACHINE,
    ),
]
Prices = Annotated[
    str | None,
    typer.Option(
        "--prices",
        metavar="FILE.csv",
        help="Measured times of layers instead of computed ones; FILE.csv:gpu=NAME,model=NAME chooses rows.",
        rich_help_panel=_MACHINE,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Count every tensor alive, wherever it is kept, and accept only what operations gave.",
        rich_help_panel=MODEL,
    ),
]
StrictMemory = Annotated[
    bool,
    typer.Option(
        "--strict-memory", help="Fail when a rank holds more than the device's memory.", rich_help_panel=_MACHINE
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=_OUTPUT)]
Out = Annotated[Path, typer.Option("--out", help="Folder to write traces into.", rich_help_panel=_OUTPUT)]
SharedScript = Annotated[
    bool,
    typer.Option(
        "--shared-script",
        help="Let all pages share one plotly.min.js: 4.9 MB less each, but none can be moved without it.",
        rich_help_panel=_OUTPUT,
    ),
]
WriteTraces = Annotated[
    bool | None,
    typer.Option(
        "--trace/--no-trace",
        metavar="",
        help="Write traces.",
        show_default="trace, unless --log summary; with --fold, pages alone",
        rich_help_panel=_OUTPUT,
    ),
]
Log = Annotated[
    str,
    typer.Option(
        "--log",
        metavar="KIND",
        help="full: keep every event; summary: keep totals, in memory that does not grow with events.",
        rich_help_panel=_MACHINE,
    ),
]
Fold = Annotated[
    bool | None,
    typer.Option(
        "--fold/--no-fold",
        metavar="",
        help="Simulate ranks that do the same once: the same figures much sooner; pages have a row for each class.",
        show_default="for shipped strategies, with a row for each rank",
        rich_help_panel=_MACHINE,
    ),
]
Debug = failures.Debug

_NO_OPTIONS = ("strategy", "options")  # as `simulate` calls them


def trained(model: str | None, seq_len: int | None, layers: int | None, precision: Any = None) -> dict[str, Any]:
    """Return what is trained, as arguments of `simulate`.

    Raises:
        UsageError: the options exclude each other.
    """
    found = {"seq_len": seq_len, "precision": precision}
    of_transformer = {name: value for name, value in found.items() if value is not None}
    if model is None:
        for name in of_transformer:
            raise UsageError(f"{OPTIONS[name]} is for transformers; give --model too, or leave it out")
        return {"num_layers": DEFAULT.num_layers if layers is None else layers}
    if model == DENSE and not of_transformer:
        return {"workload": DENSE, "num_layers": DEFAULT.num_layers if layers is None else layers}
    if layers is not None:
        raise UsageError(f"--layers does not go with --model, since {model} has layers of its own; leave one out")
    return {"workload": model, **of_transformer}


def strategy_options(pairs: Sequence[str], microbatch_size: int | None) -> dict[str, Any]:
    """Return the strategy's options: values are Python literals, or else text.

    >>> strategy_options(["num_chunks=2", "order=breadth_first"], microbatch_size=4)
    {'microbatch_size': 4, 'num_chunks': 2, 'order': 'breadth_first'}
    """
    options: dict[str, Any] = {} if microbatch_size is None else {"microbatch_size": microbatch_size}
    for pair in pairs:
        name, value = name_and_value("--option", pair, options)
        if name in DEFAULTS or name in _NO_OPTIONS:
            own = f"use {OPTIONS[name]}" if name in OPTIONS else "it is set in Python only"
            raise UsageError(f"--option: {name} is no option of a strategy; {own}")
        options[name] = literal(value)
    return options


def name_and_value(option: str, text: str, given: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and value of "name=value"; a name may be given once."""
    name, equals, value = text.partition("=")
    name, value = name.strip(), value.strip()
    if not equals or not name.isidentifier() or not value:
        raise UsageError(f"{option} takes name=value, got {text!r}")
    if name in given:
        raise UsageError(f"{option}: {name} is given twice")
    return name, value


def choose_strategies(names: Sequence[str], common: Mapping[str, Any]) -> list[ChosenStrategy]:
    """Return strategies by name, "path.py:function" or either with options; each must take the common options too.

    Raises:
        StrategyError: a strategy cannot be found, loaded, or called so.
    """
    found = [_named_by_its_function(choose_strategy(name)) for name in names]
    for chosen in found:
        try:
            chosen.options_with(common, DEFAULTS)
        except StrategyError as error:
            raise _with_remedy(error, found, common) from error
    return found


def _named_by_its_function(chosen: ChosenStrategy) -> ChosenStrategy:
    """Return a strategy under the name that its function has, whatever its file calls it."""
    name, _ = load_strategy(chosen.function)
    return replace(chosen, name=name, label=f"{name}{chosen.label.removeprefix(chosen.name)}")


def _with_remedy(error: StrategyError, found: Sequence[ChosenStrategy], common: Mapping[str, Any]) -> StrategyError:
    """Return an error that says how to give an option to one of several strategies, if one of them takes it."""
    takers = [(chosen, name) for name in common for chosen in found if takes_option(chosen.function, name)]
    if len(found) == 1 or not takers:
        return error
    chosen, name = takers[0]
    return StrategyError(f"{error}; an option for one strategy is written {chosen.name}:{name}={common[name]}")


def named_hardware(name: Any) -> Any:
    """Return the hardware of --hw: the default only where the option is not given."""
    return str(DEFAULT.hardware) if name is None else name


def require_file(option: str, path: Path | None) -> None:
    """Require that a file can be written, or its folder made, before the work begins that it is to hold.

    Raises:
        UsageError: there is something else in the way.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{option} must be a file, but {path} is a folder; name a file in it")
    there = next((place for place in path.parents if place.exists()), None)
    if there is not None and not (there.is_dir() and os.access(there, os.W_OK)):
        raise UsageError(f"{option} cannot be written into {there}; name a file in a folder of yours")


def require_folder(path: Path) -> None:
    """Require that a path is a folder, or can become one.

    Raises:
        UsageError: there is something else.
    """
    for place in (path, *path.parents):
        if place.is_dir():
            return
        if place.exists():
            raise UsageError(f"--out must be a folder, but {place} is none; name another one")


def pricing(fidelity: str | None, platform: str | None, without: str | None, prices: str | None) -> dict[str, Any]:
    """Return how operations are priced, as arguments of `simulate`; nothing where that is the default."""
    terms = tuple(term.strip() for term in without.split(",")) if without else ()
    layers = None if prices is None else measured_layers(prices)
    given = {"fidelity": fidelity, "platform": platform, "without": terms, "prices": layers}
    return {name: value for name, value in given.items() if value != DEFAULTS[name]}


def measured_layers(text: str) -> MeasuredLayers:
    """Return the measured times of layers that "FILE.csv" or "FILE.csv:gpu=NAME,model=NAME" means.

    Raises:
        UsageError: it is written otherwise, or the table cannot be read.
    """
    path, chosen = text, ""
    if not Path(text).exists():
        path, _, chosen = text.partition(":")
    columns: dict[str, Any] = {}
    for part in filter(None, chosen.split(",")):
        name, value = name_and_value("--prices", part, columns)
        if name not in ("gpu", "model"):
            raise UsageError(
                f"--prices chooses rows by gpu and model, got {name!r}; write FILE.csv:gpu=NAME,model=NAME"
            )
        columns[name] = value
    return MeasuredLayers.read(path, **columns)


def machine(
    world_size: int | None,
    hardware: Any,
    network: str | None,
    durations: str | None,
    priced_by: Mapping[str, Any],
    trained: Mapping[str, Any],
    *,
    by_name: bool = False,
) -> dict[str, Any]:
    """Return the ranks and what prices their operations, as arguments of `simulate`.

    Args:
        world_size: number of ranks; of a cluster, a rank for each device if None.
        hardware: the config or cluster.
        network: its kind.
        durations: durations by hand instead of hardware.
        priced_by: how operations are priced.
        trained: what is trained; a transformer's prices follow from the strategy too, so that its hardware is named.
        by_name: give the hardware itself instead of a predictor, which is for one number of ranks.

    Raises:
        UsageError: the options exclude each other.
        HardwareConfigError: the config cannot be found or read, or is invalid.
    """
    if durations is not None:
        _require_none({"hardware": hardware, "network": network, **priced_by})
        by_hand = FixedPredictor(**parse_durations(durations))
        return {"world_size": world_size or DEFAULT.world_size, "hardware": by_hand}
    kind = DEFAULT.network if network is None else network
    named = {"hardware": named_hardware(hardware), "network": kind, **priced_by}
    ranks = {} if world_size is None else {"world_size": world_size}
    parameters, _ = split_keywords({**named, **ranks, **trained})
    predictor = parameters.predictor()
    is_named = by_name or getattr(parameters.workload, "model", None) is not None
    return {"world_size": parameters.world_size, **(named if is_named else {"hardware": predictor})}


def _require_none(of_machine: Mapping[str, Any]) -> None:
    """Require that no machine is given beside --durations, which stand for one."""
    for name, value in of_machine.items():
        if value is not None:
            raise UsageError(f"--durations stands for a machine of its own; give it or {OPTIONS[name]}, not both")


def parse_durations(text: str) -> dict[str, float]:
    """Return the durations by event type, s.

    >>> parse_durations("forward=1,backward=2e-3")
    {'forward': 1.0, 'backward': 0.002}
    """
    durations: dict[str, float] = {}
    for part in text.split(","):
        typ, value = name_and_value("--durations", part.strip(), durations)
        try:
            durations[typ] = float(value)
        except ValueError:
            durations[typ] = math.nan
        if not 0 <= durations[typ] < math.inf:
            raise UsageError(f"--durations: {typ} must last a number of seconds of at least 0, got {value!r}")
    return durations


class Traces(Enum):
    """What is written of a run: nothing, its page alone, or page, Chrome trace and event log."""

    NONE = 0
    PAGES = 1
    ALL = 2


def folding(fold: bool | None) -> bool | str:
    """Return the parameter of `simulate` for --fold, --no-fold or neither."""
    return AUTO if fold is None else fold


def wanted_traces(trace: bool | None, log: str, *, strict: bool, fold: bool | None) -> Traces:
    """Return which traces are to be written: all where events are kept, and pages alone where ranks are folded.

    Of a folded run, --trace asks for the files that have every rank.

    Raises:
        UsageError: there is no such log, or another option needs every event.
    """
    if log not in LOGS:
        raise UsageError(f"--log must be full or summary, got {log!r}")
    excluded = EXCLUSIONS["log"].found({"log": log, "memory_by_kind": trace, "strict": strict})
    for name, option in (("memory_by_kind", "--trace"), ("strict", OPTIONS["strict"])):
        if name in excluded:
            raise UsageError(f"{option} needs every event, but --log {log} keeps totals; leave one out")
    if fold and log != "full":
        raise UsageError(f"--fold does not go with --log {log}; leave one out")
    if EXCLUSIONS["fold"].found({"fold": fold, "strict": strict}):
        raise UsageError(
            f"{OPTIONS['strict']} needs every rank, but --fold simulates ranks that do the same once; leave one out"
        )
    if log != "full" or trace is False:
        return Traces.NONE
    return Traces.PAGES if fold and trace is None else Traces.ALL
