"""The rates of kernels on a device where none were measured: an estimate from its data sheet.

A hardware config without the key `kernels` is priced by these, if its data sheet says how many multiprocessors it has
(the key `units`). Each constant is that of devices which were measured, as a share of their peaks:

| rate | estimate | where it comes from |
|---|---|---|
| copy | 0.87 of the memory's peak | V100 0.90, A100 0.85 and 0.89, H100 0.89, H200 0.81 |
| matrix multiplication | 0.78 of the peak, prologue 146 steps | A100 0.835, H100 0.76, H200 0.77, V100 0.77 |
| attention | flash2 at 0.5 and 0.4 of the peak; flash1 half | between A100 0.67 / 0.52 and H100 0.35 / 0.30 |
| launches | 2.6 us, in graphs 1.3 us | V100, A100 and H100 |

An estimate is good for comparing layouts on one device, and may miss a step by a quarter.

Multiplications in single precision, for which configs give no measured rate, run on the vector units of any device: at
0.93 of the data sheet's rate, which is what layers of OPT-30B reach on A100 (18.2 of 19.5 TFLOP/s; on V100-16 12.5 of
15.7, or of 14.0 on the PCIe card; Strati et al. 2025). A framework that lets matrix units round to TF32 is quicker.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from minitrain.errors import HardwareConfigError
from minitrain.hardware.kernel_rates import AttentionRate, KernelRates, MatmulRate

if TYPE_CHECKING:
    from minitrain.hardware.config import SystemConfig

SINGLE_SHARE = 0.93
COPY_SHARE, MATMUL_SHARE, PROLOGUE = 0.87, 0.78, 146.0
LAUNCH_S, GRAPH_LAUNCH_S = 2.6e-6, 1.3e-6
_FLASH2 = AttentionRate(0.5, 0.2, ((0.0, 1.0),)), AttentionRate(0.4, 0.2, ((0.0, 1.0),))


@lru_cache(maxsize=64)
def rates_of(system: SystemConfig) -> KernelRates:
    """Return what kernels reach on a device: what its config says, or an estimate; single precision by its data sheet.

    Raises:
        HardwareConfigError: the config has neither the key `kernels` nor the key `units`.
    """
    rates = system.kernels or _derived(system)
    vector = system.vector.get("float32")
    if vector is None or "float32" in rates.matmul:
        return rates
    tflops = SINGLE_SHARE * vector.tflops
    fastest = max(rates.matmul.values(), key=lambda rate: rate.tflops)
    prologue = fastest.prologue * tflops / fastest.tflops  # as many seconds, hence fewer of the longer steps
    return replace(rates, matmul={**rates.matmul, "float32": MatmulRate(tflops, prologue)})


def why_no_kernels(system: SystemConfig, workload: Any) -> str:
    """Return why kernels of a transformer have no price on a device; "" where they have one.

    A datatype that the device lacks is no reason: it has no price by the roofline either.
    """
    if system.kernels is None and system.sheet.num_units is None:
        return f"{system.name} has no figures of kernels"
    precision = getattr(getattr(workload, "model", None), "precision", None)
    wanted = {workload.datatype, getattr(precision, "weight_datatype", None) or workload.datatype}
    lacking = sorted(name for name in wanted if name in system.matrix and name not in rates_of(system).matmul)
    return f"{system.name} has no figures of kernels in {lacking[0]}" if lacking else ""


def _derived(system: SystemConfig) -> KernelRates:
    """Return the estimate."""
    if system.sheet.num_units is None:
        raise HardwareConfigError(
            f"prices of kernels need what kernels reach on the device, but config {system.name} has no key kernels, "
            f"and no key units from which to estimate it; add one of them, or use a config that has it",
            path=system.name,
        )
    return KernelRates(
        num_units=system.sheet.num_units,
        GBps=COPY_SHARE * system.mem_hbm.GBps,
        launch_s=LAUNCH_S,
        graph_launch_s=GRAPH_LAUNCH_S,
        matmul={key: MatmulRate(MATMUL_SHARE * rate.tflops, PROLOGUE) for key, rate in system.matrix.items()},
        attention={"flash2": _FLASH2, "flash1": (_FLASH2[0].scaled(0.5), _FLASH2[1].scaled(0.5))},
    )
