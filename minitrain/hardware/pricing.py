"""How the operations of a run are priced, as one value: `simulate(..., fidelity=, platform=, without=, prices=)`.

| fidelity | an operation takes | a transfer takes |
|---|---|---|
| "roofline" (the default) | the slower of its FLOPs and its bytes | latency and bandwidth of a tier |
| "kernels" | the sum of its kernels (`kernel_device`) | what measured curves say (`measured_topology`) |

`prices` are measured times of layers, a `MeasuredLayers`: computing then takes these, and transfers what the fidelity
says.

With kernels, a platform says what a framework adds (`platforms`), and `without` leaves terms of the model out, to see
what each is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import final

from minitrain.errors import UsageError
from minitrain.hardware.kernel_rates import TERMS as TERMS_OF_KERNELS
from minitrain.hardware.measured_layers import MeasuredLayers
from minitrain.hardware.platforms import Platform, find_platform

FIDELITIES = ("roofline", "kernels")

TERMS = (*TERMS_OF_KERNELS, "elementwise", "loss", "update", "curves", "transfers")
"""What an ablation may leave out: terms of a kernel's price, passes over memory (those of layers, of the loss, of the
optimizer), the curves of transfers, and transfers at all."""


@final
@dataclass(frozen=True, slots=True)
class Pricing:
    """How operations are priced.

    Args:
        fidelity: "roofline" or "kernels".
        platform: what a framework adds to the price of kernels: a name or a `Platform`; components alone if None.
        without: terms to leave out, of `TERMS`.
        prices: measured times of layers, or None.

    Raises:
        UsageError: there is no such fidelity, platform or term, or these two are given for the roofline.
    """

    fidelity: str = "roofline"
    platform: str | Platform | None = None
    without: Sequence[str] = ()
    prices: MeasuredLayers | None = None

    def __post_init__(self) -> None:
        if self.fidelity not in FIDELITIES:
            known = " or ".join(f'"{name}"' for name in FIDELITIES)
            raise UsageError(f"fidelity must be {known}, got {self.fidelity!r:.80}", fidelity=self.fidelity)
        terms = (self.without,) if isinstance(self.without, str) else tuple(self.without)
        for term in terms:
            if term not in TERMS:
                raise UsageError(f"a price has no term {term!r:.80}; use {', '.join(TERMS)}", term=term)
        if self.fidelity == "roofline" and (self.platform is not None or terms):
            name = "without" if self.platform is None else "platform"
            raise UsageError(
                f'{name} is for prices of kernels; give fidelity="kernels" too, or leave {name} out',
                fidelity="roofline",
            )
        if self.prices is not None and not isinstance(self.prices, MeasuredLayers):
            raise UsageError(
                f"prices must be measured times of layers, a MeasuredLayers, got {self.prices!r:.80}; read a table "
                "with mt.MeasuredLayers.read"
            )
        object.__setattr__(self, "platform", None if self.platform is None else find_platform(self.platform))
        object.__setattr__(self, "without", terms)

    def __str__(self) -> str:
        """Say it in words.

        >>> str(Pricing("kernels", "megatron-2021", ["waves"]))
        'kernels, platform megatron-2021, without waves'
        """
        words = [self.fidelity]
        if self.platform is not None:
            words.append(f"platform {self.known_platform.name}")
        if self.without:
            words.append(f"without {' '.join(self.without)}")
        if self.prices is not None:
            words.append(f"layers of {self.prices.source}")
        return ", ".join(words)

    @property
    def is_default(self) -> bool:
        """Whether this is the specified pricing."""
        return self.fidelity == "roofline" and self.prices is None

    @property
    def known_platform(self) -> Platform:
        """Return the platform; components alone if none was named."""
        return find_platform(self.platform)


ROOFLINE = Pricing()
"""The specified pricing."""

PRICING_PARAMETERS = tuple(field.name for field in fields(Pricing))
"""The parameters of a run that make its `Pricing`: fidelity, platform, without, prices."""
