"""The options that commands share, and how they become arguments of `simulate`.

Which options there are beside the parameters of a run (`minitrain.run.parameters`), and what each means: which model is
trained on which machine, how operations are priced, which devices die, which files are written, and where sweeps run.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

import minitrain as mt
from minitrain.cli.failures import print_error
from minitrain.cli.generation import Given, Group
from minitrain.errors import StrategyError, UsageError
from minitrain.machine.config import load_config
from minitrain.machine.given_durations import FixedPredictor
from minitrain.machine.measured_layers import MeasuredLayers
from minitrain.machine.price import PRICING_PARAMETERS
from minitrain.run.analysis.labels import COUNT_UNITS
from minitrain.run.parameters import (
    AUTO,
    DEFAULTS,
    EXCLUSIONS,
    LOGS,
    MACHINE,
    MOST,
    OF_TRANSFORMER,
    OPTIONS,
    OUTPUT,
    WORKERS,
    RunParameters,
    cluster_or_other,
    count,
    documented,
    is_cluster,
    parameter,
    split_keywords,
)
from minitrain.run.strategy_loading import (
    ChosenStrategy,
    choose_strategy,
    did_you_mean,
    literal,
    load_strategy,
    takes_option,
)
from minitrain.search.sweeps.executors import require_workers
from minitrain.workloads.matmul import DENSE

DEFAULT = RunParameters()
_TRAINED = "compare run sweep goodput prove train"
_PRINTING = "diff compare run sweep tune plan goodput prove train validate"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """Options of several commands that are no parameters of a run. Nothing is made of this class.

    Args:
        microbatch_size: Samples a microbatch; batch / world size by default.
        option: An option of the strategy; repeat it for more.
        cost_per_hour: What a device costs an hour; the hardware config's price by default.
        tokens: Say the days, dollars and energy of training on so many tokens, such as 15T or 300B.
        durations: Durations by hand instead of hardware, such as forward=1,backward=2; all others last 0.
        as_json: Print JSON instead of a table.
        out: Folder to write traces into.
        trace: Write traces.
        jobs: Processes; one a core by default.
        dask: Run on the Dask scheduler at tcp://host:8786.
        ray: Run on Ray: auto, host:6379 or ray://host:10001.
        time_limit: A configuration that takes longer is a failed row.
        results: JSON Lines file to write rows into, and to go on from.
        html: Write a page.
    """

    microbatch_size: int | None = count(
        None, "--microbatch-size", "--microbatch", commands=_TRAINED, most=MOST["global_batch_size"]
    )
    option: Any = parameter(None, "--option", "-o", commands=_TRAINED, kind=list, metavar="NAME=VALUE")
    cost_per_hour: float | None = parameter(
        None, "--cost-per-hour", commands="compare run tune", kind=float, metavar="USD", least=0, panel=MACHINE
    )
    tokens: str | None = parameter(None, "--tokens", commands="compare run tune", metavar="N")
    durations: str | None = parameter(None, "--durations", commands="compare run", metavar="TYPE=S,...", panel=MACHINE)
    as_json: bool = parameter(False, "--json", commands=_PRINTING, kind=bool, panel=OUTPUT)
    out: Path = parameter(Path("traces"), "--out", commands="compare run", kind=Path, metavar="PATH", panel=OUTPUT)
    trace: bool | None = parameter(
        None,
        "--trace/--no-trace",
        commands="compare run",
        kind=bool,
        panel=OUTPUT,
        shown="trace, unless --log summary; with --fold, pages alone",
    )
    jobs: int | None = parameter(
        None, "--jobs", "-j", commands="sweep tune", kind=int, metavar="N", least=1, most=1024, panel=WORKERS
    )
    dask: str | None = parameter(None, "--dask", commands="sweep tune", metavar="ADDRESS", panel=WORKERS)
    ray: str | None = parameter(None, "--ray", commands="sweep tune", metavar="ADDRESS", panel=WORKERS)
    time_limit: float | None = parameter(
        None, "--time-limit", commands="sweep tune", kind=float, metavar="SECONDS", panel=WORKERS
    )
    results: Path | None = parameter(None, "--results", commands="sweep tune", kind=Path, metavar="FILE", panel=OUTPUT)
    html: Path | None = parameter(None, "--html", commands="", kind=Path, metavar="PAGE", panel=OUTPUT)


Count = Annotated[int, typer.Option(min=1)]
"""A number of things."""
SHARED = dict((*documented(RunParameters), *documented(SharedOptions)))


def group(about: str, **more: Any) -> Group:
    """Return a group of commands that may have shared options."""
    return Group(about, SHARED, **more)


def trained(given: Given, num_layers: int | None = DEFAULT.num_layers) -> dict[str, Any]:
    """Return what is trained, as arguments of `simulate`.

    Args:
        given: the options.
        num_layers: where neither a model nor layers are given.

    Raises:
        UsageError: the options exclude each other.
    """
    layers, model = given.num_layers, given.workload
    of_transformer = of_given(given, *OF_TRANSFORMER)
    if model is None:
        for name in of_transformer:
            raise UsageError(f"{OPTIONS[name].short} is for transformers; give --model too, or leave it out")
        return {"num_layers": num_layers if layers is None else layers}
    if model == DENSE and not of_transformer:
        return {"workload": DENSE, "num_layers": num_layers if layers is None else layers}
    if layers is not None:
        raise UsageError(f"--layers does not go with --model, since {model} has layers of its own; leave one out")
    return {"workload": model, **of_transformer}


def of_given(given: Given, *names: str) -> dict[str, Any]:
    """Return some of the options by name: those that are given."""
    found = {name: getattr(given, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def batch_of(given: Given) -> dict[str, Any]:
    """Return the samples of the step and of its replicas, as arguments of `simulate`.

    >>> batch_of(Given(global_batch_size=None, shares="12,4"))
    {'shares': (12, 4), 'global_batch_size': 16}

    Raises:
        UsageError: the shares are no whole numbers, or add up to another batch.
    """
    batch, shares = given.global_batch_size, getattr(given, "shares", None)
    if shares is None:
        return {"global_batch_size": DEFAULT.global_batch_size if batch is None else batch}
    parts = [part.strip() for part in shares.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--shares takes the samples of each replica, as in --shares 12,4; got {shares!r:.80}")
    samples = tuple(map(int, parts))
    if batch not in (None, sum(samples)):
        raise UsageError(f"--shares add up to {sum(samples)}, and --batch is {batch}; leave --batch out")
    return {"shares": samples, "global_batch_size": sum(samples)}


def strategy_options(given: Given) -> dict[str, Any]:
    """Return the strategy's options: values are Python literals, or else text.

    >>> strategy_options(Given(option=["num_chunks=2", "order=breadth_first"], microbatch_size=4))
    {'microbatch_size': 4, 'num_chunks': 2, 'order': 'breadth_first'}
    """
    options = of_given(given, "microbatch_size")
    for pair in given.option or ():
        name, value = name_and_value("--option", pair, options)
        if name in DEFAULTS or name in ("strategy", "options"):  # as `simulate` calls them
            own = f"use {OPTIONS[name].short}" if name in OPTIONS else "it is set in Python only"
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


def terms_of(text: str | None) -> tuple[str, ...]:
    """Return the terms between commas."""
    return tuple(term.strip() for term in (text or "").split(",") if term.strip())


def pricing(given: Given) -> dict[str, Any]:
    """Return how operations are priced, as arguments of `simulate`; nothing where that is the default."""
    found = of_given(given, *PRICING_PARAMETERS)
    if "without" in found:
        found["without"] = terms_of(given.without)
    if "prices" in found:
        found["prices"] = measured_layers(given.prices)
    return {name: value for name, value in found.items() if value != DEFAULTS[name]}


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


def machine(given: Given, trained: Mapping[str, Any], hardware: Any = None, *, by_name: bool = False) -> dict[str, Any]:
    """Return the ranks and what prices their operations, as arguments of `simulate`.

    Args:
        given: the options; of a cluster, a rank for each device where they name no number of ranks.
        trained: what is trained; a transformer's prices follow from the strategy too, so that its hardware is named.
        hardware: one of the machines that are named, at a price of its own; None for the default.
        by_name: give the hardware itself instead of a predictor, which is for one number of ranks.

    Raises:
        UsageError: the options exclude each other.
        HardwareConfigError: the config cannot be found or read, or is invalid.
    """
    priced_by = pricing(given)
    if getattr(given, "durations", None) is not None:
        for name, value in {"hardware": hardware, "network": given.network, **priced_by}.items():
            if value is not None:
                option = OPTIONS[name].short
                raise UsageError(f"--durations stands for a machine of its own; give it or {option}, not both")
        by_hand = FixedPredictor(**parse_durations(given.durations))
        return {"world_size": given.world_size or DEFAULT.world_size, "hardware": by_hand}
    kind = DEFAULT.network if given.network is None else given.network
    named = {"hardware": named_hardware(hardware), "network": kind, **priced_by}
    parameters, _ = split_keywords({**named, **of_given(given, "world_size"), **trained})
    predictor = parameters.predictor()
    is_named = by_name or getattr(parameters.workload, "model", None) is not None
    return {"world_size": parameters.world_size, **(named if is_named else {"hardware": predictor})}


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


def checking(given: Given) -> dict[str, Any]:
    """Return how closely ranks are followed, and whether all are, as arguments of `simulate`."""
    steps = getattr(given, "steps", None) or DEFAULT.steps
    return {"strict_memory": given.strict_memory, "fold": AUTO if given.fold is None else given.fold, "steps": steps}


def wanted_traces(given: Given) -> Traces:
    """Return which traces are to be written: all where events are kept, and pages alone where ranks are folded.

    Of a folded run, --trace asks for the files that have every rank.

    Raises:
        UsageError: there is no such log, or another option needs every event.
    """
    log = DEFAULT.log if given.log is None else given.log
    if log not in LOGS:
        raise UsageError(f"--log must be full or summary, got {log!r}")
    excluded = EXCLUSIONS["log"].found({"log": log, "memory_by_kind": given.trace, "strict": given.strict})
    for name, flag in (("memory_by_kind", "--trace"), ("strict", "--strict")):
        if name in excluded:
            raise UsageError(f"{flag} needs every event, but --log {log} keeps totals; leave one out")
    if given.fold and log != "full":
        raise UsageError(f"--fold does not go with --log {log}; leave one out")
    if EXCLUSIONS["fold"].found({"fold": given.fold, "strict": given.strict}):
        raise UsageError("--strict needs every rank, but --fold simulates ranks that do the same once; leave one out")
    if log != "full" or given.trace is False:
        return Traces.NONE
    return Traces.PAGES if given.fold and given.trace is None else Traces.ALL


_SCALES = {letter: scale for scale, letter in COUNT_UNITS}


def tokens_of(text: str | None, *, has_model: bool) -> float | None:
    """Return how many tokens an option asks for.

    >>> tokens_of("15T", has_model=True), tokens_of("0.5B", has_model=True)
    (15000000000000.0, 500000000.0)

    Raises:
        UsageError: it is no number, or what is trained counts no tokens.
    """
    if text is None:
        return None
    if not has_model:
        raise UsageError("--tokens is for transformers; give --model too, or leave it out")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?)", text.strip().upper())
    if found is None or not float(found[1]):
        raise UsageError(f"--tokens takes a number with K, M, B or T, as in 15T; got {text!r:.80}")
    return float(found[1]) * _SCALES[found[2]]


def at_cost(hardware: str | None, given: Given) -> Any:
    """Return a machine of --hw, with a price of its own where one is given.

    Raises:
        UsageError: a cluster has devices of several prices.
        HardwareConfigError: the config cannot be found or read, or is invalid.
    """
    usd_per_hour = given.cost_per_hour
    if usd_per_hour is None:
        return hardware
    if is_cluster(cluster_or_other(named_hardware(hardware))):
        raise UsageError("--cost-per-hour is for one kind of device; write prices into the configs of a cluster")
    config = load_config(named_hardware(hardware))
    return replace(config, sheet=replace(config.sheet, price_usd_per_hour=usd_per_hour))


def machines_of(hardware: str | None) -> list[str | None]:
    """Return the machines that --hw names, separated by commas.

    >>> machines_of("a100_80g,h100_80g_nvl8")
    ['a100_80g', 'h100_80g_nvl8']
    """
    if hardware is None or "," not in hardware or Path(hardware).exists():
        return [hardware]
    return [name.strip() for name in hardware.split(",") if name.strip()]


def faults_of(texts: Sequence[str] | None) -> list[mt.Fault]:
    """Return the faults that options name.

    >>> faults_of(["5@0.02"])
    [Fault(rank=5, at_s=0.02)]

    Raises:
        UsageError: a text is none.
    """
    found = []
    for text in texts or ():
        rank, _, seconds = text.partition("@")
        try:
            found.append(mt.Fault(int(rank), float(seconds)))
        except ValueError:
            raise UsageError(f"--fault takes RANK@SECONDS, as in --fault 5@0.02; got {text!r:.80}") from None
    return found


def recovery_of(texts: Sequence[str] | None) -> mt.Recovery | None:
    """Return what happens after a failure, as options say it; None without any.

    >>> recovery_of(["spares=2", "elastic=true"]).spares
    2

    Raises:
        UsageError: there is no such name, or a value is outside its rule.
    """
    named: dict[str, Any] = {}
    kinds = {each.name: each.type for each in fields(mt.Recovery)}
    for text in texts or ():
        name, value = name_and_value("--recovery", text, named)
        if name not in kinds:
            hint = did_you_mean(name, kinds) or f"; use one of {', '.join(kinds)}"
            raise UsageError(f"--recovery: there is no {name}{hint}")
        named[name] = _value_of(name, value, str(kinds[name]))
    return mt.Recovery(**named) if named else None


def _value_of(name: str, value: str, kind: str) -> Any:
    """Return the value of a field as its kind."""
    try:
        if kind == "bool":
            return {"true": True, "false": False}[value.lower()]
        return int(value) if kind == "int" else float(value)
    except (KeyError, ValueError):
        wanted = {"bool": "true or false", "int": "a whole number"}.get(kind, "a number")
        raise UsageError(f"--recovery: {name} takes {wanted}, got {value!r:.80}") from None


def executor_of(given: Given) -> str | None:
    """Return the executor of `sweep` and `tune`.

    Raises:
        UsageError: more than one place is given, or what is given is no address.

    >>> executor_of(Given(ray="auto")), executor_of(Given(dask="tcp://10.0.0.1:8786"))
    ('ray:auto', 'tcp://10.0.0.1:8786')
    """
    places = of_given(given, "dask", "ray", "jobs")
    if len(places) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in places)} say where to run; give one of them")
    dask, ray = places.get("dask"), places.get("ray")
    if ray is not None:
        return ray if ray.startswith("ray://") else f"ray:{ray}"
    if dask is not None and "://" not in dask:
        raise UsageError(f"--dask takes the address of a scheduler, such as tcp://host:8786, got {dask!r}")
    require_workers(dask)
    return dask


@contextlib.contextmanager
def saying_warnings(kind: type[Warning]) -> Iterator[None]:
    """Say warnings of a kind on stderr, in a line each."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", kind)
        shown: Any = warnings.showwarning

        def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
            if issubclass(category, kind):
                print_error(str(message))
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        yield
