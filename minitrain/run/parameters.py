"""The parameters of a run as one value: what each means, its default and its rule are written here and nowhere else.

A new parameter is a new field of `RunParameters`, documented there. `simulate`, `simulate_async` and `compare` show the
fields as their keywords; `sweep`, `prove`, folding and the command line take names and defaults from here. Other lists
name the parameter as far as it concerns them:

- `TakesRunParameters` (`minitrain.run.signatures`) repeats names and types for type checkers, which a test compares.
- `EXCLUSIONS` below has what excludes each other.
- `PRICE_ONLY` has those that change prices alone, so that sweeps and `mt.price` know which configurations share a run.
- A command offers the parameter once `minitrain.cli.options` has an option for it (with its name in
  `minitrain.run.command_line.OPTIONS`) and the command's own signature names that.

Which parameters of a run exclude each other, and which values `fold` may have.

Folding that is asked for excludes what tells ranks apart. Folding that happens by itself ("auto") excludes nothing: a
run with such a parameter simulates every rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from minitrain.errors import UsageError, require_count
from minitrain.hardware.clusters.chosen_cluster import cluster_or_other, is_cluster
from minitrain.hardware.predictor import make_predictor, require_default
from minitrain.hardware.price import USUAL, Predictor, Pricing, RankPredictors
from minitrain.rank.executors import Executor
from minitrain.rank.observers import Observer
from minitrain.rank.shares import Shares
from minitrain.run.contention import EXACT, require_contention
from minitrain.run.faults import require_faults

if TYPE_CHECKING:
    from minitrain.hardware.measured_layers import MeasuredLayers


AUTO = "auto"


def asks_to_fold(fold: Any) -> bool:
    """Return whether a run is to be folded or refused; False where folding is optional ("auto") or off."""
    return fold is True or bool(getattr(fold, "was_asked_for", False))


def require_fold(fold: Any) -> None:
    """Require a value that `fold` may have.

    Raises:
        UsageError: it is another one.
    """
    if not (fold is True or fold is False or fold == AUTO or hasattr(fold, "was_asked_for")):
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
        if not (_is_given(self.name, value) if self.value is None else value == self.value):
            return []
        return [name for name in self.others if _is_given(name, given.get(name))]

    def require(self, given: Mapping[str, Any]) -> None:
        """Require that nothing excluded is among some parameters.

        Raises:
            UsageError: something is.
        """
        excluded = self.found(given)
        if excluded:
            raise UsageError(
                f"{self.spelling} does not go with {', '.join(excluded)}{self.reason}; leave one out",
                **{self.name: given[self.name]},
            )


def _is_given(name: str, value: Any) -> bool:
    """Return whether a parameter asks for something."""
    return asks_to_fold(value) if name == "fold" else bool(value)


_NOT_FOR_TOTALS = ("fold", "contention", "strict", "numerics", "execution", "memory_by_kind", "observers", "faults")
_TELL_RANKS_APART = ("slowdown", "contention", "strict", "numerics", "execution", "observers", "faults")
_NOT_AGAIN = ("strict", "numerics", "execution", "memory_by_kind", "observers")

EXCLUSIONS: Mapping[str, Exclusion] = MappingProxyType(
    {
        "log": Exclusion("log", "summary", _NOT_FOR_TOTALS, 'log="summary"'),
        "faults": Exclusion("faults", None, _NOT_AGAIN, "faults"),
        "execution": Exclusion("execution", None, ("numerics",), "execution"),
        "fold": Exclusion("fold", None, _TELL_RANKS_APART, "fold=True", ", which tells ranks apart"),
    }
)
"""What excludes each other, by the parameter that excludes the others."""


SIZES = ("world_size", "num_layers", "global_batch_size")
PRICE_ONLY = ("hardware", "network", "placement", "fidelity", "platform", "without", "prices", "slowdown")
"""Parameters that change how long operations take, but not which operations there are."""
OF_TRANSFORMER = ("seq_len", "precision")
"""Parameters that change what is trained, where that is a transformer."""
LOGS = ("full", "summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParameters:
    """What one training step is simulated with, beside the strategy and its own options.

    Args:
        world_size: number of ranks.
        num_layers: layers of the trained model; those of `workload` where that is a transformer, whose layers are its
            units.
        global_batch_size: samples of the step, over all ranks.
        hardware: a shipped config's name, a path, a loaded config, or a predictor (`RankPredictors` for one a rank); or
            a `minitrain.platform.VirtualHardwarePlatform`, whose links the transfers share (`contention="exact"`); or a
            `mt.Cluster` of unlike devices, or the path of its file.
        workload: what is trained: a transformer (`mt.Transformer`, a shipped model's name, a path to a Hugging Face
            config) or any `minitrain.workloads.workload.Workload`; that of the hardware's predictor by default, which
            is the specified one.
        seq_len: tokens of a sample of a transformer; the model's own by default.
        precision: of a transformer: "bf16", "fp16", "fp32", "fp8" or an `mt.Precision`; the model's own by default. MFU
            is counted by the devices' peak for its `datatype`, which "fp8" has in common with "bf16".
        network: "flat" (one tier for the run), "hierarchical" (the tier that each group needs), or "auto": flat where
            all ranks fit into the smallest tier, else hierarchical.
        placement: node of each rank; not for the flat network.
        fidelity: "roofline", or "kernels" to price each kernel and each transfer by what devices were measured to
            reach (see `minitrain.hardware.price`); if None, kernels for a transformer, and else the roofline.
        platform: with kernels, what a framework adds to their prices: a framework, a name of `mt.platforms()`, or a
            `Platform`; if None, what the strategy stands for.
        without: with kernels, terms of their prices to leave out, for an ablation.
        prices: measured times of layers, `mt.MeasuredLayers.read("layers.csv")`, in the place of computed ones.
        slowdown: factor by which computing takes longer, by rank.
        shares: who takes how much of the step, where ranks are not alike: samples of each replica, a `mt.Shares`, or a
            plan that has one; equal shares if None. They are for strategies that ask their model for them.
        faults: devices that die during the step, `[mt.Fault(rank=5, at_s=0.02)]`, or `mt.FaultRate()` to draw them.
        recovery: what happens then, and how long it takes; `mt.Recovery()` if None.
        contention: slow computing down by the communication beside it (see `minitrain.run.contention`); "exact" to let
            transfers share links too (see `minitrain.replay`). `model.time` during the run does not include it.
        p2p_buffer: untagged messages that may lie unreceived before a blocking send waits.
        check: verify the final weights.
        strict: count every tensor alive as memory, wherever it is kept, and accept only tensors that came out of
            operations (see `minitrain.accounting.strict`).
        strict_memory: raise when a rank holds more than the device's memory, instead of reporting it.
        memory_by_kind: keep a journal of what enters and leaves each store, for memory curves by kind.
        numerics: "numpy", or a `minitrain.numerics.Problem` or `TransformerProblem`, to let tensors carry numbers; the
            log stays the same.
        execution: what operations do beside, a `minitrain.rank.executors.Executor`; numerics have their own.
        observers: what is told of all that the ranks do, each a `minitrain.rank.observers.Observer`.
        fold: simulate ranks that do the same but for shard index and samples once (see `minitrain.folding`), with the
            same result. "auto" does so for shipped strategies from eight ranks on, where each class has four at least,
            and simulates every rank where it cannot. True does so for any strategy, or says why not; False never does.
            A `minitrain.folding.early_divergence.DivergenceHistory` lets several runs share what they find out.
        log: "full", or "summary" to keep totals instead of events (see `minitrain.accounting.summary`).

    Raises:
        UsageError: a parameter is outside its rule, or two exclude each other.
    """

    world_size: int = 8
    num_layers: int = 32
    global_batch_size: int = 64
    hardware: Any = "h100_80g_nvl8"
    workload: Any = None
    seq_len: int | None = None
    precision: Any = None
    network: str = "auto"
    placement: Sequence[int] | None = None
    fidelity: str | None = None
    platform: Any = None
    without: Sequence[str] = ()
    prices: MeasuredLayers | None = None
    slowdown: Mapping[int, float] | None = None
    shares: Any = None
    faults: Any = ()
    recovery: Any = None
    contention: bool | str = False
    p2p_buffer: int | None = 1
    check: bool = True
    strict: bool = False
    strict_memory: bool = False
    memory_by_kind: bool = False
    numerics: Any = None
    execution: Executor | None = None
    observers: Sequence[Observer] = ()
    fold: bool | str | Any = AUTO
    log: str = "full"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hardware", cluster_or_other(self.hardware))
        self._take_workload()
        for name in SIZES:
            require_count(name, getattr(self, name))
        if self.log not in LOGS:
            raise UsageError(f'log must be "full" or "summary", got {self.log!r}', log=self.log)
        if hasattr(self.hardware, "profile"):  # a platform, whose links the run shares
            object.__setattr__(self, "contention", EXACT)
        self._require_compatible()
        self.pricing()
        _require_contention(self.contention, self.hardware)
        require_faults(self.faults, self.recovery, self.world_size)
        if self.slowdown:
            _require_slowdown(self.slowdown, self.world_size)
        if self.shares is not None:
            object.__setattr__(self, "shares", Shares.of(self.shares))
            self.shares.require(self.global_batch_size, self.num_layers)

    def _require_compatible(self) -> None:
        """Require a way to fold, and parameters that go together with it and with a log of totals."""
        require_fold(self.fold)
        if asks_to_fold(self.fold) or self.log == "summary" or self.faults or self.execution is not None:
            given = self.by_name()
            for exclusion in EXCLUSIONS.values():
                exclusion.require(given)

    def by_name(self) -> dict[str, Any]:
        """Return all parameters by name."""
        return {name: getattr(self, name) for name in DEFAULTS}

    def predictor(self, stands_for: str | None = None) -> Predictor | RankPredictors:
        """Return what prices the operations of the run: one predictor for all ranks, or one for each.

        Args:
            stands_for: the framework that the strategy stands for, whose platform is taken where none is given.

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
        if is_cluster(self.hardware):
            from minitrain.hardware.clusters.cluster_network import predictors_of  # noqa: PLC0415  (few runs have one)

            machine = self.world_size, self.network, self.placement
            return predictors_of(self.hardware, *machine, self.workload, pricing)
        return make_predictor(self.hardware, self.world_size, self.network, self.placement, self.workload, pricing)

    def pricing(self, stands_for: str | None = None) -> Pricing:
        """Return how operations are priced; a UsageError where that cannot be.

        Args:
            stands_for: the framework that the strategy stands for.
        """
        given = stands_for, self.fidelity, self.platform, self.prices
        if given == (None,) * 4 and not self.without:
            return USUAL
        return Pricing(self.fidelity, self.platform, self.without, self.prices, stands_for)

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


def split_keywords(keywords: Mapping[str, Any]) -> tuple[RunParameters, dict[str, Any]]:
    """Return the parameters among the keywords of `simulate`, and the rest, which are the strategy's own options.

    Raises:
        UsageError: a parameter is outside its rule, or two exclude each other.
    """
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
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise UsageError(f"the slowdown of rank {rank} must be a positive number, got {factor!r}")
