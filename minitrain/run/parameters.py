"""The parameters of a run as one value: each once, with its type, default, rule, meaning, and options.

A new parameter is a new field of `RunParameters`, documented there. All who take parameters read them here: `simulate`,
`compare`, `sweep`, `prove` and folding; type checkers and editors (`minitrain.run.simulation`); and the command line
(`minitrain.cli.options`), where a parameter has the options that its field names, in the commands that it names, with
the meaning that the docstring of `RunParameters` gives it. `command_of` writes a run as such a command.

- `EXCLUSIONS` has what excludes each other. Folding that is asked for excludes what tells ranks apart. Folding that
  happens by itself ("auto") excludes nothing: a run with such a parameter simulates every rank.
- `PRICE_ONLY` has those that change prices alone, so that sweeps and `mt.price` know which configurations share a run.
- `Fault`, `FaultRate` and `Recovery` say which devices fail, and how long recovery takes. A step in which devices fail
  is simulated in `minitrain.whatif.disturbed_run`, long runs in `minitrain.whatif.goodput`.

For example:

    run = mt.simulate("ddp", ..., faults=[mt.Fault(rank=5, at_s=0.02)], recovery=mt.Recovery(spares=1))
"""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from minitrain.engine.observers import Executor, Observer
from minitrain.engine.semantics import Shares
from minitrain.errors import UsageError, require_count, require_number, typed
from minitrain.machine.config import is_shipped
from minitrain.machine.device import mtbf_hours_of, require_mtbf
from minitrain.machine.predictor import make_predictor, require_default
from minitrain.machine.price import PRICING_PARAMETERS, USUAL, Predictor, Pricing, RankPredictors
from minitrain.plain_text import meanings_of
from minitrain.run.contention import EXACT, require_contention
from minitrain.run.strategy_loading import split_options

if TYPE_CHECKING:
    from minitrain.machine.cluster import Cluster
    from minitrain.machine.config import SystemConfig
    from minitrain.machine.given_durations import Calibration
    from minitrain.machine.measured_layers import MeasuredLayers
    from minitrain.machine.platforms import StandsFor

    class SharedPlatform(Protocol):
        """A `minitrain.platform.VirtualHardwarePlatform`, which is of a room above."""

        @property
        def profile(self) -> Any:
            """What it is made of."""

    Hardware = (
        str
        | PathLike[str]
        | Mapping[str, Any]
        | SystemConfig
        | Predictor
        | RankPredictors
        | SharedPlatform
        | Cluster
        | Calibration
    )


AUTO = "auto"


def require_fold(fold: Any) -> None:
    """Require a value that `fold` may have.

    Raises:
        UsageError: it is another one.
    """
    if not (fold is True or fold is False or fold == AUTO):
        raise UsageError(f'fold must be True, False or "auto", got {fold!r:.80}', fold=fold)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A parameter that, with some of its values, does not go together with others.

    Args:
        name: the parameter.
        value: the value that excludes others; any true value if None.
        others: parameters that must not be given beside it.
        spelling: parameter and value as messages name them.
        reason: why, to follow the others' names.
    """

    name: str
    value: Any
    others: tuple[str, ...]
    spelling: str
    reason: str = ""

    def found(self, given: Mapping[str, Any]) -> list[str]:
        """Return the parameters among some given ones that are excluded, in the order of the table."""
        value = given.get(self.name)
        if not (is_given(self.name, value) if self.value is None else value == self.value):
            return []
        return [name for name in self.others if is_given(name, given.get(name))]

    def require(self, given: Mapping[str, Any]) -> None:
        """Require that nothing excluded is among some parameters.

        Raises:
            UsageError: something is.
        """
        excluded = self.found(given)
        if excluded:
            message = f"{self.spelling} does not go with {', '.join(excluded)}{self.reason}; leave one out"
            raise UsageError(message, **{self.name: given[self.name]})


def is_given(name: str, value: Any) -> bool:
    """Return whether a parameter asks for something."""
    if name == "steps":
        return value is not None and value > 1
    if name == "contention":
        return bool(value) and value != AUTO
    return value is True if name == "fold" else bool(value)


_NOT_FOR_TOTALS = (
    *("fold", "contention", "strict", "numerics", "execution", "memory_by_kind", "observers", "faults", "steps"),
)
_TELL_RANKS_APART = ("slowdown", "strict", "numerics", "execution", "observers", "faults")
_OF_ONE_STEP = ("contention", "numerics", "execution", "observers", "faults")
_NOT_AGAIN = ("strict", "numerics", "execution", "memory_by_kind", "observers")

EXCLUSIONS: Mapping[str, Exclusion] = MappingProxyType(
    {
        "log": Exclusion("log", "summary", _NOT_FOR_TOTALS, 'log="summary"'),
        "faults": Exclusion("faults", None, _NOT_AGAIN, "faults"),
        "execution": Exclusion("execution", None, ("numerics",), "execution"),
        "steps": Exclusion("steps", None, _OF_ONE_STEP, "steps", ", which follow one step"),
        "fold": Exclusion("fold", None, _TELL_RANKS_APART, "fold=True", ", which tells ranks apart"),
    }
)
"""What excludes each other, by the parameter that excludes the others."""


SIZES = ("world_size", "num_layers", "global_batch_size")
PRICE_ONLY = (
    "hardware",
    "network",
    "placement",
    "fidelity",
    "platform",
    "without",
    "prices",
    "collectives",
    "slowdown",
)
"""Parameters that change how long operations take, but not which operations there are."""
OF_TRANSFORMER = ("seq_len", "precision", "lora", "frozen_layers", "documents", "ema")
"""Parameters that change what is trained, where that is a transformer."""
LOGS = ("full", "summary")


MODEL, MACHINE, OUTPUT, WORKERS, FAILURES = "Model and ranks", "Machine", "Output", "Workers", "Failures"
"""Headings of options in the help of commands."""

# Larger than any run in practice; without a limit, a typing error could fill the memory.
MOST = {"world_size": 2**21, "num_layers": 2**17, "global_batch_size": 2**24, "steps": 2**24}


@dataclass(frozen=True, slots=True)
class Option:
    """How the command line has a parameter.

    Args:
        flags: how it is written, the name of the parameter first; messages and printed commands use the last.
        commands: those that have it, between spaces.
        kind: what its text is read as; of `list`, several texts.
        metavar: what stands for its value in the help.
        panel: the heading that it stands under there.
        least: the smallest number.
        most: the largest number.
        shown: what the help says of its default, where that is not the parameter's.
    """

    flags: tuple[str, ...]
    commands: str = ""
    kind: type = str
    metavar: str | None = None
    panel: str | None = None
    least: float | None = None
    most: float | None = None
    shown: str = ""

    @property
    def short(self) -> str:
        """How messages write it."""
        return self.flags[-1].partition("/")[0]


def parameter(default: Any, *flags: str, commands: str, panel: str = MODEL, **more: Any) -> Any:
    """Return the field of a parameter that the command line has; the other arguments are those of `Option`."""
    return field(default=default, metadata={"option": Option(flags, commands, panel=panel, **more)})


def count(default: Any, *flags: str, commands: str, most: int | None = None) -> Any:
    """Return the field of a number of things."""
    return parameter(default, *flags, commands=commands, kind=int, metavar="N", least=1, most=most)


def options_of(kind: type) -> dict[str, Option]:
    """Return the options of a dataclass's fields by name, those without one left out."""
    return {each.name: each.metadata["option"] for each in fields(kind) if "option" in each.metadata}


def documented(kind: type) -> Iterator[tuple[str, tuple[Option, str]]]:
    """Yield the options of a dataclass by name, each with its default and its meaning in words."""
    meanings, defaults = meanings_of(kind.__doc__), {each.name: each.default for each in fields(kind)}
    for name, each in options_of(kind).items():
        shown = each.shown or ("" if each.kind is bool or not defaults[name] else str(defaults[name]))
        yield name, (replace(each, shown=shown), re.split(r"(?<=[.:;]) In Python", meanings.get(name, ""))[0])


_ALL = "compare run sweep tune plan goodput prove train"
_SIZED = "compare run sweep tune goodput prove train"
_TRAINING = "compare run sweep tune plan goodput"
_SIMULATING = "compare run sweep tune goodput"
_RUNS = "compare run sweep"


@typed
@dataclass(frozen=True, slots=True, kw_only=True)
class RunParameters:
    """What one training step is simulated with, beside the strategy and its own options.

    The help of commands has what is said here of each, up to a sentence that begins with "In Python".

    Args:
        world_size: Number of ranks; of a cluster, a rank for each device by default.
        workload: A transformer instead of equal layers: a name (see `minitrain models`) or a Hugging Face config.json;
            dense for equal layers whose backward costs twice their forward. In Python also an `mt.Transformer` or any
            `minitrain.workloads.workload.Workload`; if None, that of the hardware's predictor, which is the specified
            one.
        seq_len: Tokens a sample; the model's own by default.
        precision: bf16, fp16, fp32, or fp8: multiplications with weights in eight bits, MFU still by the peak of
            sixteen; the model's own by default. In Python also an `mt.Precision`. MFU is counted by the devices' peak
            for its `datatype`, which "fp8" has in common with "bf16".
        lora: Rank of low-rank adapters of a transformer, which alone are trained, beside all matrices of attention and
            dense MLPs; or an adapter_config.json of PEFT. In Python also an `mt.Lora`.
        frozen_layers: How many of a transformer's layers, from the first, are not trained, with the embedding.
        documents: Tokens of the documents that are packed into a transformer's samples, which alone see one another: a
            length that all have, lognormal:MEDIAN:SIGMA, or a file with a length on each line; each sample is one
            document by default. In Python also an `mt.Documents`.
        ema: Decay of the exponential moving average of a transformer's weights, which each update takes on in single
            precision; none by default.
        num_layers: Layers of the model. In Python they may be left out only where they are not those of `workload`: a
            transformer's layers are its units.
        global_batch_size: Samples of the step, over all ranks.
        steps: Steps, each from the clocks and weights that the one before has left; figures are those of a steady one.
            In Python `run.steps` has the first step, the time of each, and all of them together.
        shares: Samples of each replica instead of equal ones; the batch is then their sum. In Python also an
            `mt.Shares`, or a plan that has one: who takes how much of the step, where ranks are not alike. They are for
            strategies that ask their model for them.
        strict: Count every tensor alive, wherever it is kept, and accept only what operations gave. In Python: as
            memory, and only tensors that came out of operations (see `minitrain.run.strict`).
        hardware: A shipped hardware config (see `minitrain hw list`) or a file, also of a cluster of unlike devices. In
            Python also a loaded config, or a predictor (`RankPredictors` for one a rank); or a
            `minitrain.platform.VirtualHardwarePlatform`, whose links the transfers share (`contention="exact"`); or a
            `mt.Cluster`. `mt.price` takes several.
        network: flat: one network tier for the run; hierarchical: the tier that each group needs; auto: flat within the
            smallest tier, else hierarchical.
        placement: Node of each rank; not for the flat network.
        fidelity: roofline: FLOPs and bytes of a layer; kernels: each kernel and transfer by what devices were measured
            to reach. In Python see `minitrain.machine.price`; if None, kernels for a transformer, else the roofline.
        platform: With prices of kernels: the framework, or one of its platforms (see docs/accuracy.md); components:
            none. In Python also a `Platform`, one of `mt.platforms()`; if None, what the strategy stands for.
        without: With prices of kernels: terms of the prices to leave out, such as waves,launches. In Python a sequence
            of them, for an ablation.
        prices: Measured times of layers instead of computed ones; FILE.csv:gpu=NAME,model=NAME chooses rows. In Python
            `mt.MeasuredLayers.read("layers.csv")`.
        collectives: Laws of your own: functions that return the seconds of a collective, of its bytes, its ranks
            (`num_ranks`, `num_nodes`) and the network's tiers that they cross, the innermost first. In Python also
            functions by collective, `{"all_reduce": mine}`.
        slowdown: Factor by which computing takes longer, by rank.
        strict_memory: Fail when a rank holds more than the device's memory. In Python: raise, instead of reporting it.
        log: full: keep every event; summary: keep totals, in memory that does not grow with events, and of steps that a
            strategy declares alike, simulate those until they repeat. In Python see
            `minitrain.run.summary_log`.
        fold: Simulate ranks that do the same once: the same figures much sooner; pages have a row for each class. In
            Python: those that do the same but for shard index and samples (see `minitrain.run.folding`). "auto" does so
            for shipped strategies from eight ranks on, where each class has four at least, and simulates every rank
            where it cannot. True does so for any strategy, or says why not; False never does.
        faults: A device dies so long after the step's beginning; repeat it for more. In Python
            `[mt.Fault(rank=5, at_s=0.02)]`, or `mt.FaultRate()` to draw them.
        recovery: What happens after a failure: spares=1, elastic=true, detection_s=30, restart_s, repair_s, ...; repeat
            it for more. In Python an `mt.Recovery`; `mt.Recovery()` if None.
        contention: Slow computing down by the communication beside it (see `minitrain.run.contention`); "exact" to let
            transfers share links too (see `minitrain.replay`). "auto" does so for `fsdp` on platforms whose numbers do
            not contain it, such as compiled-fsdp and xla. `model.time` during the run does not include it.
        p2p_buffer: Untagged messages that may lie unreceived before a blocking send waits.
        check: Verify the final weights.
        memory_by_kind: Keep a journal of what enters and leaves each store, for memory curves by kind.
        numerics: "numpy", or a `minitrain.proof.Problem` or `TransformerProblem`, to let tensors carry numbers; the
            log stays the same.
        execution: What operations do beside, a `minitrain.engine.observers.Executor`; numerics have their own.
        observers: What is told of all that the ranks do, each a `minitrain.engine.observers.Observer`.

    Raises:
        UsageError: a parameter is outside its rule, or two exclude each other.
    """

    world_size: int = count(8, "--world-size", commands=_SIZED, most=MOST["world_size"])
    workload: Any = parameter(None, "--workload", "--model", commands=_ALL, metavar="NAME")
    seq_len: int | None = count(None, "--seq-len", "--seq", commands=_ALL)
    precision: Any = parameter(None, "--precision", commands=_TRAINING, metavar="NAME")
    lora: Any = parameter(None, "--lora", commands=_ALL, metavar="RANK")
    frozen_layers: int | None = count(None, "--frozen-layers", commands=_ALL)
    documents: Any = parameter(None, "--documents", commands=_SIZED.replace(" tune", ""), metavar="LENGTHS")
    ema: float | None = parameter(None, "--ema", commands=_TRAINING, metavar="DECAY", kind=float)
    num_layers: int = count(32, "--num-layers", "--layers", commands=_ALL, most=MOST["num_layers"])
    global_batch_size: int = count(64, "--global-batch-size", "--batch", commands=_ALL, most=MOST["global_batch_size"])
    steps: int = count(1, "--steps", commands="compare run", most=MOST["steps"])
    shares: Any = parameter(None, "--shares", commands="compare run", metavar="N,...")
    strict: bool = parameter(False, "--strict", commands=f"{_RUNS} prove", kind=bool)
    hardware: Hardware = parameter(
        "h100_80g_nvl8", "--hardware", "--hw", commands=_TRAINING, metavar="CONFIG", panel=MACHINE
    )
    network: str = parameter("auto", "--network", commands=_SIMULATING, metavar="KIND", panel=MACHINE)
    placement: Sequence[int] | None = None
    fidelity: str | None = parameter(
        None,
        "--fidelity",
        commands=_TRAINING,
        metavar="KIND",
        panel=MACHINE,
        shown="kernels with --model, else roofline",
    )
    platform: Any = parameter(
        None, "--platform", commands=_TRAINING, metavar="NAME", panel=MACHINE, shown="what the strategy stands for"
    )
    without: str | Sequence[str] = parameter((), "--without", commands=_SIMULATING, metavar="TERM,...", panel=MACHINE)
    prices: MeasuredLayers | None = parameter(None, "--prices", commands=_SIMULATING, metavar="FILE.csv", panel=MACHINE)
    collectives: Any = parameter(
        None, "--collectives", commands=_SIMULATING, metavar="OP=FILE.py:FUNCTION,...", panel=MACHINE
    )
    slowdown: Mapping[int, float] | None = None
    strict_memory: bool = parameter(False, "--strict-memory", commands=_RUNS, kind=bool, panel=MACHINE)
    log: str = parameter("full", "--log", commands="compare run", metavar="KIND", panel=MACHINE)
    fold: bool | str = parameter(
        AUTO,
        "--fold/--no-fold",
        commands=_RUNS,
        kind=bool,
        panel=MACHINE,
        shown="for shipped strategies, with a row for each rank",
    )
    faults: Any = parameter(
        (), "--faults", "--fault", commands="run", kind=list, metavar="RANK@SECONDS", panel=FAILURES
    )
    recovery: Any = parameter(
        None, "--recovery", commands="run goodput", kind=list, metavar="NAME=VALUE", panel=FAILURES
    )
    contention: bool | str = AUTO
    p2p_buffer: int | None = 1
    check: bool = True
    memory_by_kind: bool = False
    numerics: Any = None
    execution: Executor | None = None
    observers: Sequence[Observer] = ()

    def __post_init__(self) -> None:
        if isinstance(self.hardware, Sequence) and not isinstance(self.hardware, str):
            raise UsageError("hardware must be one machine, got a list; `mt.price` takes several")
        object.__setattr__(self, "hardware", cluster_or_other(self.hardware))
        self._take_workload()
        for name, most in MOST.items():
            require_count(name, getattr(self, name), most=most)
        if self.log not in LOGS:
            raise UsageError(f'log must be "full" or "summary", got {self.log!r}', log=self.log)
        if hasattr(self.hardware, "profile"):  # a platform, whose links the run shares
            object.__setattr__(self, "contention", EXACT)
        self._require_one_step_of_calibration()
        if hasattr(self.hardware, "how_sure") and self.log == "full" and self.fold is not True:
            object.__setattr__(self, "contention", True)  # a calibration says what transfers take from computing
        self._require_compatible()
        self.pricing()
        _require_contention(self.contention, self.hardware)
        require_faults(self.faults, self.recovery, self.world_size)
        if self.slowdown:
            _require_slowdown(self.slowdown, self.world_size)
        if self.shares is not None:
            object.__setattr__(self, "shares", Shares.of(self.shares))
            self.shares.require(self.global_batch_size, self.num_layers)

    def _require_one_step_of_calibration(self) -> None:
        """Require a single step where a calibration says what transfers take from computing."""
        if hasattr(self.hardware, "how_sure") and self.steps > 1:
            raise UsageError(f"a calibration prices a single step, got steps={self.steps}; leave one out")

    def _require_compatible(self) -> None:
        """Require a way to fold, and parameters that go together with it and with a log of totals."""
        require_fold(self.fold)
        exclude = self.log == "summary" or self.faults or self.execution is not None or self.steps > 1
        if self.fold is True or exclude:
            given = self.by_name()
            for exclusion in EXCLUSIONS.values():
                exclusion.require(given)
        if self.fold is True and self.contention == EXACT:
            raise UsageError(
                f"fold=True does not go with contention={EXACT!r}, whose links tell ranks apart; use contention=True"
            )

    def by_name(self) -> dict[str, Any]:
        """Return all parameters by name."""
        return {name: getattr(self, name) for name in DEFAULTS}

    def predictor(self, stands_for: StandsFor | None = None) -> Predictor | RankPredictors:
        """Return what prices the operations of the run: one predictor for all ranks, or one for each.

        Args:
            stands_for: the strategy's framework, whose platform is taken where none is given, and the layout.

        Raises:
            UsageError: the network does not connect so many ranks, or there is another number of predictors.
            HardwareConfigError: the hardware config cannot be found or read, or is invalid.
        """
        pricing = self.pricing(stands_for)
        if isinstance(self.hardware, RankPredictors):
            require_default(pricing, self.hardware)
            if len(self.hardware.predictors) != self.world_size:
                raise UsageError(
                    f"a run of {self.world_size} ranks needs one predictor a rank, got {len(self.hardware.predictors)}"
                )
            return self.hardware if self.workload is None else self.hardware.training(self.workload)
        hardware: Any = self.hardware
        if is_cluster(hardware):
            from minitrain.machine.cluster_network import predictors_of  # noqa: PLC0415  (few runs have one)

            machine = self.world_size, self.network, self.placement
            return predictors_of(hardware, *machine, self.workload, pricing)
        return make_predictor(self.hardware, self.world_size, self.network, self.placement, self.workload, pricing)

    def pricing(self, stands_for: StandsFor | None = None) -> Pricing:
        """Return how operations are priced; a UsageError where that cannot be.

        Args:
            stands_for: the strategy's framework, and the layout.
        """
        given = {name: getattr(self, name) for name in PRICING_PARAMETERS}
        framework = None if stands_for is None else stands_for.framework
        if framework is None and all(
            value is None or (value.__class__ is tuple and not value) for value in given.values()
        ):
            return USUAL
        return Pricing(**given, stands_for=stands_for)

    def _take_workload(self) -> None:
        """Find the workload, and take the number of layers from it where it has one."""
        of_transformer = {name: getattr(self, name) for name in OF_TRANSFORMER}
        given = {name: value for name, value in of_transformer.items() if value is not None}
        for name, value in given.items() if self.workload is None else ():
            raise UsageError(
                f"{name} ({value!r}) is for transformers, and no workload is given; give one, as in "
                'workload="llama3-8b"',
                **given,
            )
        workload = _workload_of(self.workload, of_transformer, self.hardware)
        if "precision" in given and self.fidelity == "roofline":
            _require_one_rate(workload)
        num_layers = getattr(workload, "num_layers", None)
        if num_layers is not None:
            if self.num_layers not in (DEFAULTS["num_layers"], num_layers):
                raise _layers_and_workload(self.num_layers, workload)
            object.__setattr__(self, "num_layers", num_layers)
        if self.workload is not None:
            object.__setattr__(self, "workload", workload)
            for name in OF_TRANSFORMER:
                object.__setattr__(self, name, None)  # the workload has it


DEFAULTS: Mapping[str, Any] = MappingProxyType({field.name: field.default for field in fields(RunParameters)})
"""The default of each parameter by its name."""
OPTIONS: Mapping[str, Option] = MappingProxyType(options_of(RunParameters))
"""The parameters of a run that the command line has, by name."""


def with_own_options(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of `simulate` in which those of `options` stand among the others."""
    others = {name: value for name, value in keywords.items() if name != "options"}
    return {**(keywords.get("options") or {}), **others}


def split_keywords(keywords: Mapping[str, Any]) -> tuple[RunParameters, dict[str, Any]]:
    """Return the parameters among the keywords of `simulate`, and the rest, which are the strategy's own options.

    Raises:
        UsageError: a parameter is outside its rule, or two exclude each other.
    """
    keywords = with_own_options(keywords)
    given = {name: value for name, value in keywords.items() if name in DEFAULTS}
    if given.get("shares") is not None and "global_batch_size" not in given:
        samples = Shares.of(given["shares"]).samples
        given |= {} if samples is None else {"global_batch_size": sum(samples)}
    hardware = cluster_or_other(given.get("hardware"))
    if is_cluster(hardware):
        given = {"world_size": hardware.num_devices} | given | {"hardware": hardware}
    parameters = RunParameters(**given)
    if "num_layers" in given and hasattr(parameters.workload, "num_layers"):
        raise _layers_and_workload(given["num_layers"], parameters.workload)
    return parameters, {name: value for name, value in keywords.items() if name not in DEFAULTS}


def is_cluster(hardware: object) -> bool:
    """Return whether some hardware is a `Cluster`."""
    return getattr(hardware, "is_cluster", False) is True


def cluster_or_other(hardware: Any) -> Any:
    """Return the cluster or the calibration that some hardware is, or names by a file; any other hardware as it is.

    Raises:
        HardwareConfigError: it names a file that is no cluster, though it has groups of devices.
    """
    if isinstance(hardware, str) and is_shipped(hardware):
        return hardware
    if not isinstance(hardware, str | PathLike | Mapping):
        return hardware
    from minitrain.machine.cluster import Cluster, names_cluster  # noqa: PLC0415  (few runs name a file)
    from minitrain.machine.given_durations import Calibration, names_calibration  # noqa: PLC0415  (as the next)

    if names_calibration(hardware):
        return Calibration.read(hardware)  # type: ignore[arg-type]  # a path
    return Cluster.load(hardware) if names_cluster(hardware) else hardware


def _workload_of(workload: Any, of_transformer: Mapping[str, Any], hardware: Any) -> Any:
    """Return what a run trains; None for the specified workload."""
    if workload is None:
        return getattr(hardware, "workload", None)
    from minitrain.workloads.transformer_workload import find_workload  # noqa: PLC0415  (only where one is given)

    return find_workload(workload, **of_transformer)


def _require_one_rate(workload: Any) -> None:
    """Require that layers multiply in the datatype of the model, which is all that a roofline knows."""
    precision = workload.model.precision
    if precision.weight_datatype not in (None, precision.datatype):
        raise UsageError(
            f'fidelity="roofline" prices a layer in one datatype ({precision.datatype}), and {precision.name} '
            f'multiplies with weights in {precision.weight_datatype}; use fidelity="kernels"'
        )


def _layers_and_workload(num_layers: Any, workload: Any) -> UsageError:
    """Return the error for a number of layers beside a workload that has its own."""
    return UsageError(
        f"num_layers ({num_layers!r}) does not go with a workload that has its own, and {workload!r:.80} has "
        f"{workload.num_layers} layers; leave num_layers out",
        num_layers=num_layers,
    )


def _require_contention(contention: bool | str, hardware: Any) -> None:
    """Require that there is such a contention, and that the hardware has what it needs."""
    require_contention(contention)
    if contention == EXACT and is_cluster(hardware):
        raise UsageError(
            'contention="exact" shares the links of one hardware config, and a cluster has links between its groups; '
            "use contention=True, or leave it out",
            contention=EXACT,
        )


def _require_slowdown(slowdown: Mapping[int, float], world_size: int) -> None:
    """Require that every straggler is a rank, and its factor a positive number."""
    for rank, factor in slowdown.items():
        if rank not in range(world_size):
            raise UsageError(f"slowdown names rank {rank!r}, but ranks are 0..{world_size - 1}")
        require_number(f"the slowdown of rank {rank}", factor)


_LISTS = ("shares", "without")  # values between commas


def command_of(strategy: str, given: Mapping[str, Any]) -> str:
    """Return the command that simulates a strategy, so that its figures can be had again; a remark where none can.

    Args:
        strategy: its name, with options or without.
        given: parameters of `simulate`, and options of the strategy; defaults may be left out.

    >>> command_of("pp_dp:pp=4", {"pp": 4, "world_size": 16, "num_layers": 32, "fidelity": "kernels", "depth": 2})
    'minitrain run pp_dp:pp=4 --world-size 16 --fidelity kernels -o depth=2'
    >>> command_of("ddp", {"placement": [0, 1]})
    '# in Python only: placement has no option'
    """
    own = split_options(strategy)[1]
    words = ["minitrain", "run", strategy]
    for name, value in given.items():
        if name == "microbatch_size":
            words += [] if name in own else ["--microbatch", str(value)]
        elif name not in DEFAULTS:
            words += [] if name in own else ["-o", f"{name}={value}"]
        elif type(value) is not type(DEFAULTS[name]) or value != DEFAULTS[name]:
            if not _is_text(name, value):
                return f"# in Python only: {name} has no option{' for such a value' if name in OPTIONS else ''}"
            words += _words(name, value)
    return shlex.join(words)


def _is_text(name: str, value: Any) -> bool:
    """Return whether the command line can say a parameter."""
    if name not in OPTIONS:
        return False
    if name in _LISTS:
        return isinstance(value, list | tuple) and all(isinstance(one, str | int) for one in value)
    return isinstance(value, str | int | PathLike)


def _words(name: str, value: Any) -> Iterator[str]:
    """Yield a parameter as the command line says it."""
    option = OPTIONS[name].short
    if isinstance(value, bool):
        yield option if value else option.replace("--", "--no-", 1)
    else:
        yield from (option, ",".join(map(str, value)) if name in _LISTS else str(value))


_SECONDS_AN_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Fault:
    """A device that dies.

    Args:
        rank: whose device it is.
        at_s: when, s from the beginning of the step.

    Raises:
        UsageError: the rank is no count, or the time no number from 0 on.
    """

    rank: int
    at_s: float

    def __post_init__(self) -> None:
        require_count("rank", self.rank, 0)
        require_number("at_s of a fault", self.at_s, " of seconds", or_zero=True)


@dataclass(frozen=True, slots=True)
class FaultRate:
    """Faults that come by chance: every device fails at a constant rate, on its own.

    Args:
        mtbf_hours: mean time between failures of a device, hours, for all or by hardware config, group of a cluster, or
            family; the published one of its family if None (see `minitrain.machine.device`).
        seed: the same seed draws the same faults.

    Raises:
        UsageError: a time is no positive number, or the seed no count.
    """

    mtbf_hours: float | Mapping[str, float] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_mtbf(self.mtbf_hours)
        require_count("seed", self.seed, 0)

    def draw(self, devices: Sequence[str], seconds: float) -> list[Fault]:
        """Draw the faults of a stretch of time, each device's first one, in the order of time.

        Args:
            devices: the hardware config or the group of each rank's device.
            seconds: how long to wait for them.
        """
        chance = random.Random(self.seed)
        rates = [1 / (mtbf_hours_of(device, self.mtbf_hours) * _SECONDS_AN_HOUR) for device in devices]
        drawn = [Fault(rank, chance.expovariate(rate)) for rank, rate in enumerate(rates)]
        return sorted((fault for fault in drawn if fault.at_s < seconds), key=lambda fault: (fault.at_s, fault.rank))


@typed
@dataclass(frozen=True, slots=True)
class Recovery:
    """What happens after a device has died, and how long each part of it takes.

    The defaults are those of a large job on a shared storage. Each is a published figure, or marked as assumed.

    Args:
        detection_s: until all ranks are stopped. PyTorch waits 600 s for a collective on NCCL by default; systems with
            heartbeats take less.
        restart_s: to start the processes and to connect them again, s: 300; assumed.
        repair_s: until a dead device is back, where no spare takes its place: a day; assumed.
        replan_s: to find the layout of what is left, where the job goes on with fewer ranks; 0.
        spares: devices that stand by.
        elastic: whether the job goes on with fewer ranks when no spare is left, instead of waiting for the repair.
        storage_bytes_per_s: what the storage takes from and gives to all nodes together: 2e12 (Llama 3, 2024, 3.3.1).
        node_bytes_per_s: what one node reads and writes: 25e9, a port of 200 Gb/s; assumed.
        snapshot_bytes_per_s: from one device into its host's memory, for checkpoints that are written beside the
            training: 25e9, what a PCIe slot of the fourth generation reaches; assumed.
        since_checkpoint_s: work of finished steps since the last checkpoint, which a fault undoes as well; used for a
            single step alone, 0.

    Raises:
        UsageError: a time or rate is outside its rule.
    """

    detection_s: float = 600.0
    restart_s: float = 300.0
    repair_s: float = 86_400.0
    replan_s: float = 0.0
    spares: int = 0
    elastic: bool = False
    storage_bytes_per_s: float = 2e12
    node_bytes_per_s: float = 25e9
    snapshot_bytes_per_s: float = 25e9
    since_checkpoint_s: float = 0.0

    def __post_init__(self) -> None:
        require_count("spares", self.spares, 0)
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("_bytes_per_s"):
                require_number(each.name, value, " of bytes a second")
            elif each.name.endswith("_s"):
                require_number(each.name, value, " of seconds", or_zero=True)


def require_recovery(recovery: object) -> None:
    """Require that what follows a failure is a `Recovery`, or None.

    Raises:
        UsageError: it is not.
    """
    if recovery is not None and not isinstance(recovery, Recovery):
        raise UsageError(f"recovery must be a mt.Recovery, such as mt.Recovery(spares=1), got {recovery!r:.80}")


def require_faults(faults: Any, recovery: Any, world_size: int) -> None:
    """Require that faults are of ranks of the run, and that what follows them is a `Recovery`.

    Raises:
        UsageError: they are not.
    """
    require_recovery(recovery)
    if recovery is not None and not faults:
        raise UsageError("recovery is for runs with faults, and none are given; give faults=[mt.Fault(rank=, at_s=)]")
    if not faults or isinstance(faults, FaultRate):
        return
    if not isinstance(faults, Sequence) or not all(isinstance(fault, Fault) for fault in faults):
        raise UsageError(
            "faults must be a list of mt.Fault, such as [mt.Fault(rank=5, at_s=0.02)], or a mt.FaultRate, got "
            f"{faults!r:.80}"
        )
    beyond = next((fault for fault in faults if fault.rank >= world_size), None)
    if beyond is not None:
        raise UsageError(f"a fault names rank {beyond.rank}, but ranks are 0..{world_size - 1}", rank=beyond.rank)
