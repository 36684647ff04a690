"""`python -m benchmarks.kernels --data DIR`: prices of kernels and transfers beside published measurements.

DIR holds the tables k1 (matrix multiplications), k2 (attention), k3 (copies and launches), i1 and i2 (collectives) as
CSV files with a header. The constants of the hardware configs come from one half of the rows of k1, k2 and i2, and of
two sweeps of i1 (`fitted`); the other half is `held out`. Which half a row belongs to follows from its `row_id` alone.
Of two more sweeps of i1 all rows were looked at (`fitted`). Rows of devices or operations on which nothing was fitted
are `not fitted`; where a constant is itself one row's figure, that row is left out.
"""

from __future__ import annotations

import argparse
import csv
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from minitrain.machine import load_config
from minitrain.machine.config import SystemConfig
from minitrain.machine.kernel_device import KernelDevice
from minitrain.machine.measured_topology import MeasuredTopology
from minitrain.workloads.kernels import FlashAttention, Matmul, MemoryPass

Row = dict[str, str]

PCIE_CLOCK = 252.9 / 271.2  # best matmul found on the PCIe card over that on the SXM one (k1, rows 0004 and 0002)
_HEAD = f"{'table':<64}{'rows':>6}{'mean':>8}{'median':>8}{'p90':>8}{'bias':>8}"


@dataclass(frozen=True, slots=True)
class Point:
    """One comparison: what was measured and what is predicted, s."""

    table: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Return the relative error, positive where the prediction is too long."""
        return self.predicted_s / self.measured_s - 1


def half(row: Row) -> str:
    """Return which half of a table a row is in."""
    return "held out" if zlib.crc32(row["row_id"].encode()) % 2 else "fitted"


def read(folder: Path, table: str) -> list[Row]:
    """Return the rows of the table whose file name begins so."""
    (path,) = folder.glob(f"{table}_*.csv")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def device(name: str, clock: float = 1.0) -> KernelDevice:
    """Return a shipped device, at another clock if asked."""
    system = load_config(name)
    assert system.kernels is not None
    return KernelDevice(system, system.kernels.scaled(clock))


def matmuls(folder: Path) -> Iterator[Point]:
    """Compare with k1."""
    devices = {"A100-PCIe": device("a100_80g", PCIE_CLOCK), "B200-SXM": device("b200_192g_nvl8")}
    fp8 = device("h100_80g_nvl8")
    for row in read(folder, "k1"):
        if row["op"] == "matmul" and row["gpu"] in devices:
            yield Point(
                f"k1 {row['gpu']} bf16, {half(row)}",
                float(row["time_us"]) * 1e-6,
                devices[row["gpu"]].kernel_seconds(matmul(row)),
            )
        elif row["op"] == "fp8 gemm":
            size = "m >= 4096" if int(row["m"]) >= 4096 else "m <= 128"
            yield Point(
                f"k1 {row['gpu']} fp8 {size}, not fitted",
                float(row["time_us"]) * 1e-6,
                fp8.kernel_seconds(matmul(row, "float8", 1)),
            )


def matmul(row: Row, datatype: str = "float16", element_bytes: int = 2) -> Matmul:
    """Return the kernel of a row of k1: layout NT is a weight gradient, added up in single precision."""
    is_gradient = row["layout"] == "NT"
    result_bytes = 8 if row["out_dtype"] == "fp32" else (4 if row["accumulate"] == "True" else 2)
    return Matmul(
        int(row["m"]),
        int(row["n"]),
        int(row["k"]),
        int(row["b"] or 1),
        "weight_gradient" if is_gradient else "forward",
        datatype,
        element_bytes,
        result_bytes,
    )


def attentions(folder: Path) -> Iterator[Point]:
    """Compare with k2: single devices; B200's few heads of short sequences wait for the host, and stand apart."""
    simulated = {
        "A100-PCIe": (device("a100_80g", PCIE_CLOCK), "flash2"),
        "B200-SXM": (device("b200_192g_nvl8"), "cudnn"),
        "A100-SXM": (device("a100_80g"), "flash2"),
    }
    for row in read(folder, "k2"):
        if row["gpu"] not in simulated or row["cp"] not in ("", "1"):
            continue
        on, generation = simulated[row["gpu"]]
        seconds = on.kernel_seconds(attention(row, generation, is_backward=False))
        if row["op"] == "sdp_bwd" or row["op"].startswith("fwd+bwd"):
            back = on.kernel_seconds(attention(row, generation, is_backward=True))
            seconds = back if row["op"] == "sdp_bwd" else seconds + back
        which = "not fitted" if row["gpu"] == "A100-SXM" else half(row)
        if row["gpu"] == "B200-SXM" and int(row["n_heads"]) < 16 and row["seq_len"] == "4096":
            which = "4 or 8 heads, at the host's floor"
        direction = "backward" if row["op"] == "sdp_bwd" else "forward"
        direction = "fwd, fwd + bwd" if row["gpu"] == "A100-SXM" else direction
        yield Point(f"k2 {row['gpu']} {direction}, {which}", float(row["time_us"]) * 1e-6, seconds)


def attention(row: Row, generation: str, *, is_backward: bool) -> FlashAttention:
    """Return the kernel of a row of k2; all of them are causal."""
    length = int(row["seq_len"])
    return FlashAttention(
        num_samples=int(row["batch"]),
        num_queries=length,
        num_keys=length,
        num_heads=int(row["n_heads"]),
        num_kv_heads=int(row["n_kv_heads"]),
        key_dim=int(row["qk_dim"]),
        value_dim=int(row["v_dim"]),
        num_pairs=length * (length + 1) // 2,
        is_backward=is_backward,
        generation=generation,
    )


_STREAMED = {"A100-80GB": "a100_80g", "A100-40GB": "a100_40g", "V100": "v100_32g_nvl8"}
_STREAMED["GH200 (H100 96GB HBM3)"] = "gh200_96g_nvl4"


def streams(folder: Path) -> Iterator[Point]:
    """Compare a pass over 1 GB with k3; the scaled copies are where the constants come from, and are left out."""
    for row in read(folder, "k3"):
        if row["gpu"] in _STREAMED and row["quantity"].startswith("HBM") and "scale" not in row["quantity"]:
            work = MemoryPass("stream", 10**9, 1)
            seconds = device(_STREAMED[row["gpu"]]).kernel_seconds(work)
            yield Point("k3 bandwidth of other patterns, not fitted", 1 / float(row["value"]), seconds)


def with_interfaces(system: SystemConfig, num_nics: int, nic_GBps: float) -> SystemConfig:
    """Return a system whose nodes have other interfaces between them."""
    inner, outer = system.networks
    share = nic_GBps * num_nics / inner.size
    return replace(system, networks=(inner, replace(outer, bandwidth=share, nics=num_nics)))


_P4DE = with_interfaces(load_config("a100_80g"), 4, 12.5)  # four times 100 Gb/s a node

_SWEEPS = {
    ("A100-SXM (single node)", "8"): "a100_80g",
    ("H200-SXM", "8"): "h200_141g_nvl8",
    ("B200-SXM (AWS P6)", "8"): "b200_192g_nvl8",
    ("H100-SXM", "8"): "h100_80g_nvl8",
    ("A100-SXM-80GB (p4de.24xlarge)", "16"): "a100_80g",
    ("H100-SXM (p5.48xlarge)", "16"): "h100_80g_nvl8",
    ("H100-SXM (HF cluster)", "8"): "h100_80g_nvl8",
    ("H100-SXM (HF cluster)", "16"): "h100_80g_nvl8",
    ("H100-SXM (HF cluster)", "32"): "h100_80g_nvl8",
}
_HALVED = ("H200-SXM", "B200-SXM (AWS P6)")  # constants come from half of a sweep
_NOT_FITTED = ("A100-SXM (single node)", "H100-SXM (HF cluster)")  # no constant comes from these rows


def collectives(folder: Path) -> Iterator[Point]:
    """Compare with i1, by device and number of nodes; rings by choice are left out where the default is none."""
    for row in read(folder, "i1"):
        name = _SWEEPS.get((row["gpu"], row["n_gpus"]))
        if name is None or not row["time_us"] or "NVLS_ENABLE=0" in row["algo"]:
            continue
        large = ">= 1 MiB" if int(row["size_bytes"]) >= 2**20 else "< 1 MiB"
        table = f"i1 {row['gpu'].replace(' (', ' ').split(')')[0]} x{row['n_gpus']} {row['collective']} {large}"
        system = load_config(name)
        yield point_of_transfer(f"{table}, {role(row)}", row, _P4DE if "p4de" in row["gpu"] else system)


def role(row: Row) -> str:
    """Return what a row of i1 was used for."""
    if row["gpu"] in _NOT_FITTED:
        return "not fitted"
    return half(row) if row["gpu"] in _HALVED and row["tool"].startswith("all_reduce_bench") else "fitted"


def all_reduces(folder: Path) -> Iterator[Point]:
    """Compare with i2: 1 MiB to 1 GiB among 2 to 8 devices."""
    systems = {"A100": load_config("a100_80g"), "V100": load_config("v100_32g_nvl8")}
    for row in read(folder, "i2"):
        small = "" if int(row["size_bytes"]) >= 32e6 else " < 32 MB"
        yield point_of_transfer(f"i2 {row['gpu']}{small}, {half(row)}", row, systems[row["gpu"]])


def point_of_transfer(table: str, row: Row, system: SystemConfig) -> Point:
    """Return the comparison of a collective."""
    num_ranks = int(row["n_gpus"])
    net = MeasuredTopology(system.networks, num_ranks)
    found = net.collective(row["collective"], int(row["size_bytes"]), range(num_ranks))
    return Point(table, float(row["time_us"]) * 1e-6, found.seconds)


TABLES: tuple[Callable[[Path], Iterator[Point]], ...] = (matmuls, attentions, streams, collectives, all_reduces)


def line(table: str, errors: list[float]) -> str:
    """Return a row of the table, errors in percent."""
    sizes = sorted(map(abs, errors))
    p90 = sizes[math.ceil(0.9 * len(sizes)) - 1]
    figures = "".join(f"{100 * value:>8.2f}" for value in (fmean(sizes), median(sizes), p90, fmean(errors)))
    return f"{table:<64}{len(errors):>6}{figures}"


def main() -> None:
    """Print mean, median and p90 of |error| and the bias, in percent, by table and half."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables k1, k2, k3, i1 and i2")
    asked = parser.parse_args()
    print(_HEAD)
    for compare in TABLES:
        errors: dict[str, list[float]] = {}
        for point in compare(asked.data):
            errors.setdefault(point.table, []).append(point.error)
        for table in sorted(errors):
            print(line(table, errors[table]), flush=True)


if __name__ == "__main__":
    main()
