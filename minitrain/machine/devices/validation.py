"""Validate: compare predictions with the machine at hand, and judge them by the specification's criteria.

Phase 1 is synthetic: matrix multiplications, passes over memory, and polynomials whose degree sets how much arithmetic
goes with their bytes. Phase 2 is networks. Cases are run in rounds, each round in another order, and each case stands
between two probes, small kernels whose prediction is known. Where a case's samples scatter little, their median is
compared with the prediction. Where they scatter, the machine was busy: then what is compared is the case over its
probes, measured and predicted, which a slow moment changes little.

The networks are like ResNet-50, BERT-base and GPT-2 small: plain JAX functions of their weights, with layers of the
sizes of the originals. Weights are constants, since their values do not change how long anything takes. Left out: batch
norm's statistics (it is a scale and a shift, as in inference), dropout, and tokenizers.

Criteria: the median error of compute-bound cases is under 15 %, that of memory-bound ones under 20 %, and the
bottleneck is named rightly in more than 90 %. What a polynomial is truly bound by is measured: if twice its arithmetic
on the same bytes takes more than 2 ** 0.5 times as long, it is bound by compute. A criterion whose samples scatter more
than it allows is inconclusive, and so is one by a config whose calibration did.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import log2
from typing import Any, Literal, final

from minitrain.errors import UsageError, require_count
from minitrain.machine.devices.calibration import (
    PROBE_MATMUL,
    PROBE_STREAM_BYTES,
    Backend,
    JaxBackend,
    Kernel,
    Limit,
    Notebook,
    Progress,
    horner,
    noise_of,
    relative_iqr,
    sample_rounds,
)
from minitrain.machine.devices.jax_programs import as_arguments, program_of
from minitrain.machine.devices.simulator import DeviceSimulator, aligned, make_simulator

PHASES = ("synthetic", "models", "all")
MOST_NOISE = 0.15
LIMITS: dict[Limit, float] = {"compute": 0.15, "memory": 0.20}
LEAST_RIGHT = 0.9
_COMPUTE_ELASTICITY = 0.5
_BUSY = "the machine was too busy to tell"
_DEGREES = (1, 2, 4, 8, 16, 32, 64)
_POLYNOMIAL_BYTES = (2**18, 2**22, 2**25)
_MATMULS = ((128, 128, 128), (512, 512, 512), (2048, 2048, 2048), (1000, 300, 700), (1, 2048, 2048))
_STREAMS = (2**20, 2**24, 2**27)
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # He et al. (2016), table 1, 50 layers: width and blocks
_EXPANSION = 4
_NHWC = ("NHWC", "HWIO", "NHWC")

Verdict = Literal["pass", "fail", "inconclusive"]


@final
@dataclass(frozen=True, slots=True)
class Case:
    """A function to run and to predict.

    Args:
        name: what it is.
        function: takes arrays.
        shapes: of its arguments.
        degree: of a polynomial; 0 for anything else.
    """

    name: str
    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    degree: int = 0


@final
@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case, measured and predicted.

    Args:
        name: what it is.
        bottleneck: as predicted.
        measured_s: the median of its samples, s.
        predicted_s: s.
        noise: the interquartile range of what was compared, over its median.
        by_ratio: whether the case was compared over its probes.
        error: predicted over measured, less one.
    """

    name: str
    bottleneck: str
    measured_s: float
    predicted_s: float
    noise: float
    by_ratio: bool
    error: float


@final
@dataclass(frozen=True, slots=True)
class Criterion:
    """One of the acceptance criteria.

    Args:
        name: what is judged.
        value: the measured value; None without cases.
        limit: what it has to stay under, or above for the share of bottlenecks.
        verdict: "pass", "fail" or "inconclusive".
        reason: why, in words.
    """

    name: str
    value: float | None
    limit: float
    verdict: Verdict
    reason: str


@final
@dataclass(frozen=True, slots=True)
class ValidationReport:
    """What a validation found.

    Args:
        device: name of the hardware config.
        rows: one a case.
        criteria: how they were judged.
        is_complete: whether all rounds were made; a report that was stopped is inconclusive.
    """

    device: str
    rows: tuple[CaseResult, ...]
    criteria: tuple[Criterion, ...]
    is_complete: bool = True

    @property
    def verdict(self) -> Verdict:
        """Fail if any criterion fails, else inconclusive if any is, else pass."""
        found: set[Verdict] = {criterion.verdict for criterion in self.criteria}
        if not self.is_complete:
            return "inconclusive"
        return "fail" if "fail" in found else "inconclusive" if "inconclusive" in found else "pass"

    def as_json(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        rows, criteria = ([asdict(each) for each in part] for part in (self.rows, self.criteria))
        head = {"device": self.device, "verdict": self.verdict, "is_complete": self.is_complete}
        return head | {"criteria": criteria, "rows": rows}

    def __str__(self) -> str:
        """Return the report as text."""
        head = ("case", "bound by", "measured ms", "predicted ms", "error", "noise", "compared")
        judged = [f"{criterion.name}: {criterion.verdict} ({criterion.reason})" for criterion in self.criteria]
        stopped = "" if self.is_complete else " (stopped before all rounds were made)"
        lines = [*aligned([head, *map(_line, self.rows)]), "", *judged, f"{self.device}: {self.verdict}{stopped}"]
        return "\n".join(lines)


def _line(row: CaseResult) -> tuple[str, ...]:
    how = "over its probes" if row.by_ratio else "by median"
    times = (f"{row.measured_s * 1e3:.4g}", f"{row.predicted_s * 1e3:.4g}")
    return (row.name, row.bottleneck, *times, f"{row.error:+.1%}", f"{row.noise:.1%}", how)


def validate(
    device: Any,
    *,
    phase: str = "all",
    own: Iterable[Case] = (),
    backend: Backend | None = None,
    num_rounds: int = 7,
    progress: Progress | None = None,
    cases: Sequence[Case] | None = None,
) -> ValidationReport:
    """Compare predictions for a calibrated device with the machine at hand.

    Args:
        device: a hardware config, as `calibrate` made it, or a simulator.
        phase: "synthetic", "models" or "all".
        own: cases of your own, beside those of the phase.
        backend: what runs them; JAX if None.
        num_rounds: samples of each case.
        progress: called before each sample.
        cases: instead of those of the phase.

    Returns:
        The report; Ctrl-C ends it early, with what was measured until then.

    Raises:
        UsageError: there is no such phase, a case cannot be traced, or a parameter is outside its rule.
        HardwareConfigError: the config cannot be found or read, or is invalid.
    """
    require_count("num_rounds", num_rounds)
    simulator = make_simulator(device)
    chosen = [*(cases_of(phase) if cases is None else cases), *own]
    if len({case.name for case in chosen}) < len(chosen):
        names = ", ".join(case.name for case in chosen)
        raise UsageError(f"each case needs a name of its own, got {names}")
    library = JaxBackend() if backend is None else backend
    predicted = {case.name: simulator.simulate(program_of(case.function, *case.shapes)) for case in chosen}
    limits: dict[str, Limit] = {
        name: "compute" if found.is_compute_bound else "memory" for name, found in predicted.items()
    }
    kernels = {case.name: (_kernel(library, case), limits[case.name]) for case in chosen}
    notebook, is_complete = Notebook(), True
    try:
        sample_rounds(library, kernels, notebook, num_rounds, progress)
    except KeyboardInterrupt:
        is_complete = False
    chosen = [case for case in chosen if case.name in notebook.values]
    rows = tuple(
        _result(simulator, case.name, limits[case.name], predicted[case.name].time_seconds, notebook.values[case.name])
        for case in chosen
    )
    noise = noise_of(device)
    criteria = (_errors(rows, "compute", noise), _errors(rows, "memory", noise), _bottlenecks(chosen, rows))
    return ValidationReport(simulator.spec.name, rows, criteria, is_complete)


def cases_of(phase: str) -> list[Case]:
    """Return the cases of a phase.

    Raises:
        UsageError: there is no such phase.
    """
    if phase not in PHASES:
        raise UsageError(f"phase must be one of {', '.join(PHASES)}, got {phase!r}", phase=phase)
    found = [] if phase == "models" else _synthetic()
    return found if phase == "synthetic" else found + all_networks()


def _synthetic() -> list[Case]:
    """Return matrix multiplications, passes over memory, and polynomials."""
    import jax.numpy as jnp  # noqa: PLC0415 - JAX is heavy

    found = [Case(f"matmul {m}x{k}x{n}", jnp.matmul, ((m, k), (k, n))) for m, k, n in _MATMULS]
    found += [Case(f"stream {size}", horner(1), ((size // 8,),)) for size in _STREAMS]
    return found + [
        Case(f"polynomial {degree} on {size}", horner(degree), ((size // 8,),), degree)
        for size in _POLYNOMIAL_BYTES
        for degree in _DEGREES
    ]


def _result(
    simulator: DeviceSimulator, name: str, limit: Limit, predicted: float, samples: Sequence[tuple[float, float]]
) -> CaseResult:
    """Return a case measured and predicted, by samples of it and of its probe."""
    times, ratios = [taken for taken, _ in samples], [taken / probe for taken, probe in samples]
    measured, noise = statistics.median(times), relative_iqr(times)
    by_ratio = noise > MOST_NOISE
    error = predicted / measured - 1
    if by_ratio:
        noise = relative_iqr(ratios)
        error = predicted / _predicted_probe(simulator, limit) / statistics.median(ratios) - 1
    return CaseResult(name, limit, measured, predicted, noise, by_ratio, error)


def _predicted_probe(simulator: DeviceSimulator, limit: Limit) -> float:
    """Return how long a probe should take, s."""
    import jax.numpy as jnp  # noqa: PLC0415

    if limit == "compute":
        return simulator.predict(program_of(jnp.matmul, (PROBE_MATMUL, PROBE_MATMUL), (PROBE_MATMUL, PROBE_MATMUL)))
    return simulator.predict(program_of(horner(1), (PROBE_STREAM_BYTES // 8,)))


def _kernel(backend: Backend, case: Case) -> Kernel:
    """Return a case with constant arguments."""
    import jax  # noqa: PLC0415 - JAX is heavy
    import jax.numpy as jnp  # noqa: PLC0415

    arguments = [
        jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01, leaf.dtype), as_arguments(shape, "float32"))
        for shape in case.shapes
    ]
    return backend.compiled(case.function, *arguments)


def _judged(name: str, value: float, limit: float, is_met: bool, said: str, doubt: str) -> Criterion:
    """Return a criterion that is met or not, or open where there is a doubt."""
    if doubt:
        return Criterion(name, value, limit, "inconclusive", f"{said}: {doubt}")
    return Criterion(name, value, limit, "pass" if is_met else "fail", said)


def _errors(rows: Sequence[CaseResult], bound: Limit, calibration_noise: float = 0.0) -> Criterion:
    """Judge the median error of the cases that are bound alike, by a config whose own measurements had some noise."""
    name, limit = f"error of {bound}-bound cases", LIMITS[bound]
    chosen = [row for row in rows if row.bottleneck == bound]
    if not chosen:
        return Criterion(name, None, limit, "inconclusive", "there are none")
    error = statistics.median(abs(row.error) for row in chosen)
    noise = statistics.median(row.noise for row in chosen)
    doubt = f"the calibration's noise was {calibration_noise:.1%}; calibrate when it is quiet"
    doubt = _BUSY if noise > limit else doubt if calibration_noise > limit else ""
    said = f"median {error:.1%} of {len(chosen)}, allowed {limit:.0%}, noise {noise:.1%}"
    return _judged(name, error, limit, error < limit, said, doubt)


def _bottlenecks(cases: Sequence[Case], rows: Sequence[CaseResult]) -> Criterion:
    """Judge how often the bottleneck of a polynomial is named rightly, by what twice its arithmetic costs."""
    name, row_of = "bottleneck named rightly", {row.name: row for row in rows}
    pairs = [
        (row_of[case.name], row_of[other.name])
        for case in cases
        for other in cases
        if case.degree > 0 and other.degree == 2 * case.degree and case.shapes == other.shapes
    ]
    if not pairs:
        return Criterion(name, None, LEAST_RIGHT, "inconclusive", "there are no polynomials to tell by")
    right = 0
    for row, double in pairs:
        costs_more = log2(double.measured_s / row.measured_s) > _COMPUTE_ELASTICITY
        right += row.bottleneck == ("compute" if costs_more else "memory")
    share, noise = right / len(pairs), statistics.median(row.noise for row, _ in pairs)
    said = f"{right} of {len(pairs)}, more than {LEAST_RIGHT:.0%} asked, noise {noise:.1%}"
    is_met = share > LEAST_RIGHT
    return _judged(name, share, LEAST_RIGHT, is_met, said, "" if is_met or noise <= MOST_NOISE else _BUSY)


def resnet50(batch: int = 1, size: int = 224) -> Case:
    """Return a network like ResNet-50 (He et al. 2016): 4.1e9 multiplications for an image of 224 x 224."""
    weights: dict[str, Any] = {"stem": (7, 7, 3, 64), "blocks": [], "head": (512 * _EXPANSION, 1000)}
    channels = 64
    for width, num_blocks in _STAGES:
        for block in range(num_blocks):
            shapes = {"a": (1, 1, channels, width), "b": (3, 3, width, width), "c": (1, 1, width, width * _EXPANSION)}
            if block == 0:
                shapes["skip"] = (1, 1, channels, width * _EXPANSION)
            weights["blocks"].append(shapes)
            channels = width * _EXPANSION
    return Case("resnet50", _resnet, (weights, (batch, size, size, 3)))


def _resnet(weights: Any, x: Any) -> Any:
    """Compute the network."""
    import jax.numpy as jnp  # noqa: PLC0415 - JAX is heavy
    from jax import lax  # noqa: PLC0415

    x = jnp.maximum(_convolved(x, weights["stem"], 2), 0)
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for place, block in enumerate(weights["blocks"]):
        stride = 2 if "skip" in block and place else 1
        y = jnp.maximum(_convolved(x, block["a"], 1), 0)
        y = jnp.maximum(_convolved(y, block["b"], stride), 0)
        y = _convolved(y, block["c"], 1)
        x = jnp.maximum(y + (_convolved(x, block["skip"], stride) if "skip" in block else x), 0)
    return x.mean((1, 2)) @ weights["head"]


def _convolved(x: Any, kernel: Any, stride: int) -> Any:
    """Return a convolution, scaled and shifted as a frozen batch norm does."""
    from jax import lax  # noqa: PLC0415

    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=_NHWC) * 0.5 + 0.1


def bert_base(batch: int = 1, length: int = 128) -> Case:
    """Return a network like BERT-base (Devlin et al. 2019): twelve layers of width 768."""
    return Case("bert_base", _transformer(is_causal=False), (_layers(30522), (batch, length)))


def gpt2_small(batch: int = 1, length: int = 128) -> Case:
    """Return a network like GPT-2 small (Radford et al. 2019): twelve layers of width 768, and a vocabulary."""
    return Case("gpt2_small", _transformer(is_causal=True), (_layers(50257), (batch, length)))


def _layers(vocabulary: int, width: int = 768, num_layers: int = 12) -> dict[str, Any]:
    layer = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    return {"words": (vocabulary, width), "layers": [dict(layer) for _ in range(num_layers)]}


def _transformer(*, is_causal: bool, num_heads: int = 12) -> Callable[[Any, Any], Any]:
    """Return a transformer of words; a causal one says which word comes next."""
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    def normed(x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    def attention(layer: Any, x: Any) -> Any:
        batch, length, width = x.shape
        parts = (x @ layer["qkv"]).reshape(batch, length, 3, num_heads, width // num_heads)
        query, key, value = (parts[:, :, place] for place in range(3))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(width // num_heads)
        if is_causal:
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), value)
        return mixed.reshape(batch, length, width) @ layer["out"]

    def transformer(weights: Any, words: Any) -> Any:
        x = weights["words"][words.astype(jnp.int32)]
        for layer in weights["layers"]:
            x = x + attention(layer, normed(x))
            x = x + jax.nn.gelu(normed(x) @ layer["up"]) @ layer["down"]
        return normed(x) @ weights["words"].T if is_causal else normed(x)

    return transformer


def all_networks() -> list[Case]:
    """Return the three."""
    return [resnet50(), bert_base(), gpt2_small()]
