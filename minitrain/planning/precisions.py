"""In which precision a step may be computed, and which devices have it natively.

A device has a precision if each of its datatypes has a price: by kernels, a rate of its matrix units, and of the vector
units for float32; with `fidelity="roofline"`, a rate of its matrix units. Configs give bfloat16 and float16 one rate,
so that a device has bfloat16 unless its config's features say that it has not. Emulation has no price here, so that a
device takes no part in a plan of a precision that it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from minitrain.errors import UsageError
from minitrain.hardware.clusters.cluster import Cluster
from minitrain.hardware.config import SystemConfig
from minitrain.workloads.models import find_model
from minitrain.workloads.precision import PRECISIONS, Precision, precision_fault

Step = Mapping[str, Any]


def steps_by_precision(step: Step, precisions: Any, cluster: Cluster) -> list[tuple[Precision | None, Step]]:
    """Return a step in each precision that it may be computed in; as it is if precisions is None.

    Args:
        step: what is trained, as arguments of `simulate`.
        precisions: names, or `Precision`; of equally fast ones, the first is taken.
        cluster: what it is trained on.

    Raises:
        UsageError: one is no precision, the workload is no transformer, or prices are of one precision alone.
    """
    if precisions is None:
        return [(None, step)]
    allowed = [_precision(each) for each in _listed(precisions)]
    names = [each.name for each in allowed]
    if len(set(names)) < len(names):
        raise UsageError(f"precisions must have names of their own, got {', '.join(names)}; name each another")
    _require_priced(step, allowed, cluster)
    model = find_model(step["workload"])
    return [(each, {**step, "workload": replace(model, precision=each)}) for each in allowed]


def _listed(precisions: Any) -> Sequence[Any]:
    """Return precisions as a list of at least one."""
    if isinstance(precisions, str) or not isinstance(precisions, Sequence) or not precisions:
        known = ", ".join(f'"{name}"' for name in PRECISIONS)
        raise UsageError(f"precisions must be a list of at least one of {known}, got {precisions!r:.80}")
    return precisions


def _precision(given: Any) -> Precision:
    """Return a precision by its name, or as it is."""
    fault = precision_fault(given)
    if fault is not None:
        raise UsageError(f"precisions: {fault}")
    return given if isinstance(given, Precision) else PRECISIONS[given]


def _require_priced(step: Step, precisions: Sequence[Precision], cluster: Cluster) -> None:
    """Require that prices differ by precision."""
    workload = step.get("workload")
    if workload is None or hasattr(workload, "compute_cost"):
        raise UsageError(
            "precisions are for transformers, and the workload has one of its own; leave precisions out, or give a "
            'model such as "llama3-8b"'
        )
    if step.get("prices") is not None or any(group.prices is not None for group in cluster.devices):
        raise UsageError(
            "precisions cannot be chosen by measured layers, which were measured in one of them; leave precisions out"
        )
    narrow = next((each for each in precisions if each.weight_datatype is not None), None)
    if narrow is not None and step.get("fidelity") == "roofline":
        raise UsageError(
            f"precision {narrow.name} multiplies weights in {narrow.weight_datatype}, which prices of kernels alone "
            'know; leave fidelity="roofline" out, or the precision'
        )


def datatype_lacking(system: SystemConfig, precision: Precision) -> str | None:
    """Return the datatype of a precision that a config says its device has not; None if it says nothing of the kind.

    >>> from minitrain.hardware import load_config
    >>> datatype_lacking(load_config("v100_32g_nvl8"), PRECISIONS["bf16"])
    'bfloat16'
    """
    if precision.name == "bf16" and system.sheet.features.get("bfloat16") is False:
        return "bfloat16"
    narrow = precision.weight_datatype
    return None if narrow is None or narrow in system.matrix else narrow
