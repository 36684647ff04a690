"""What is tuned: a workload on a machine, and the figures of a step on it.

The stages of a pipeline, before it runs: how `megatron` cuts a model, and which of its cuts Megatron-LM lacks.

`megatron` cuts between attention and MLP too, so that no stage waits for the one that has the head. Megatron-LM has
whole layers.

The configurations of a search: which axes there are, which values they take, and what is legal.

An axis is an option of a strategy. Options that cannot matter (the chunks of a pipeline of one rank) take their plain
value, so that no configuration comes twice.

The usual values of the options that a search goes through, by strategy.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import groupby
from math import prod
from types import SimpleNamespace
from typing import Any

from minitrain.engine.stages import stages_of
from minitrain.errors import UsageError, require_count
from minitrain.machine.measured_topology import places_of
from minitrain.machine.platforms import StandsFor
from minitrain.machine.predictor import KernelPredictor, RuntimePredictor
from minitrain.run.contention import EXACT
from minitrain.run.figures import FiguresOfStep, usd_per_hour_of, watts_of
from minitrain.run.parameters import AUTO, RunParameters
from minitrain.run.run_file import plain
from minitrain.run.strategy_loading import Strategy, choose_strategy, framework_of, options_of, takes_option
from minitrain.search.planning.layouts import divisors
from minitrain.search.sweeps.batches import label_of
from minitrain.search.tuning.layouts import Pipeline
from minitrain.search.tuning.pieces import EndKey, PassKey, Pieces


@dataclass(frozen=True)
class TuningProblem:
    """What every configuration of a search has in common, on one machine.

    Args:
        workload: what is trained, as `simulate` takes it.
        hardware: a config's name, a path, or a loaded config.
        world_size: number of ranks.
        global_batch_size: samples of a step.
        more: further parameters of `simulate`.
        framework: what the strategy stands for, which has a part in prices.
    """

    workload: Any = field(compare=False)
    hardware: Any = field(compare=False)
    world_size: int
    global_batch_size: int
    more: Mapping[str, Any] = field(compare=False)
    framework: str | None = None
    key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("world_size", "global_batch_size"):  # by which problems are told apart before they are checked
            require_count(name, getattr(self, name))
        named = {"workload": self.workload, "hardware": self.hardware, **self.more}
        object.__setattr__(self, "key", json.dumps({name: plain(value) for name, value in named.items()}))

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of `simulate`, without options."""
        named = {"world_size": self.world_size, "global_batch_size": self.global_batch_size, "hardware": self.hardware}
        return {**({} if self.workload is None else {"workload": self.workload}), **named, **self.more}

    def by(self, strategy: str | Strategy) -> TuningProblem:
        """Return the same problem for one strategy, by whose framework steps are priced."""
        return replace(self, framework=framework_of(choose_strategy(strategy).function))

    @property
    def machine(self) -> Machine:
        """What prices the problem, made once in each process."""
        return _machine_of(self)


class Machine:
    """A problem with its prices.

    Args:
        problem: what is tuned.

    Raises:
        UsageError: a parameter is outside its rule.
        HardwareConfigError: the hardware cannot be found or read, or is invalid.
    """

    def __init__(self, problem: TuningProblem) -> None:
        self.problem = problem
        self.parameters = RunParameters(**problem.parameters)
        any_layout = StandsFor(problem.framework, True, problem.world_size, 2)  # with parts, and replicas
        predictor: Any = self.parameters.predictor(any_layout)
        self.predictor = predictor
        self.workload: Any = predictor.workload
        self.num_layers: int = self.parameters.num_layers
        sheet = getattr(getattr(predictor, "system", None), "sheet", None)
        self.sheets = (sheet,)
        self.capacity_bytes: float | None = predictor.capacity_bytes
        self.useful_flop = self.workload.training_flop(problem.global_batch_size, self.num_layers)
        self.usd_per_hour = usd_per_hour_of(self.sheets, problem.world_size)
        seq_len = getattr(self.workload, "seq_len", None)
        self.tokens = None if seq_len is None else problem.global_batch_size * seq_len
        self._watts = watts_of(self.sheets)

    @cached_property
    def pieces(self) -> Pieces:
        """The pieces of pipelines on this machine."""
        return Pieces(self.workload, self.predictor)

    @property
    def model(self) -> Any:
        """The transformer that is trained, or None."""
        return getattr(self.workload, "model", None)

    @property
    def has_experts(self) -> bool:
        """Whether the transformer that is trained has layers with experts."""
        return bool(getattr(self.model, "moe_layers", ()))

    @property
    def is_of_tpus(self) -> bool:
        """Whether its devices are TPUs."""
        return self.sheets[0] is not None and self.sheets[0].device_class == "tpu"

    @property
    def node_size(self) -> int:
        """Ranks of the smallest tier of the network."""
        return int(min((tier.size for tier in self.predictor.system.networks), default=1))

    @cached_property
    def composes(self) -> bool:
        """Whether steps of `megatron` can be put together from pieces: transformers without experts, usual prices."""
        return self.is_usual and not self.has_experts and self.parameters.contention in (AUTO, False)

    @cached_property
    def is_usual(self) -> bool:
        """Whether it trains a transformer, and prices of passes and transfers do not depend on what else happens."""
        has_own_prices = type(self.predictor) in (RuntimePredictor, KernelPredictor)
        plainly = not (self.parameters.slowdown or self.parameters.contention == EXACT or self.parameters.strict)
        return has_own_prices and plainly and self.parameters.placement is None and self.model is not None

    def is_aligned(self, size: int) -> bool:
        """Return whether blocks of so many neighbours lie alike in the network."""
        places = places_of(self.predictor.topology)
        return places is None or bool(places.lie_alike(size))

    def figures(
        self, step_time_s: float, busy_s: float | None = None, useful_flop: float | None = None, tokens: Any = None
    ) -> dict[str, Any]:
        """Return the figures of a step.

        Args:
            step_time_s: how long it takes, s; 0 of a strategy that does nothing but load.
            busy_s: how long ranks compute or communicate, together, s; None where that is not known.
            useful_flop: of a step whose experts drop tokens; the workload's where None.
            tokens: that it trains on; those of the batch where None.
        """
        found = _Step(
            step_time=step_time_s,
            useful_flop=self.useful_flop if useful_flop is None else useful_flop,
            tokens_trained=self.tokens if tokens is None else tokens,
            world_size=self.problem.world_size,
            peak_flop_per_s=self.predictor.peak_flop_per_s,
            usd_per_hour=self.usd_per_hour,
        )
        rate, dollars = found.tokens_per_second, found.dollars
        return {
            "step_time_s": step_time_s,
            "mfu": found.mfu if step_time_s else None,
            "tokens_per_second": rate,
            "tokens_per_second_per_rank": found.tokens_per_second_per_rank,
            "dollars": dollars,
            "tokens_per_dollar": rate * step_time_s / dollars if rate and dollars else None,
            "energy_joules": self.joules(step_time_s, busy_s),
        }

    def joules(self, step_time_s: float, busy_s: float | None) -> float | None:
        """Return what all devices draw in a step, J; None where the config does not say their power."""
        if self._watts is None or busy_s is None:
            return None
        rated, idle = (float(watts[0]) for watts in self._watts)
        return busy_s * rated + (self.problem.world_size * step_time_s - busy_s) * idle


class _Step(SimpleNamespace, FiguresOfStep):
    """A step of a problem: what its figures follow from, by the names of `Run`."""


@lru_cache(maxsize=8)
def _machine_of(problem: TuningProblem) -> Machine:
    """Return the machine of a problem, made once in a process."""
    if not isinstance(problem.global_batch_size, int):
        raise UsageError(f"global_batch_size must be an integer, got {problem.global_batch_size!r}")
    machine = Machine(problem)
    if getattr(machine.workload, "is_packed", False):
        raise UsageError(
            "tune bounds steps by samples that cost the same, and packed documents differ; compare without"
        )
    return machine


def cut_into_stages(machine: Machine, num_stages: int, microbatch_size: int) -> tuple[range, ...]:
    """Return the layers of each stage, as `megatron` cuts them by default.

    Raises:
        UsageError: they cannot be cut so.
    """
    model: Any = SimpleNamespace(num_layers=machine.num_layers, _runtime_predictor=machine.predictor, _shares=None)
    return tuple(stages_of(model, num_stages, microbatch_size))


def unequal_stages(machine: Machine, num_stages: int, microbatch_size: int) -> str:
    """Return how many transformer layers stages have, in words; nothing where all have the same whole number.

    Args:
        machine: where a transformer runs.
        num_stages: of all ranks.
        microbatch_size: samples of a microbatch.
    """
    stages = cut_into_stages(machine, num_stages, microbatch_size)
    counts = [_num_layers(stage, machine.num_layers) for stage in stages]
    if len(set(counts)) == 1 and counts[0].is_integer():
        return ""
    return ", ".join(f"{len(list(run))} of {count:g}" for count, run in groupby(counts))


def _num_layers(stage: range, num_units: int) -> float:
    """Return how many transformer layers a stage has; attention is half a one, and embedding and head are none."""
    return len(range(max(1, stage.start), min(num_units - 1, stage.stop))) / 2


RECOMPUTATIONS = ("none", "selective", "full")
_CHUNKS = (1, 2, 3, 4, 5, 6, 8, 10)
_MICROBATCHES = (1, 2, 4, 8, 16, 32)
_MOST_WITH_EXPERTS = 4  # samples of a microbatch; recipes for models with experts take 1 or 2
_MOST_EXPERTS = 8  # of a layer on one rank; recipes have 1 to 8
_LEAST_TOKENS = 4096  # of a shard of a sequence; recipes divide 8,192 tokens by 2, and Llama 3 131,072 by 16
_SWITCH = (False, True)


def _of_megatron(machine: Machine) -> dict[str, Sequence[Any]]:
    """Return the axes of `megatron`."""
    world_size = machine.problem.world_size
    if machine.has_experts:
        return _of_megatron_with_experts(machine)
    return {
        "tp": [size for size in (1, 2, 4, 8) if size <= machine.node_size and world_size % size == 0],
        "cp": [size for size in divisors(world_size) if size == 1 or size * _LEAST_TOKENS <= machine.workload.seq_len],
        "pp": _stages(machine),
        "num_chunks": _CHUNKS,
        "microbatch_size": _microbatches(machine),
        "zero": (0, 1),
        "recompute": RECOMPUTATIONS,
        "sequence_parallel": _SWITCH,
        "overlap_replicas": _SWITCH,
        "overlap_parts": _SWITCH,
    }


def _stages(machine: Machine) -> list[int]:
    """Return the usual sizes of pipelines, of which a stage has two layers at least.

    TPUs have none: MaxText, Levanter and Pax divide layers and data there, and no measured run has stages.
    """
    if machine.is_of_tpus:
        return [1]
    return [size for size in divisors(machine.problem.world_size) if 2 * size <= max(2, num_blocks(machine))]


def _of_megatron_with_experts(machine: Machine) -> dict[str, Sequence[Any]]:
    """Return the axes of `megatron` for a model with experts: values of recipes, since each layout is simulated.

    Recipes divide experts and stages, not layers: tp 1, pp 4, 8 chunks, ep 8 for Mixtral 8x7B on H100
    (examples/training/mixtral/h100/mixtral_8x7b_bf16.sh of github.com/NVIDIA/NeMo-Framework-Launcher), and no tensor
    parallelism for DeepSeek-V3 (section 3.2 of its report).
    """
    sizes, num_experts = divisors(machine.problem.world_size), machine.model.num_experts
    return {
        "tp": (1,),
        "pp": _stages(machine),
        "ep": [size for size in sizes if num_experts % size == 0 and num_experts // size <= _MOST_EXPERTS],
        "num_chunks": (1, 4, 8),
        "microbatch_size": (1,),
        "zero": (1,),
        "recompute": _recomputations_with_experts(machine),
        "overlap_replicas": (True,),
    }


def _recomputations_with_experts(machine: Machine) -> tuple[str, ...]:
    """Return what recipes compute again of layers with experts, each of them more than the one before.

    Norms, projections up from latents and activation functions (DeepSeek-V3, section 3.2.3); MLPs and experts beside
    these (NVIDIA's DeepSeek-V3 on H100, NVIDIA/dgxc-benchmarking); everything.
    """
    up = ["mla_up_proj"] if machine.model.latent is not None else []
    has_dense = any(unit.kind == "mlp" for unit in machine.workload.units)
    few, more = ["layernorm", *up, "moe_act"], ["layernorm", *up, *(["mlp"] if has_dense else []), "moe"]
    return ("none", "+".join(few), "+".join(more), "full")


def _of_fsdp(machine: Machine) -> dict[str, Sequence[Any]]:
    """Return the axes of `fsdp`."""
    world_size, node_size = machine.problem.world_size, machine.node_size
    if machine.has_experts:  # parts of a layer are not divided there, and each layout is simulated
        return {
            "replicas": sorted({1, max(1, world_size // node_size)}),
            "microbatch_size": [size for size in _microbatches(machine) if size <= _MOST_WITH_EXPERTS],
            "reshard_after_forward": _SWITCH,
            "recompute": ("none", "full"),
        }
    return {
        "tp": [size for size in (1, 2, 4, 8) if size <= node_size and world_size % size == 0],
        "replicas": sorted({1, max(1, world_size // node_size)}),
        "microbatch_size": _microbatches(machine),
        "reshard_after_forward": _SWITCH,
        "recompute": _recomputations(machine),
        "sequence_parallel": _SWITCH,
        "offload": (None, "optimizer", "activations"),
    }


def _recomputations(machine: Machine) -> tuple[str, ...]:
    """Return what backward may compute again; flash attention has nothing for "selective" to save."""
    is_flash = getattr(machine.model, "attention", None) == "flash"
    return tuple(name for name in RECOMPUTATIONS if not (is_flash and name == "selective"))


def _of_deepseek_like(machine: Machine) -> dict[str, Sequence[Any]]:
    """Return the axes of `deepseek_like`."""
    sizes, num_experts = divisors(machine.problem.world_size), machine.model.num_experts
    return {
        "pp": _stages(machine),
        "ep": [size for size in sizes if num_experts % size == 0],
        "microbatch_size": [size for size in _microbatches(machine) if size <= _MOST_WITH_EXPERTS],
        "zero": (1,),
        "recompute": tuple(word for word in _recomputations_with_experts(machine) if not word.endswith("+moe")),
    }


def _of_context(machine: Machine) -> dict[str, Sequence[Any]]:
    """Return the axes of strategies that divide the sequence."""
    sizes = divisors(machine.problem.world_size)
    return {
        "cp": sizes,
        "tp": [size for size in sizes if size <= machine.node_size],
        "microbatch_size": _microbatches(machine),
        "recompute": RECOMPUTATIONS,
    }


def of_others(machine: Machine) -> dict[str, Sequence[Any]]:
    """Return the axes of a strategy that is not known: the microbatch alone."""
    return {"microbatch_size": _microbatches(machine)}


USUAL: Mapping[str, Callable[[Machine], dict[str, Sequence[Any]]]] = {
    "megatron": _of_megatron,
    "fsdp": _of_fsdp,
    "deepseek_like": _of_deepseek_like,
    "gathered_context": _of_context,
    "packed_context_parallel": _of_context,
    "ring_attention": _of_context,
}


def num_blocks(machine: Machine) -> int:
    """Return the layers of a transformer, or of another workload."""
    return int(machine.num_layers if machine.model is None else machine.model.num_layers)


def _microbatches(machine: Machine) -> list[int]:
    """Return the usual sizes of microbatches."""
    batch = machine.problem.global_batch_size
    return [size for size in _MICROBATCHES if size <= batch] or [1]


Axes = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration.

    Args:
        problem: what it is for.
        strategy: the strategy, as it was given.
        options: of the strategy.
        pipeline: the layout, where it can be put together from pieces.
        in_usual_order: the same in the order 1F1B, whose pieces take no longer than those of the candidate's own order.
        illegal: the rule that it breaks, or None.
    """

    problem: TuningProblem
    strategy: str | Strategy
    options: Mapping[str, Any]
    pipeline: Pipeline | None = None
    illegal: str | None = None
    in_usual_order: Pipeline | None = None

    @property
    def label(self) -> str:
        """What the strategy is called."""
        return label_of(self.strategy)

    @property
    def parameters(self) -> dict[str, Any]:
        """What `simulate` takes for it."""
        return {**self.problem.parameters, **self.options}


def default_strategies(machine: Machine) -> tuple[str, ...]:
    """Return the shipped strategies that suit a workload."""
    if machine.model is None:
        return ("ddp", "zero1", "zero2", "zero3", "pp_zero1", "1f1b")
    if machine.has_experts:
        return ("megatron", "deepseek_like", "moe", "fsdp")
    return ("megatron", "fsdp")


def axes_of(strategy: str | Strategy, machine: Machine, space: Axes) -> dict[str, Sequence[Any]]:
    """Return the axes of a strategy: those that are given, and for the others the usual values.

    Args:
        strategy: the strategy.
        machine: where it runs.
        space: values by option; options that the strategy does not have are left out.
    """
    function = choose_strategy(strategy).function
    usual = USUAL.get(label_of(strategy), of_others)(machine)
    own = {name: values for name, values in space.items() if takes_option(function, name)}
    return {**usual, **own}


def candidates(
    strategy: str | Strategy, machine: Machine, axes: Axes, min_microbatches: int, asked: Collection[str] = ()
) -> Iterator[Candidate]:
    """Yield the configurations of a strategy, each once, those that break a rule among them.

    Args:
        strategy: the strategy.
        machine: where it runs.
        axes: values by option.
        min_microbatches: the fewest microbatches that a pipeline may have.
        asked: the axes whose values somebody asked for; all of these are tried beside all others.
    """
    if label_of(strategy) == "megatron" and machine.composes:
        yield from _Megatron(strategy, machine, axes, min_microbatches, asked).candidates()
        return
    function = choose_strategy(strategy).function
    known = {name: list(values) for name, values in axes.items() if takes_option(function, name)}
    seen: set[str] = set()
    for values in itertools.product(*known.values()):
        options = _plainest(dict(zip(known, values, strict=True)))
        if repr(options) not in seen:
            seen.add(repr(options))
            yield Candidate(machine.problem, strategy, options, illegal=_too_large(options, machine))


def _too_large(options: Mapping[str, Any], machine: Machine) -> str | None:
    """Return that a microbatch is larger than what a replica trains on, where the degrees say so; or None."""
    size, most = options.get("microbatch_size"), machine.problem.global_batch_size
    degrees = [options[name] for name in ("tp", "pp", "cp") if options.get(name) is not None]
    if size is None or not all(isinstance(degree, int) for degree in degrees):
        return None
    if not options.keys().isdisjoint({"pp", "cp", "replicas"}):  # every other rank is a replica
        most = most * prod(degrees) // machine.problem.world_size
    if size <= max(1, most):
        return None
    return f"microbatch_size ({size}) must be at most the samples of a replica ({most})"


def _plainest(options: dict[str, Any]) -> dict[str, Any]:
    """Return options without what does not matter."""
    if options.get("tp") == 1 and "sequence_parallel" in options:
        options["sequence_parallel"] = False
    if options.get("pp") == 1 and "num_chunks" in options:
        options["num_chunks"] = 1
    return options


def plain_options(world_size: int, sizes: Mapping[str, int], found: dict[str, Any]) -> dict[str, Any]:
    """Return options of `megatron` with their plain values where they do not matter.

    Args:
        world_size: number of ranks.
        sizes: "tp" and "pp" at least.
        found: the other options.
    """
    tp, pp = sizes["tp"], sizes["pp"]
    for name in () if tp > 1 else ("sequence_parallel", "overlap_parts", "scatter_gather"):
        found[name] = False
    for name in () if pp > 1 else _OF_MESSAGES:
        found[name] = False
    found["scatter_gather"] &= not found["sequence_parallel"]
    found["batch_messages"] &= not found["overlap_messages"]
    if world_size == tp * pp:
        found |= {"zero": 0, "overlap_replicas": False}
    if pp == 1 or found.get("schedule") == "1f1b":
        found.pop("schedule", None)
    return found


def changed_beside(strategy: str | Strategy, options: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """Return the options, beside some, that have another value than a strategy gives them where they are left out."""
    beside = options.keys() - known
    usual = _defaults_of(choose_strategy(strategy).function) if beside else {}
    return [name for name in beside if name not in usual or options[name] != usual[name]]


@lru_cache(maxsize=8)
def _defaults_of(function: Strategy) -> Mapping[str, Any]:
    """Return the options of a strategy with their values where they are left out."""
    return {name: option.default for name, option in options_of(function).items()}


def pipeline_of(machine: Machine, options: Mapping[str, Any], stages: tuple[range, ...]) -> Pipeline | None:
    """Return a layout of `megatron` that can be put together from pieces, whatever its order; None if it cannot.

    Args:
        machine: where it runs.
        options: of `megatron`, plain where they do not matter.
        stages: the layers of each stage.
    """
    tp, pp, cp = options["tp"], options["pp"], options.get("cp", 1)
    dp = machine.problem.world_size // (tp * pp)  # those that share a sequence hold the same
    is_known = options["zero"] <= 1 and not changed_beside("megatron", options, _OF_PIECES)
    if not is_known or not all(map(machine.is_aligned, (tp, tp * cp, tp * dp))):
        return None
    messages = "hidden" if options["overlap_messages"] else "batched" if options["batch_messages"] else "plain"
    named = {name: options[name] for name in ("sequence_parallel", "recompute", "scatter_gather", "overlap_parts")}
    return Pipeline(
        PassKey(tp, options["microbatch_size"], **named, cp=cp, is_alone=pp == 1),
        EndKey(tp, dp, options["zero"], options["sequence_parallel"], pp == 1, options["overlap_parts"]),
        pp,
        stages,
        machine.problem.global_batch_size // (dp // cp) // options["microbatch_size"],
        options["overlap_replicas"],
        messages,
    )


class _Megatron:
    """The configurations of `megatron`."""

    def __init__(
        self, strategy: str | Strategy, machine: Machine, axes: Axes, min_microbatches: int, asked: Collection[str]
    ) -> None:
        self._strategy, self._machine, self._axes = strategy, machine, dict(axes)
        self._with_cp = {name: value for name, value in _OF_LONG.items() if name not in asked}
        self._problem, self._least = machine.problem, min_microbatches
        self._usual = {name for name in _OF_MESSAGES if name not in self._axes}
        self._stages: dict[tuple[int, int], tuple[range, ...] | str] = {}

    def candidates(self) -> Iterator[Candidate]:
        """Yield them."""
        names = ("tp", "pp", "num_chunks", "microbatch_size", "cp")
        degrees = [_whole_numbers(name, self._axes.get(name, (1,))) for name in names]
        for tp, pp, num_chunks, microbatch_size, cp in itertools.product(*degrees):
            if pp == 1 and num_chunks > 1:
                continue
            sizes = {"tp": tp, "pp": pp, "num_chunks": num_chunks, "microbatch_size": microbatch_size}
            if cp > 1 and microbatch_size != self._with_cp.get("microbatch_size", microbatch_size):
                continue
            sizes |= {"cp": cp} if cp > 1 else {}
            rule = self._broken_rule(**sizes)
            if rule is None:
                yield from self._of_sizes(sizes)
            else:
                yield Candidate(self._problem, self._strategy, sizes, illegal=rule)

    def _of_sizes(self, sizes: dict[str, int]) -> Iterator[Candidate]:
        """Yield the configurations with some degrees."""
        stages = self._stages_of(sizes["pp"] * sizes["num_chunks"], sizes["microbatch_size"])
        if isinstance(stages, str):
            yield Candidate(self._problem, self._strategy, sizes, illegal=stages)
            return
        axes = {name: values for name, values in self._axes.items() if name not in {*sizes, "cp"}}
        axes |= {name: (value,) for name, value in self._with_cp.items() if "cp" in sizes and name in axes}
        seen = set()
        for values in itertools.product(*axes.values()):
            switches = self._mattering(sizes, dict(zip(axes, values, strict=True)))
            key = tuple(map(repr, switches.values()))
            if key not in seen:
                seen.add(key)
                yield self._candidate({**sizes, **switches}, stages)

    def _candidate(self, options: dict[str, Any], stages: tuple[range, ...]) -> Candidate:
        pipeline = pipeline_of(self._machine, options, stages)
        if "schedule" in options:
            return Candidate(self._problem, self._strategy, options, in_usual_order=pipeline)
        return Candidate(self._problem, self._strategy, options, pipeline)

    def _mattering(self, sizes: dict[str, int], given: dict[str, Any]) -> dict[str, Any]:
        """Return switches with their plain values where they do not matter.

        As Megatron-LM does, messages are hidden where a rank has several stages, and otherwise sent and received at
        once, and shares of activations are sent.
        """
        found = {"zero": 0, "recompute": "none", **dict.fromkeys(_SWITCHES, False), **given}
        if "overlap_messages" in self._usual:
            found["overlap_messages"] = sizes["num_chunks"] > 1
        found |= {name: True for name in ("scatter_gather", "batch_messages") if name in self._usual}
        return plain_options(self._problem.world_size, sizes, found)

    def _broken_rule(self, tp: int, pp: int, num_chunks: int, microbatch_size: int, cp: int = 1) -> str | None:
        """Return the rule that some degrees break, or None."""
        world_size, batch = self._problem.world_size, self._problem.global_batch_size
        if world_size % (tp * cp * pp):
            names = "tp x pp" if cp == 1 else "tp x cp x pp"
            return f"world_size ({world_size}) must be a multiple of {names} ({tp * cp * pp})"
        dp = world_size // (tp * cp * pp)
        if batch % (dp * microbatch_size):
            return f"global_batch_size ({batch}) must be a multiple of dp x microbatch_size ({dp * microbatch_size})"
        num_microbatches = batch // dp // microbatch_size
        if num_microbatches < self._least:
            return f"num_microbatches ({num_microbatches}) must be at least min_microbatches ({self._least})"
        if num_chunks > 1 and num_microbatches % pp:
            return f"num_microbatches ({num_microbatches}) must be a multiple of pp ({pp}) where ranks have chunks"
        if num_chunks > 1 and pp * num_chunks > num_blocks(self._machine):
            return f"num_layers ({num_blocks(self._machine)}) must be at least pp x num_chunks ({pp * num_chunks})"
        return None

    def _stages_of(self, num_stages: int, microbatch_size: int) -> tuple[range, ...] | str:
        """Return the stages that the strategy makes, or the rule that there are none."""
        key = num_stages, microbatch_size
        if key not in self._stages:
            try:
                self._stages[key] = cut_into_stages(self._machine, num_stages, microbatch_size)
            except UsageError as error:
                self._stages[key] = str(error)
        return self._stages[key]


_OF_LONG: Mapping[str, Any] = {"microbatch_size": 1, "sequence_parallel": True, "zero": 1, "overlap_parts": True}
"""What is tried beside a divided sequence, as recipes have it: one sample is long enough."""
_OF_MESSAGES = ("overlap_messages", "batch_messages", "scatter_gather")
_SWITCHES = ("sequence_parallel", "overlap_replicas", "overlap_parts", *_OF_MESSAGES)
_OF_PIECES = frozenset({"tp", "pp", "cp", "num_chunks", "microbatch_size", "zero", "recompute", "schedule", *_SWITCHES})
"""The options of `megatron` that pieces know; with a value of another one, a layout is simulated."""


def _whole_numbers(name: str, values: Sequence[Any]) -> Sequence[int]:
    """Return the values of an axis, each of which is a whole number of at least 1.

    Raises:
        UsageError: one is not.
    """
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"space must have whole numbers of at least 1 for {name}, got {value!r}")
    return values
