"""How the operations of a run are priced, as one value: `simulate(..., fidelity=, platform=, without=, prices=)`.

| fidelity | an operation takes | a transfer takes |
|---|---|---|
| "roofline" | the slower of its FLOPs and its bytes | latency and bandwidth of a tier |
| "kernels" | the sum of its kernels (`kernel_device`) | what measured curves say (`measured_topology`) |

None is what suits the run: a transformer is priced by kernels, any other workload by the roofline, as the specification
has it. Where a device has no rates of kernels, and where layers were measured, a transformer is priced by the roofline
too; the first is said with every figure. `Pricing.on` decides, since it needs device and workload.

`prices` are measured times of layers, a `MeasuredLayers`: computing then takes these, and transfers what the fidelity
says.

With kernels, a platform says what a framework adds (`platforms`): the one that is asked for, or the one that the
strategy stands for. `without` leaves terms of the model out, to see what each is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import UsageError
from minitrain.hardware.derived_rates import why_no_kernels
from minitrain.hardware.kernel_rates import TERMS as TERMS_OF_KERNELS
from minitrain.hardware.measured_layers import MeasuredLayers
from minitrain.hardware.platforms import COMPONENTS, Platform, find_platform

if TYPE_CHECKING:
    from minitrain.hardware.config import SystemConfig

FIDELITIES = ("roofline", "kernels")

TERMS = (*TERMS_OF_KERNELS, "elementwise", "loss", "update", "curves", "transfers")
"""What an ablation may leave out: terms of a kernel's price, passes over memory (those of layers, of the loss, of the
optimizer), the curves of transfers, and transfers at all."""


@final
@dataclass(frozen=True, slots=True)
class Pricing:
    """How operations are priced.

    Args:
        fidelity: "roofline" or "kernels"; what suits device and workload if None.
        platform: what a framework adds to the price of kernels: a name or a `Platform`.
        without: terms to leave out, of `TERMS`.
        prices: measured times of layers, or None.
        stands_for: the platform where None was asked for, which is the strategy's; components alone if None too.
        reason: why a transformer is priced by the roofline, where nobody asked for that.

    Raises:
        UsageError: there is no such fidelity, platform or term, or these two are given for the roofline.
    """

    fidelity: str | None = None
    platform: str | Platform | None = None
    without: Sequence[str] = ()
    prices: MeasuredLayers | None = None
    stands_for: str | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.fidelity is not None and self.fidelity not in FIDELITIES:
            known = " or ".join(f'"{name}"' for name in FIDELITIES)
            raise UsageError(f"fidelity must be {known}, got {self.fidelity!r:.80}", fidelity=self.fidelity)
        terms = (self.without,) if isinstance(self.without, str) else tuple(self.without)
        for term in terms:
            if term not in TERMS:
                raise UsageError(f"a price has no term {term!r:.80}; use {', '.join(TERMS)}", term=term)
        if self.fidelity == "roofline" and (self.platform is not None or terms):
            raise _for_kernels("without" if self.platform is None else "platform")
        if self.prices is not None and not isinstance(self.prices, MeasuredLayers):
            raise UsageError(
                f"prices must be measured times of layers, a MeasuredLayers, got {self.prices!r:.80}; read a table "
                "with mt.MeasuredLayers.read"
            )
        if self.platform is not None:
            find_platform(self.platform)  # raises where there is none
        object.__setattr__(self, "without", terms)

    def __str__(self) -> str:
        """Say it in words.

        >>> str(Pricing("kernels", "megatron-2021", ["waves"]))
        'kernels, platform megatron-2021, without waves'
        """
        words = [f"{self.fidelity or 'default'}{f' ({self.reason})' if self.reason else ''}"]
        if self.platform is not None:
            words.append(f"platform {self.known_platform.title}")
        if self.without:
            words.append(f"without {' '.join(self.without)}")
        if self.prices is not None:
            words.append(f"layers of {self.prices.source}")
        return ", ".join(words)

    def on(self, system: SystemConfig, workload: Any) -> Pricing:
        """Return how operations of a workload are priced on a device: with a fidelity, and with kernels a platform.

        Raises:
            UsageError: a platform or terms are given, and the workload is priced by the roofline.
        """
        reason = self._why_roofline(system, workload)
        if reason is not None:
            return replace(self, fidelity="roofline", stands_for=None, reason=reason or self.reason)
        wanted = self.platform or (self.stands_for if _has_model(workload) else None)
        platform = None if wanted is None and not _has_model(workload) else find_platform(wanted, system.name)
        return replace(self, fidelity="kernels", platform=platform, stands_for=None)

    def _why_roofline(self, system: SystemConfig, workload: Any) -> str | None:
        """Return why the roofline prices a workload, "" where it was asked for or is usual; None where kernels do."""
        if self.fidelity is not None:
            return None if self.fidelity == "kernels" else ""
        if not _has_model(workload):
            if self._has_options:
                raise _for_kernels("without" if self.platform is None else "platform", "a transformer")
            return ""
        if self._has_options:
            return None
        return "" if self.prices is not None else why_no_kernels(system, workload) or None

    @property
    def _has_options(self) -> bool:
        """Whether something was given that is for prices of kernels alone."""
        return self.platform is not None or bool(self.without)

    @property
    def is_default(self) -> bool:
        """Whether nothing was asked for but the specified pricing, or what suits the run."""
        return self.fidelity != "kernels" and self.prices is None and not self._has_options

    @property
    def known_platform(self) -> Platform:
        """Return the platform; components alone if none was named."""
        return COMPONENTS if self.platform is None else find_platform(self.platform)


def _has_model(workload: Any) -> bool:
    """Return whether a workload is a transformer."""
    return getattr(workload, "model", None) is not None


def _for_kernels(name: str, *others: str) -> UsageError:
    """Return the error for what is given beside the roofline, and for kernels alone."""
    remedy = " or ".join(['give fidelity="kernels" too', *(f"train {other}" for other in others)])
    return UsageError(f"{name} is for prices of kernels; {remedy}, or leave {name} out", fidelity="roofline")


ROOFLINE = Pricing("roofline")
"""The specified pricing."""

USUAL = Pricing()
"""What suits the run."""

PRICING_PARAMETERS = ("fidelity", "platform", "without", "prices")
"""The parameters of a run that make its `Pricing`."""
