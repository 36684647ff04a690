"""What a framework adds to the price of kernels, as named values: `mt.platforms()`.

A `Platform` here is a set of constants; the virtual platform whose links runs share is `minitrain.platform`.

Prices of kernels are those of components measured alone: a matrix multiplication on a cool card, a copy, a launch from
C++. A run of a framework differs from that in ways that no component tells. A `Platform` says in which, in at most six
numbers, and on what they were fitted. No platform is the default.

The shipped ones are in `platforms.json` beside this file; `dataclasses.replace` makes another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Any, final

from minitrain.errors import UsageError

EXPOSED: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {"none": {}, "gradients": {"all_gather": 2 / 3, "reduce_scatter": 1 / 2, "all_reduce": 1 / 2}}
)
"""The share of tensor parallelism's collectives that no multiplication hides, by how a framework overlaps them.

With sequence parallelism a layer gathers its input forward, and in backward its output's gradient and its input again.
It scatters a sum forward and backward. With "gradients", which Megatron-Core always does, the second gather of the
input runs beside the gradient of the input, and backward's sum beside that of the weight
(`LinearWithGradAccumulationAndAsyncCommunication` of its `tensor_parallel/layers.py`).
"""


_RULES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("clock", "attention_clock", "eager", "parts_exposed"), "a number > 0"),
        "launch_s": "a number of seconds >= 0, or None",
        "gradient_accesses": "a number >= 0",
    }
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """How a framework runs kernels on a device.

    Args:
        name: what tables call it.
        about: what it stands for.
        fitted_on: what its numbers come from, in words.
        clock: share of the arithmetic rates measured alone that a whole step sustains.
        attention_clock: the same of attention's kernels, beside `clock`: what masks, biases or another build of a
            kernel cost.
        eager: factor on the traffic of passes over memory; above 1 where a framework fuses less.
        launch_s: time between two launches, s, where the host is slower than the device; the device's own if None.
        parts_exposed: share of the collectives among the neighbouring ranks of a node, which tensor parallelism has,
            that no multiplication hides; below 1 where a framework runs them piece by piece beside each other.
        parts_overlap: which of these collectives run beside the multiplications of gradients, "none" or "gradients":
            see `EXPOSED`.
        separate_gradients: whether gradients are added up in single precision by a kernel of its own.
        stops_early: whether full recomputation ends before a layer's last multiplication, as PyTorch's non-reentrant
            checkpoints do.
        attention: generation of the attention kernel, a key of the config's `kernels.attention`; "flash2" if None, or
            the config's only one.
        fused_loss: whether softmax and cross entropy are one kernel.
        gradient_accesses: how often a step reads or writes an element of a rank's whole gradients, beside what the
            optimizer does with its shards.

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
    eager: float = 1.0
    launch_s: float | None = None
    parts_exposed: float = 1.0
    parts_overlap: str = "none"
    separate_gradients: bool = False
    stops_early: bool = False
    attention: str | None = None
    fused_loss: bool = False
    gradient_accesses: float = 0.0

    def __post_init__(self) -> None:
        for name, rule in _RULES.items():
            value = getattr(self, name)
            if name == "launch_s" and value is None:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            may_be_zero = ">= 0" in rule
            if not is_number or not 0 <= value < math.inf or (value == 0 and not may_be_zero):
                raise UsageError(f"{name} of platform {self.name} must be {rule}, got {value!r}", platform=self.name)
        if self.parts_overlap not in EXPOSED:
            raise UsageError(
                f"parts_overlap of platform {self.name} must be {', '.join(EXPOSED)}, got {self.parts_overlap!r:.40}; "
                "use one of them",
                platform=self.name,
            )

    def exposed_share(self, op: str, usage: float) -> float:
        """Return by what share of their time tensor parallelism's collectives of a kind make a step longer.

        Args:
            op: the collective.
            usage: the share of the device that it takes from what runs beside it.
        """
        exposed = EXPOSED[self.parts_overlap].get(op, 1.0)
        return self.parts_exposed * (exposed + (1 - exposed) * usage)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that differ from those of components, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("name", "about", "fitted_on") and getattr(self, field.name) != field.default
        }


COMPONENTS = Platform(name="components", about="What components reach when they are measured alone.")
"""The default: nothing beside the constants of the hardware config."""


@cache
def platforms() -> Mapping[str, Platform]:
    """Return the shipped platforms by name.

    >>> platforms()["megatron-2021"].separate_gradients
    True
    """
    from importlib import resources  # noqa: PLC0415  (only where platforms are asked for)

    text = resources.files(__package__ or "minitrain.hardware").joinpath("platforms.json").read_text("utf-8")
    found = {name: Platform(name=name, **values) for name, values in json.loads(text).items()}
    return MappingProxyType({COMPONENTS.name: COMPONENTS, **found})


def find_platform(platform: str | Platform | None) -> Platform:
    """Return a platform by its name, or as it is.

    Raises:
        UsageError: there is no such platform.
    """
    if platform is None:
        return COMPONENTS
    if isinstance(platform, Platform):
        return platform
    found = platforms().get(platform) if isinstance(platform, str) else None
    if found is None:
        raise UsageError(
            f"platform must be {', '.join(platforms())} or a minitrain.hardware.platforms.Platform, got "
            f"{platform!r:.80}; use one of them",
            platform=platform,
        )
    return found
