"""What a framework adds to the price of kernels, as named values: `mt.platforms()`.

A `Platform` here is a set of constants; the virtual platform whose links runs share is `minitrain.platform`.

Prices of kernels are those of components measured alone: a matrix multiplication on a cool card, a copy, a launch from
C++. A run of a framework differs from that in ways that no component tells. A `Platform` says in which, in at most six
numbers, and on what they were fitted.

A strategy stands for a framework, which has a platform for each generation of devices, and habits of its own:
`frameworks.json`. Published runs are priced by the platforms that `simulate` takes for the same framework.

The shipped ones are in `platforms.json` beside this file; `dataclasses.replace` makes another.
"""

from __future__ import annotations

import json
import math
import re
from ast import literal_eval
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from minitrain.errors import UsageError, closest, typed
from minitrain.files import StrPath, read_json, write_text
from minitrain.machine.dispatchers import DISPATCHERS, Kernels, kernels_of
from minitrain.machine.framework_memory import HABITS, habit_in
from minitrain.workloads.workload import KernelHabits

if TYPE_CHECKING:
    from minitrain.machine.device import KernelRates

EXPOSED: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "none": {},
        "gradients": {"all_gather": 2 / 3, "reduce_scatter": 1 / 2, "all_reduce": 1 / 2},
        "pieces": {"all_gather": 0.0, "reduce_scatter": 1 / 2},
        "gathers": {"all_gather": 0.0},
        "windows": {"all_gather": 0.0, "reduce_scatter": 0.0},
    }
)
"""The share of tensor parallelism's collectives that no multiplication hides, by how a framework overlaps them.

With sequence parallelism a layer gathers its input forward, and in backward its output's gradient and its input again.
It scatters a sum forward and backward. With "gradients", which Megatron-Core always does, the second gather of the
input runs beside the gradient of the input, and backward's sum beside that of the weight
(`LinearWithGradAccumulationAndAsyncCommunication` of its `tensor_parallel/layers.py`). With "pieces", each
multiplication is cut into as many as there are ranks, and copies between peers bring its rows, or take its sums away,
meanwhile (PyTorch's asynchronous tensor parallelism, `torch/distributed/_symmetric_memory`). What backward scatters is
a sum of several products, which the compiler does not cut (pull request 149946 of github.com/pytorch/pytorch). With
"gathers", XLA cuts only those multiplications that gathers feed (`--xla_tpu_decompose_all_gather_einsum`); with
"windows" those too whose sums are scattered (`--xla_jf_spmd_threshold_for_windowed_einsum_mib`; Wang et al. 2023).
"""


def exposed_share(overlap: str, op: str, scaling: str | None) -> float:
    """Return the share of a collective of tensor parallelism that no multiplication hides.

    Gathers are not cut where the product has a factor for each row (issue 149990 of github.com/pytorch/pytorch).

    Args:
        overlap: a key of `EXPOSED`.
        op: the collective.
        scaling: where factors of numbers in eight bits come from; None if there are none.

    >>> exposed_share("pieces", "all_gather", "current"), exposed_share("pieces", "all_gather", "rowwise")
    (0.0, 1.0)
    """
    return 1.0 if (overlap, op, scaling) == ("pieces", "all_gather", "rowwise") else EXPOSED[overlap].get(op, 1.0)


_CHOICES: Mapping[str, Collection[Any]] = {
    "parts_overlap": EXPOSED,
    "memory": HABITS,
    "dispatcher": DISPATCHERS,
    "captures": (None, False, True, "router", "whole"),
    "ring": ("", "gathered", "gathered eager", "ring"),
}
_RULES: Mapping[str, str] = {
    **dict.fromkeys(("clock", "attention_clock", "eager", "parts_exposed", "launch_factor"), "a number > 0"),
    "launch_s": "a number of seconds >= 0, or None",
    "hybridep_units": "a number > 0, or None",
    "attention_block": "a number > 0, or None",
    **dict.fromkeys(("gradient_accesses", "accesses_alone", "copies_units", "one_hot_capacity"), "a number >= 0"),
    "host_update_s": "a number > 0",
    "num_devices": "a number > 0, or None",
    "fitted_error": "a number >= 0, or None",
}


UPDATE_BYTES = 30
"""Of a parameter, what Adam's step in mixed precision reads and writes: gradient, weight, and 12 of state twice."""

_NO_NUMBERS = ("name", "about", "fitted_on", "fitted_error")


@dataclass(frozen=True, slots=True)
class StandsFor:
    """What a run of a strategy stands for: a framework, and a layout, on which it depends what the framework does.

    Args:
        framework: whose platform is taken where none is given; None for components alone.
        hides_parts: whether a layer has parts, whose exchanges the strategy itself does not hide.
        stage_size: ranks of a pipeline's stage.
        num_replicas: ranks that hold the same of a model.
        zero: what these shard: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too.
        num_shards: ranks that share what is sharded.
    """

    framework: str | None
    hides_parts: bool = False
    stage_size: int = 1
    num_replicas: int = 1
    zero: int = 0
    num_shards: int = 1


@typed
@dataclass(frozen=True, slots=True, kw_only=True)
class Platform(KernelHabits):
    """How a framework runs kernels on a device.

    Beside what `minitrain.workloads.workload.KernelHabits` has:

    Args:
        name: what tables call it.
        about: what it stands for.
        fitted_on: what its numbers come from, in words.
        clock: share of the arithmetic rates measured alone that a whole step sustains.
        attention_clock: the same of attention's kernels, beside `clock`: what masks, biases or another build of a
            kernel cost.
        launch_s: time between two launches, s, where the host is slower than the device; the device's own if None.
        is_eager: whether PyTorch dispatches operations one by one from Python, at the pace of the device's host
            (`minitrain.machine.kernel_device.eager_launch_s`), where no `launch_s` is given.
        captures: whether CUDA graphs have captured the passes of layers, each of which is then one launch but for
            experts; "router" if they have what leads to experts alone; "whole" if one graph has the whole step, whose
            experts count their tokens on the device (`cuda_graph_impl="full_iteration"` of Megatron-Core); if None, on
            devices whose hosts are so slow that recipes do so (`minitrain.machine.kernel_device.CAPTURED`).
        hybridep_units: multiprocessors that HybridEP takes, if not as many as by default.
        parts_exposed: share of the collectives among the neighbouring ranks of a node, which tensor parallelism has,
            that no multiplication hides; below 1 where a framework runs them piece by piece beside each other.
        attention: generation of the attention kernel, a key of the config's `kernels.attention`; "flash2" if None, or
            the config's only one. "cudnn" is that, too, where the config has none: Transformer Engine prefers cuDNN
            from Hopper on (`get_attention_backend`).
        attention_block: queries, and keys, of a block of that kernel, where its efficiency counts blocks that it
            computes whole (`minitrain.machine.device.AttentionRate`); the config's if None.
        accesses_alone: what `gradient_accesses` is where a rank's gradients are summed with no other's.
        batches_messages: whether stages exchange messages by NCCL's sends in a group of their own, which within a node
            have few channels (`minitrain.machine.network.channels_of_message`); else at the rate of the links.
        memory: how it allocates: a key of `minitrain.machine.framework_memory.HABITS`.
        shares_by_rank: whether shards that are gathered, or gradients that are scattered, lie in a list of one tensor a
            rank, each of which the host copies by an operation of its own (`all_gather` of lists in PyTorch before
            `_all_gather_base`, which DeepSpeed took until 0.5.9).
        num_devices: devices whose slowest the time of its `clock` is of: one, or as many as the runs had that it was
            fitted to, by the mean of what their slowest took (`minitrain.machine.device.KernelRates.slowest`); None
            where devices are as alike as cool ones are, for which no other waits.
        host_update_s: how long the processors of a node take for Adam's step on 1e9 parameters, s, by the library that
            the framework takes, where the hardware does not say: DeepSpeed's 2.57 s for 1e10, PyTorch's 14.76 s on two
            Xeon 8168 (ZeRO-Offload, Ren et al. 2021, table 4).
        persistent: whether kernels of matrices stay on their multiprocessors where the device has such, and wait for
            what holds some of these: PyTorch's on Hopper, Megatron's where a forward runs beside a backward.
        fitted_error: of nine in ten runs that it was fitted to, each predicted by the fit to the others, the share that
            the step time was missed by at most; None where nothing was fitted to one's own runs.

    Raises:
        UsageError: a number is outside its rule.

    Example:
        >>> Platform(name="mine", launch_s=40e-6).clock
        1.0
    """

    name: str
    about: str = ""
    fitted_on: str = "nothing"
    clock: float = 1.0
    attention_clock: float = 1.0
    launch_s: float | None = None
    is_eager: bool = False
    captures: bool | str | None = None
    hybridep_units: int | None = None
    parts_exposed: float = 1.0
    attention: str | None = None
    attention_block: int | None = None
    accesses_alone: float = 0.0
    batches_messages: bool = False
    shares_by_rank: bool = False
    persistent: bool = False
    num_devices: float | None = None
    host_update_s: float = 1.476
    memory: str = ""
    fitted_error: float | None = None

    def __post_init__(self) -> None:
        for name, rule in _RULES.items():
            value = getattr(self, name)
            if value is None and "None" in rule:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            may_be_zero = ">= 0" in rule
            if not is_number or not 0 <= value < math.inf or (value == 0 and not may_be_zero):
                raise UsageError(f"{name} of platform {self.name} must be {rule}, got {value!r}", platform=self.name)
        for name, known in _CHOICES.items():
            if (value := getattr(self, name)) not in known:
                choices = ", ".join(map(repr, known))
                raise UsageError(
                    f"{name} of platform {self.name} must be {choices}, got {value!r:.40}; use one of them",
                    platform=self.name,
                )

    @property
    def title(self) -> str:
        """Return what headlines call it: its name, and how far runs of one's own were off that it was fitted to.

        >>> Platform(name="mine", fitted_error=0.084).title
        'mine (fitted to +- 8 %)'
        """
        return self.name if self.fitted_error is None else f"{self.name} (fitted to +- {100 * self.fitted_error:.0f} %)"

    @property
    def has_modules(self) -> bool:
        """Return whether its layers are Transformer Engine's modules, whose launches take longer than PyTorch's."""
        return self.memory == "transformer engine"

    @property
    def habits(self) -> dict[str, Any]:
        """Return what kernels depend on, by name: its `KernelHabits`."""
        return {each.name: getattr(self, each.name) for each in fields(KernelHabits)}

    def in_layout(self, layout: StandsFor) -> Platform:
        """Return what is left of its habits in a layout.

        Nothing passes over gradients that are sharded as they come, and neighbours that divide no layer hide nothing.
        FSDP2's copies have a price where no clock was fitted with them.

        >>> platforms()["megatron-2021"].in_layout(StandsFor(None, zero=2)).gradient_accesses
        0.0
        """
        is_sharded = layout.zero >= 2
        accesses = self.gradient_accesses if layout.num_replicas > 1 else self.accesses_alone
        is_copied = self.copies_units == 1 and is_sharded and self.is_eager and not self.contains_contention
        hidden: dict[str, Any] = {} if layout.hides_parts else {"parts_exposed": 1.0, "parts_overlap": "none"}
        return replace(
            self,
            gradient_accesses=0.0 if is_sharded else accesses,
            copies_units=layout.num_shards if is_copied else self.copies_units * (self.copies_units > 1),
            hooked=layout.zero if self.hooked and is_sharded else 0,
            memory=habit_in(self.memory, layout.zero, layout.num_replicas),
            **hidden,
        )

    def captures_on(self, device: str) -> bool | str:
        """Return whether CUDA graphs have captured the passes of layers on a device, by the name of its config.

        "router" if they have captured what leads to experts alone, "whole" if a whole step.

        >>> find_platform("nemo-h100").captures_on("gb200_nvl72"), COMPONENTS.captures_on("gb200_nvl72")
        (True, False)
        """
        from minitrain.machine.kernel_device import CAPTURED  # noqa: PLC0415  (which needs configs)

        if self.captures is None:
            return self.is_eager and device.partition("_")[0] in CAPTURED
        return self.captures

    def rates(self, alone: KernelRates) -> KernelRates:
        """Return what kernels of a step reach on one device, which no other delays, from what they reach alone."""
        if self.num_devices is None:
            alone = alone.without("spread")
        clock = self.clock * alone.slowest(self.num_devices or 1)
        return alone.scaled(clock, self.attention_clock, self.attention_block)

    def attention_of(self, rates: KernelRates) -> str:
        """Return the generation of the attention kernel on a device that has these rates."""
        is_unknown = self.attention == "cudnn" and "cudnn" not in rates.attention
        return rates.usual_attention if is_unknown else self.attention or rates.usual_attention

    def dispatcher_kernels(self, device: str) -> Kernels | None:
        """Return what its dispatcher's kernels reach on a device, by the name of its config."""
        found = kernels_of(self.dispatcher, device)
        if found is None or self.hybridep_units is None or self.dispatcher != "hybridep":
            return found
        return replace(found, num_units=self.hybridep_units)

    @property
    def casts_apart(self) -> bool:
        """Return whether activation functions are kernels of another library than casts: Megatron-Core's are PyTorch's.

        >>> platforms()["nemo-h100"].casts_apart
        True
        """
        return self.has_modules

    @property
    def contains_contention(self) -> bool:
        """Return whether its numbers contain what collectives take from computing, and copies of units.

        What eager FSDP's platforms were fitted on had it nearly all of the time. Those of persistent kernels do not
        contain it: these were fitted to runs that are timed again for contention.
        """
        return not self.persistent and not self.fitted_on.startswith("nothing")

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that differ from those of components, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in _NO_NUMBERS and getattr(self, field.name) != field.default
        }

    @classmethod
    def read(cls, path: StrPath) -> Platform:
        """Read a platform from a JSON file, such as `minitrain hw fit-platform` writes.

        Raises:
            UsageError: the file cannot be read, or has something that no platform has.
        """
        file, names = Path(path), [field.name for field in fields(cls)]
        try:
            values = read_json(file, dict[str, Any])
            for key in (key for key in values if key not in names):
                raise UsageError(f"no key {key!r:.60} {closest(key, names)}".rstrip())
            return cls(**{"name": file.stem, **values})
        except (OSError, ValueError, TypeError) as error:
            remedy = f"give a JSON file with some of {', '.join(names)}"
            raise UsageError(f"cannot read the platform {file.name}: {error}; {remedy}") from error

    def write(self, path: StrPath) -> Path:
        """Write it as a file that `read` reads, and return the path."""
        values = {"name": self.name, "about": self.about, "fitted_on": self.fitted_on, **self.numbers()}
        if self.fitted_error is not None:
            values["fitted_error"] = self.fitted_error
        return write_text(Path(path), [json.dumps(values, indent=2), "\n"])


COMPONENTS = Platform(name="components", about="What components reach when they are measured alone.")
"""The default: nothing beside the constants of the hardware config."""


@cache
def platforms() -> Mapping[str, Platform]:
    """Return the shipped platforms by name.

    >>> platforms()["megatron-2021"].separate_gradients
    True
    """
    from importlib import resources  # noqa: PLC0415  (only where platforms are asked for)

    text = resources.files(__package__ or "minitrain.machine").joinpath("platforms.json").read_text("utf-8")
    found = {name: Platform(name=name, **values) for name, values in json.loads(text).items()}
    return MappingProxyType({COMPONENTS.name: COMPONENTS, **found})


@cache
def frameworks() -> Mapping[str, Mapping[str, Any]]:
    """Return what is known of each framework by name, from `frameworks.json` beside this file.

    One that is "as" another has its fields, and its habits, but for its own.
    """
    from importlib import resources  # noqa: PLC0415  (only where platforms are asked for)

    text = resources.files(__package__ or "minitrain.machine").joinpath("frameworks.json").read_text("utf-8")
    data = json.loads(text)

    def fields_of(name: str) -> dict[str, Any]:
        own = data["frameworks"][name]
        base = fields_of(own["as"]) if "as" in own else {}
        return {**base, **own, "habits": {**base.get("habits", {}), **own.get("habits", {})}}

    found = {}
    for name in data["frameworks"]:
        known = {key: value for key, value in fields_of(name).items() if key not in ("as", "said")}
        listed = known.get("platforms", ())
        listed = data["platforms"][listed] if isinstance(listed, str) else listed
        found[name] = {**known, "platforms": tuple(map(tuple, listed))}
    return MappingProxyType(found)


MEGATRON, TORCHTITAN = "Megatron-Core", "torchtitan"
"""The frameworks that shipped strategies stand for."""

_NEWEST = "h100"
"""The device for which a framework's platform is asked for where none is named: the newest that was fitted."""


def platform_of_framework(name: str, device: str = "", *, is_alone: bool = False) -> Platform:
    """Return a framework's platform, with the framework's habits; components alone where none is known.

    Args:
        name: of the framework, or "components".
        device: the name of a hardware config.
        is_alone: whether the device is beside no other, so that nothing is hidden.
    """
    if name not in frameworks():
        return COMPONENTS
    known = frameworks()[name]
    found = next((one for pattern, one in known["platforms"] if re.search(pattern, device or _NEWEST)), None)
    found = known["alone"] if is_alone and "alone" in known and found != "xla" else found
    base = COMPONENTS if found is None else platforms()[found]
    return base if base.by_xla else replace(base, **known["habits"])  # XLA compiles, whichever library asks for it


def find_platform(platform: str | Platform | None, device: str = "") -> Platform:
    """Return a platform by its name, its framework's, from its file ("mine.json"), or as it is.

    Args:
        platform: the platform, with what differs behind a colon ("megatron:dispatcher=deepep"); components alone if
            None.
        device: the name of a hardware config, whose family a framework's platform is for.

    Raises:
        UsageError: there is no such platform.

    >>> find_platform("Megatron-Core", "a100_80g").name
    'megatron-a100'
    >>> find_platform("nemo-h100:dispatcher=deepep,captures=True").dispatcher
    'deepep'
    """
    if platform is None:
        return COMPONENTS
    if isinstance(platform, Platform):
        return platform
    if isinstance(platform, str) and ":" in platform and "=" in platform:
        name, _, changes = platform.rpartition(":")
        return _changed(find_platform(name, device), changes)
    if isinstance(platform, str) and platform.endswith(".json"):
        return Platform.read(platform)
    named = {name.lower(): name for name in frameworks()} | {"megatron": MEGATRON}
    if isinstance(platform, str) and platform.lower() in named:
        return platform_of_framework(named[platform.lower()], device)
    found = platforms().get(platform) if isinstance(platform, str) else None
    if found is None:
        raise UsageError(
            f"platform must be a framework ({', '.join(frameworks())}), one of {', '.join(platforms())}, a "
            "platform's file (.json) or a "
            f"minitrain.machine.platforms.Platform, got {platform!r:.80}; use one of them",
            platform=platform,
        )
    return found


def _changed(platform: Platform, changes: str) -> Platform:
    """Return a platform with other values of some fields, "name=value" each.

    Raises:
        UsageError: there is no such field, or a value is outside its rule.
    """
    known = [field.name for field in fields(Platform) if field.name not in _NO_NUMBERS]
    found: dict[str, Any] = {}
    for change in changes.split(","):
        name, _, text = change.strip().partition("=")
        if name not in known:
            raise UsageError(
                f"platform {platform.name} has no {name!r:.40}; it has {', '.join(known)}", platform=platform.name
            )
        try:
            found[name] = literal_eval(text)
        except (ValueError, SyntaxError):
            found[name] = text
    return replace(platform, **found)
