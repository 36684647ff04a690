"""What a number costs: the bytes of a parameter, its gradient, its optimizer state and an activation.

Modelled: one set of sizes for a whole model. Mixed precision after Narang et al. (2018) and ZeRO (Rajbhandari et al.
2020, section 3.1), with gradients accumulated in single precision as Megatron-LM does (Narayanan et al. 2021): 2
bytes a parameter, 4 a gradient, and 12 of optimizer state (the parameter in single precision and Adam's two
moments). Masks are bytes, and statistics (logits, softmax sums, router probabilities) are in single precision,
whatever the rest is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

from minitrain.workloads.field_faults import closest, count_fault, refuse, shown

MASK_BYTES = 1
"""Bytes of an element of a dropout mask (Korthikanti et al. 2022, section 4)."""

STATISTIC_BYTES = 4
"""Bytes of what is kept in single precision: logits, log-sum-exp of attention, router probabilities."""

_LEAST = {"parameter_bytes": 1, "gradient_bytes": 0, "optimizer_bytes": 0, "activation_bytes": 1}


@final
@dataclass(frozen=True, slots=True)
class Precision:
    """The bytes of what training holds.

    Args:
        name: what tables call it.
        parameter_bytes: bytes of a parameter that layers compute with.
        gradient_bytes: bytes of a parameter's gradient.
        optimizer_bytes: bytes of a parameter's optimizer state, a copy in higher precision included.
        activation_bytes: bytes of an element of an activation.
        datatype: what hardware configs call the numbers that matrix units multiply; bf16 and fp16 share a rate.
        weight_datatype: the same of layers' multiplications with weights where that differs ("float8"); prices of
            kernels alone know it. Attention and the head keep `datatype`, as in NVIDIA's Transformer Engine.

    Raises:
        UsageError: a size is no integer, or too small; all faults at once.

    Example:
        >>> Precision().bytes_per_parameter
        18
    """

    name: str = "bf16"
    parameter_bytes: int = 2
    gradient_bytes: int = 4
    optimizer_bytes: int = 12
    activation_bytes: int = 2
    datatype: str = "float16"
    weight_datatype: str | None = None

    def __post_init__(self) -> None:
        found = (count_fault(name, getattr(self, name), least, f"{name}=2") for name, least in _LEAST.items())
        faults = [fault for fault in found if fault is not None]
        texts = [name for name in ("name", "datatype") if not isinstance(getattr(self, name), str)]
        faults += [f'{name} must be a string, got {shown(getattr(self, name))}; write {name}="..."' for name in texts]
        if faults:
            raise refuse("the precision", faults)

    @property
    def bytes_per_parameter(self) -> int:
        """Return the bytes of a parameter with its gradient and optimizer state."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def saved_bytes(self) -> int:
        """Return the bytes of an element that a multiplication with a weight keeps of its input for backward.

        One where it multiplies in eight bits: the weight's gradient is made of the same copy (Transformer Engine's
        `LayerNormLinear` and `Linear`; DeepSeek-V3, section 3.3.3).
        """
        return 1 if self.weight_datatype == "float8" else self.activation_bytes


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "bf16": Precision(),
        "fp16": Precision("fp16"),
        "fp32": Precision("fp32", 4, 4, 8, 4, "float32"),
        "fp8": Precision("fp8", weight_datatype="float8"),
    }
)
"""The precisions with a name: mixed in bf16 or fp16; single throughout, with Adam's moments but no copy; or bf16 with
layers' multiplications with weights in eight bits, which prices of kernels know (parameters and activations are kept in
16 bits)."""


def precision_fault(value: Any) -> str | None:
    """Return what is wrong with a precision or the name of one, or None."""
    if isinstance(value, Precision) or (isinstance(value, str) and value in PRECISIONS):
        return None
    known = ", ".join(f'"{name}"' for name in PRECISIONS)
    hint = closest(value, PRECISIONS)
    return f"precision must be {known} or a Precision, got {shown(value)}; {hint or 'use one of them'}"
