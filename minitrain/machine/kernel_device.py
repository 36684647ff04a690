"""The time of single kernels on a device: tiles and waves, attention by generation, achieved bandwidth, launch floor.

A matrix multiplication (m, n, k), `b` of them, is cut into tiles of tm x tn, which the device's multiprocessors
("units") work off in waves. Its time is the least over all tiles, and over 1, 2 and 4 ways to split k, of

    waves = ceil(b ceil(m/tm) ceil(n/tn) split / units)
    start + max(waves 2 tm tn (k/split + prologue) / (rate / units x e(tile)), traffic)

where `traffic` is the bytes of operands and result at the achieved bandwidth; the partial sums of a split are written
beside that, in single precision. Unlike a peak times an efficiency this knows that 109 tiles on 108 units take as long
as 216 (wave quantisation), that narrow results use narrow and less efficient tiles, and that short sums pay for the
pipeline. Experts differ in their tokens: their last tile of rows is half full in the mean.

Blackwell's clock follows its power. Units that wait in the last wave leave theirs to the others: cuBLAS sustains as
much at 4096^3 as at 32768^3. So waves go at the rate of a burst there, and all FLOPs take what power sustains, if
longer. That counts for dense multiplications; experts' were measured as shares of what is sustained.

Flash attention takes its FLOPs at the generation's share of the peak, and a share of its longest block at the end, when
units run dry. A config may say that its efficiency counts whole blocks of queries and keys, as kernels compute them
whose mask leaves a part: then short sequences and narrow windows have more work. A pass over memory takes its bytes at
the achieved bandwidth. A pass through a layer takes no less time than its kernels need to be launched.

Left out: caches and their hit rates, what data do to clocks, kernels that run beside each other. Sources: the
model's constants are `KernelRates`; wave and tile quantisation are described in NVIDIA's "Matrix multiplication
background" user's guide (2023), FlashAttention's work in Dao et al. (2022) and Dao (2023).

The rates of kernels on a device where none were measured: an estimate from its data sheet.

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
Configs of TPUs give a rate: XLA multiplies single precision on the matrix units, rounded to bf16, unless told not to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from math import ceil, inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from minitrain.errors import HardwareConfigError
from minitrain.machine.columns import ceiling, chosen, larger, least
from minitrain.machine.device import AttentionRate, AttentionRates, KernelRates, MatmulRate, efficiency_at

if TYPE_CHECKING:
    from minitrain.machine.config import SystemConfig
    from minitrain.workloads.kernels import FlashAttention, Kernel, KernelList, Matmul
    from minitrain.workloads.workload import Cost


TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
"""The tiles that a library chooses from: rows and columns of the result."""

RANDOM_OPERATIONS = 6
"""Integer operations of a random number of dropout: ten rounds of Philox-4x32 (Salmon et al. 2011), each of two wide
multiplications and four exclusive ors, make sixteen bytes, of which an element takes one; then comparison and
selection."""

INTEGER_SHARE = 0.25
"""Integer operations over the data sheet's float32 FLOPs: half of the lanes do them, and an FMA counts as two."""

LIMITS = ("compute", "memory", "launches")
"""What limits a device: its arithmetic, the bandwidth of its memory, and how quickly kernels are started."""

_LANES = 128  # elements side by side in a TPU's registers (jax-ml/jax, `pallas/mosaic/tpu_info.py`)
_ALIGNED_BYTES = 16  # what a tensor core's loads take at a time (NVIDIA, "Matrix multiplication background")
_PARTIAL_BYTES = 4  # a partial sum is written in single precision, and read again while it is in the cache
_MOST_REMEMBERED = 1 << 14


class KernelDevice:
    """Price kernels on a device.

    Args:
        system: a hardware config with the key `kernels`.
        rates: what its kernels reach; the config's own if None.
        launch_s: time between two launches, s; the device's own if None. A framework that dispatches from Python is
            limited by the host: give its figure. 0 means captured graphs that never wait for a launch.
        num_devices: how many wait for one another: arithmetic takes as long as on the slowest.

    Raises:
        HardwareConfigError: the config has no key `kernels`.

    Example:
        >>> from minitrain.machine import load_config
        >>> from minitrain.workloads.kernels import Matmul
        >>> device = KernelDevice(load_config("a100_80g"))
        >>> round(device.kernel_seconds(Matmul(4096, 4096, 4096)) * 1e6)
        578
    """

    def __init__(
        self,
        system: SystemConfig,
        rates: KernelRates | None = None,
        *,
        launch_s: float | None = None,
        num_devices: float = 1,
    ) -> None:
        found = system.kernels if rates is None else rates
        if found is None:
            raise _without_kernels(system)
        self.system = system
        self.num_devices, self._of_one = num_devices, found
        self.rates = found.scaled(1 / found.slowest(num_devices))
        self.launch_s = found.launch_s if launch_s is None else launch_s
        self.kernel_seconds = lru_cache(_MOST_REMEMBERED)(self._kernel_seconds)
        self.pass_seconds = lru_cache(_MOST_REMEMBERED)(self._pass_seconds)
        self.endless = lru_cache(len(LIMITS))(self._endless)
        self.alone = cache(self._alone)

    def __reduce__(self) -> tuple[Callable[..., KernelDevice], tuple[SystemConfig, KernelRates, float, float]]:
        """Pickle and copy without what is remembered."""
        return _device, (self.system, self._of_one, self.launch_s, self.num_devices)

    @property
    def capacity_bytes(self) -> float:
        """The device's own memory."""
        return self.system.mem_hbm.capacity_bytes

    @property
    def usable_bytes(self) -> float:
        """What the driver leaves of it to a process."""
        return self.system.mem_hbm.usable_bytes

    @property
    def host_capacity_bytes(self) -> float:
        """The host's memory."""
        return self.system.mem_pcie.capacity_bytes

    def peak_flop_per_s(self, datatype: str) -> float:
        """Return the peak rate, FLOP/s, as the data sheet has it: what MFU divides by.

        It is the matrix unit's, or the vector unit's where the matrix unit has none in single precision.
        """
        vector = self.system.vector.get(datatype)
        if datatype == "float32" and vector is not None and datatype not in self.system.matrix:
            return vector.tflops * 1e12
        return self.system.processor.peak(datatype)

    def _endless(self, limit: str) -> KernelDevice:
        """Return the same device with one of `LIMITS` gone."""
        if limit == "launches":
            return _device(self.system, self._of_one.without("launches", "starts"), 0.0, self.num_devices)
        rates = self._of_one.scaled(inf) if limit == "compute" else replace(self._of_one, GBps=inf)
        return _device(self.system, rates, self.launch_s, self.num_devices)

    def _alone(self) -> KernelDevice:
        """Return a device of average speed, which waits for no other."""
        return KernelDevice(self.system, self._of_one, launch_s=self.launch_s)

    def load_seconds(self, size_bytes: float) -> float:
        """Return the time of reading the host's memory, s."""
        return size_bytes / self.system.mem_pcie.throughput(size_bytes) if size_bytes else 0.0

    def seconds(self, cost: Cost, datatype: str) -> float:
        """Return the time of an operation of which only FLOPs and bytes are known, s: the slower of the two."""
        arithmetic = cost.work_flop / (self.rates.matmul_rate(datatype).tflops * 1e12) if cost.work_flop else 0.0
        return larger(arithmetic, cost.traffic_bytes / (self.rates.GBps * 1e9))  # type: ignore[no-any-return]  # a number

    def _pass_seconds(self, work: KernelList) -> float:
        """Return how long a pass takes, s: its kernels one after another, and no less than it takes to launch them.

        Of a graph, those that are too small to be listed take what the smallest take, one after another.
        """
        small = work.num_unlisted * self.rates.graph_launch_s
        seconds: float = larger(self.busy_seconds(work.kernels) + small, work.num_launches * self.launch_s)
        return seconds

    def passes_seconds(self, work: KernelList) -> float:
        """Return how long a pass through a layer takes for its passes over memory, s."""
        from minitrain.workloads.kernels import MemoryPass  # noqa: PLC0415 - only where kernels are priced

        return self.busy_seconds(kernel for kernel in work.kernels if isinstance(kernel, MemoryPass))

    def persistent_seconds(self, work: KernelList) -> float:
        """Return how long a pass takes for persistent kernels, s: on Hopper, multiplications and its own attention."""
        from minitrain.workloads.kernels import FlashAttention, Matmul  # noqa: PLC0415 - only where kernels are priced

        if self.system.sheet.features.get("compute_capability") != _PERSISTENT:
            return 0.0
        return self.busy_seconds(
            kernel
            for kernel in work.kernels
            if isinstance(kernel, Matmul) or (isinstance(kernel, FlashAttention) and kernel.generation not in _PADDING)
        )

    def busy_seconds(self, kernels: Iterable[Kernel]) -> float:
        """Return how long some kernels keep the device busy, s, one after another."""
        return sum(map(self.kernel_seconds, kernels))

    def _kernel_seconds(self, kernel: Kernel) -> float:
        """Return how long one kernel takes, s."""
        from minitrain.workloads.kernels import FlashAttention, Matmul  # noqa: PLC0415 - only where kernels are priced

        if isinstance(kernel, Matmul):
            return self._matmul_seconds(kernel)
        if isinstance(kernel, FlashAttention):
            return self._attention_seconds(kernel)
        if not kernel.traffic_bytes:
            return 0.0
        return self.rates.memory_start_s + kernel.traffic_bytes / (self.rates.GBps * 1e9)

    def _matmul_seconds(self, kernel: Matmul) -> float:
        """Return the least time over tiles and splits of k: the slower of waves and traffic, and adding up partials."""
        if not kernel.work_flop:
            return 0.0
        rates, rate = self.rates, self.rates.matmul_rate(kernel.datatype)
        is_uneven = kernel.is_grouped and kernel.kind != "weight_gradient" and not rates.grouped_rows
        has_burst = not kernel.is_grouped and rate.burst > 0
        in_waves = chosen(has_burst, rate.burst, rate.tflops) * 1e12 / rates.num_units
        slower = self._slower(kernel)
        bytes_per_s = rates.GBps * 1e9 * rates.matmul_bandwidth
        traffic_s = kernel.traffic_bytes / bytes_per_s
        sustained_s = chosen(has_burst, kernel.work_flop / (rate.tflops * 1e12), 0.0)
        partial_bytes = _PARTIAL_BYTES * kernel.batch * kernel.m * kernel.n
        ways = []
        for rows, columns in TILES:
            of_rows = max(1.0, kernel.m / rows + 0.5) if is_uneven else ceil(kernel.m / rows)
            num_tiles = kernel.batch * of_rows * ceil(kernel.n / columns)
            unit_flop_per_s = in_waves * efficiency_at(rates.tile_efficiency, rows * columns, 1)
            for factor in slower:
                unit_flop_per_s *= factor
            for split in rates.splits:
                num_waves = ceiling(num_tiles * split / rates.num_units)
                flop = 2 * rows * columns * (kernel.k / split + rate.prologue)
                busiest = larger(larger(num_waves * flop / unit_flop_per_s, traffic_s), sustained_s)
                ways.append(busiest + (partial_bytes * split if split > 1 else 0) / bytes_per_s)
        factor = rates.weight_gradient if kernel.kind == "weight_gradient" else 1.0
        seconds: float = rates.matmul_start_s + factor * least(ways)
        return seconds

    def _slower(self, kernel: Matmul) -> list[float]:
        """Return the shares of its rate that a unit reaches with unaligned rows and with groups."""
        rates, shares = self.rates, []
        if any(size * kernel.element_bytes % _ALIGNED_BYTES for size in kernel.row_sizes):
            shares.append(rates.unaligned)
        if kernel.is_grouped:
            rows_of_group = kernel.k if kernel.kind == "weight_gradient" else kernel.m
            shares.append(rates.grouped / (1 + rates.grouped_rows / rows_of_group))
            if any(size % _LANES for size in kernel.row_sizes):
                shares.append(rates.grouped_masked)
            if rates.grouped_block:
                shares.append(_filled(kernel, rates.grouped_block, rates.grouped_cores))
        return shares

    def _attention_seconds(self, kernel: FlashAttention) -> float:
        """Return the time of all blocks, and of the longest one's tail; no less than that of the traffic."""
        if not kernel.work_flop:
            return 0.0
        rates, rate = self.rates, self.rates.attention_rate(kernel.generation, is_backward=kernel.is_backward)
        flop_per_s = self.peak_flop_per_s(kernel.rate_datatype) * rate.share(max(kernel.key_dim, kernel.value_dim))
        if kernel.generation in _PADDING:
            flop_per_s *= kernel.key_dim / _padded_head(kernel.key_dim)
        longest = min(rates.attention_block, kernel.num_queries) * kernel.row_flop / (flop_per_s / rates.num_units)
        kernel = kernel if rate.window_block else kernel.without_window()
        block = rate.block if kernel.window is None else max(rate.block, int(rate.window_block))
        in_blocks = kernel.flop_in_blocks(block, rate.masked)
        busy = in_blocks / flop_per_s + rate.tail * longest + self._random_seconds(kernel)
        busy += rate.step_s * kernel.num_blocks(block) + rate.row_s * kernel.num_rows
        slower: float = larger(busy, kernel.traffic_bytes / (rates.GBps * 1e9))
        return rates.attention_start_s[kernel.is_backward] + slower

    def _random_seconds(self, kernel: FlashAttention) -> float:
        """Return the time of dropout's random numbers, which no matrix unit can make."""
        vector = self.system.vector.get("float32")
        if not kernel.num_random or vector is None:
            return 0.0
        return RANDOM_OPERATIONS * kernel.num_random / (vector.tflops * 1e12 * INTEGER_SHARE)


def _filled(kernel: Matmul, block: float, num_cores: int) -> float:
    """Return what of the blocks of experts' multiplication is their widths, and of the cores has blocks of columns.

    Blocks are as wide as the width where that is less. The first dimension of the grid, which cores divide, is that of
    columns: of a weight's gradient those of its result (`gmm` and `tgmm` of jax-ml/jax, `pallas/ops/tpu/megablox`).
    """
    columns, others = (kernel.m, kernel.n) if kernel.kind == "weight_gradient" else (kernel.n, kernel.k)
    blocks, more = (size / min(size, block) for size in (columns, others))
    return blocks / (ceil(ceil(blocks) / num_cores) * num_cores) * more / ceil(more)


_PERSISTENT = 9.0  # the compute capability whose matrix kernels stay on their multiprocessors; later ones steal work
_PADDING = ("flash1", "flash2")
_HEADS = (32, 64, 96, 128, 192, 256)


def _padded_head(size: int) -> int:
    """Return the size that FlashAttention-2 computes a head with: its kernels are compiled for those of `_HEADS`.

    >>> _padded_head(80)
    96
    """
    return next((each for each in _HEADS if each >= size), size)


def _without_kernels(system: SystemConfig) -> HardwareConfigError:
    """Return the error for a config that does not say what kernels reach."""
    from minitrain.machine.config import load_config, shipped_configs  # noqa: PLC0415 - needed only for this message

    known = ", ".join(name for name in shipped_configs() if load_config(name).kernels is not None)
    return HardwareConfigError(
        f"prices of kernels need what kernels reach on the device, but config {system.name} has no key kernels; "
        f'use fidelity="roofline", or one of {known}',
        path=system.name,
    )


def _device(system: SystemConfig, rates: KernelRates, launch_s: float, num_devices: float) -> KernelDevice:
    """Make a device again when it is unpickled."""
    return KernelDevice(system, rates, launch_s=launch_s, num_devices=num_devices)


def gradients_beside(device: Any, workload: Any, op: str, size_bytes: float, num_parts: int) -> list[float]:
    """Return how long the gradients take that tensor parallelism hides a collective behind, of attention and MLP, s.

    Args:
        device: the `KernelDevice` that computes them.
        workload: a transformer; none where its layers have experts or latents.
        op: a gather is beside the gradient of the input of a layer's columns, a sum beside that of their weight.
        size_bytes: of the collective's tensor.
        num_parts: of a layer.
    """
    found = []
    for work in _of_columns(workload, size_bytes, num_parts):
        if op != "all_gather":
            work = replace(work, m=work.k, k=work.m, kind="weight_gradient", result_bytes=8)  # noqa: PLW2901
        found.append(device.kernel_seconds(work))
    return found


def longer_by_pieces(device: Any, workload: Any, op: str, seconds: float, size_bytes: float, num_parts: int) -> float:
    """Return by how much a multiplication lasts longer whose collective runs in pieces beside it, s.

    Its first piece is of rows that are here, or its last one stays here. The other pieces take as long as the copies,
    if these take longer. A sum then reads a piece of each rank: `_fused_all_gather_matmul` and
    `_fused_matmul_reduce_scatter` of PyTorch's `torch/distributed/_symmetric_memory`. The mean of attention and MLP.

    Args:
        device: the `KernelDevice` that computes.
        workload: a transformer; all is exposed where its layers have experts or latents.
        op: the collective.
        seconds: how long it takes alone, s.
        size_bytes: of its tensor.
        num_parts: of a layer.
    """
    found = []
    for work in _of_columns(workload, size_bytes, num_parts):
        piece = device.kernel_seconds(replace(work, m=work.m // num_parts))
        others = larger((num_parts - 1) * piece, seconds)
        found.append(piece + others - device.kernel_seconds(work))
    reads = 0.0 if op == "all_gather" else size_bytes * (1 + 1 / num_parts) / (device.rates.GBps * 1e9)
    return reads + sum(found) / len(found) if found else seconds


def _of_columns(workload: Any, size_bytes: float, num_parts: int) -> Iterator[Any]:
    """Yield the multiplication of a layer's columns by a collective's tokens, of attention and of MLP.

    None where layers have experts or latents.
    """
    from minitrain.workloads.architecture import NARROW_BYTES  # noqa: PLC0415  (only where kernels are priced)
    from minitrain.workloads.kernels import Matmul  # noqa: PLC0415  (as above)

    model = getattr(workload, "model", None)
    if model is None or model.num_experts or model.latent is not None:
        return
    precision, hidden = model.precision, model.hidden_size
    element = NARROW_BYTES.get(precision.weight_datatype or "", precision.activation_bytes)
    num_tokens = int(size_bytes / (hidden * precision.activation_bytes))
    for unit in {unit.kind: unit for unit in workload.units if unit.layer is not None}.values():
        columns = sum(each.flop_per_token for each in unit.projections[:-1]) // (2 * hidden * num_parts)
        yield Matmul(num_tokens, hidden, columns, 1, "input_gradient", precision.weight_rate, element)


EAGER_LAUNCH_S = MappingProxyType({"": 13.48e-6, "gh200": 33.17e-6, "gb200": 37.08e-6, "gb300": 37.08e-6})
"""What the host takes for an operation that PyTorch dispatches from Python, s, by the family of the device: forward of
`torch.nn.Linear` on DGX H100's Xeon 8480C, taken for all x86 hosts, and on Grace, whose cores are slower (issue 2053 of
github.com/NVIDIA/TransformerEngine, 2025)."""

MODULE_LAUNCH_S = MappingProxyType({"": 33.4e-6, "gh200": 90.53e-6, "gb200": 99.66e-6, "gb300": 99.66e-6})
"""The same, s, for layers of Transformer Engine's modules. On x86 an eighth of the 0.267 ms in which it multiplies the
tokens of eight experts, 128 each (2048 x 2048, whose kernels take a fraction of that; pull request 3134 of
github.com/NVIDIA/TransformerEngine, 2026), on Grace its `Linear` forward (issue 2053; forward and backward take 311 us
for three launches, says pull request 3523). It counts where the host waits for the tokens of each expert, as of every
layer (`MoEAlltoAllTokenDispatcher` of Megatron-Core): it is never ahead of the device. On x86 it counts in dense layers
too: a profile of Megatron Bridge at a cloud shows 70 us a launch (table m10). On Grace it counts for these layers'
multiplications alone (`Style.module_share`), as activations, residuals and rotary embeddings are PyTorch's. Both were
chosen by looking: at m9 and m10, and at three dense runs on GB200 without graphs, else 8 to 21 % too long (m6, m8).
Experts' own multiplications are a loop in C++, not modules: on Grace each launch of it takes what PyTorch's takes."""

CAPTURED = frozenset({"gb200", "gb300"})
"""The families where Megatron's recipes replay CUDA graphs, as Grace is slow (`cuda_graph_scope` "attn", "moe_router"
and "moe_preprocess" in scripts/performance of github.com/NVIDIA-NeMo/Megatron-Bridge, 2025): of a layer, only its
experts, whose tokens are counted while it runs, and what brings these home, are still launched one by one."""

SINGLE_SHARE = 0.93
COPY_SHARE, MATMUL_SHARE, PROLOGUE = 0.87, 0.78, 146.0
LAUNCH_S, GRAPH_LAUNCH_S = 2.6e-6, 1.3e-6
_FLASH2 = AttentionRates(AttentionRate(0.5, 0.2, ((0.0, 1.0),)), AttentionRate(0.4, 0.2, ((0.0, 1.0),)))


def eager_launch_s(device: str, *, is_module: bool = False, is_waiting: bool = False) -> float:
    """Return the time between two launches that PyTorch dispatches one by one on a device's host, s.

    Args:
        device: the name of its config.
        is_module: whether layers are Transformer Engine's modules, outside of graphs.
        is_waiting: whether these have experts, whose tokens the host waits for.

    >>> eager_launch_s("gb200_nvl72"), eager_launch_s("b200_192g_nvl8")
    (3.708e-05, 1.348e-05)
    >>> eager_launch_s("gb200_nvl72", is_module=True), eager_launch_s("b200_192g_nvl8", is_module=True)
    (3.708e-05, 3.34e-05)
    >>> eager_launch_s("gb200_nvl72", is_waiting=True)
    9.966e-05
    """
    family = device.partition("_")[0]
    by_family = MODULE_LAUNCH_S if is_waiting or (is_module and family not in EAGER_LAUNCH_S) else EAGER_LAUNCH_S
    return by_family.get(family, by_family[""])


def loop_share(device: str) -> float:
    """Return what a launch of PyTorch's takes of a module's, in the loop over experts and in dense layers.

    >>> round(loop_share("gb200_nvl72"), 2), loop_share("b200_192g_nvl8")
    (0.37, 1.0)
    """
    family = device.partition("_")[0]
    return EAGER_LAUNCH_S[family] / MODULE_LAUNCH_S[family] if family in EAGER_LAUNCH_S else 1.0


def rates_of(system: SystemConfig) -> KernelRates:
    """Return what kernels reach on a device: what its config says, or an estimate; single precision by its data sheet.

    Raises:
        HardwareConfigError: the config has neither the key `kernels` nor the key `units`.
    """
    try:
        return _rates_of(system)
    except (TypeError, ValueError):  # columns of many machines, which no table can tell apart
        return _rates_of.__wrapped__(system)


@lru_cache(maxsize=64)
def _rates_of(system: SystemConfig) -> KernelRates:
    """Return what `rates_of` does."""
    rates = system.kernels or _derived(system)
    vector = system.vector.get("float32")
    if vector is None or "float32" in rates.matmul:
        return rates
    tflops = SINGLE_SHARE * vector.tflops
    fastest, *others = rates.matmul.values()
    for rate in others:
        prologue = chosen(rate.tflops > fastest.tflops, rate.prologue, fastest.prologue)
        fastest = MatmulRate(larger(fastest.tflops, rate.tflops), prologue)
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
        attention={"flash2": _FLASH2, "flash1": _FLASH2.scaled(0.5)},
    )
