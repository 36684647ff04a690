"""Validate: compare predictions with the machine at hand, and judge them by the specification's criteria.

Phase 1 is synthetic: matrix multiplications, passes over memory, and cases whose arithmetic grows on the same bytes.
Phase 2 is networks. Cases are run in rounds, each round in another order, and each case stands between two probes,
small kernels that the calibration measured too. What is compared is the case over its probes, measured and predicted:
that a machine is slower at one moment than at another changes it little.

A config that was measured with torch is compared with torch: its networks are ResNet-50, BERT-base and GPT-2 small of
Hugging Face's transformers (an extra), read from `torch.export`. Of other configs the networks are plain JAX functions
of their weights, with layers of the sizes of the originals. Weights are made up, since their values do not change how
long anything takes. Left out of the JAX ones: batch norm's statistics (it is a scale and a shift, as in inference),
dropout, and tokenizers.

Criteria: the median error of compute-bound cases is under 15 %, that of memory-bound ones under 20 %, and the
bottleneck is named rightly in more than 90 %. What a case is truly bound by is measured where another does twice its
arithmetic on the same bytes: polynomials of XLA, which fuses them, and matrices times few columns in torch. If that
takes more than 2 ** 0.5 times as long, in the middle of the rounds, it is bound by compute. What is bound by its
dispatch is not, and counts with what memory binds. A criterion on errors is inconclusive whose limit lies within what
resampling the rounds gives, or whose config's calibration scattered more than it allows; that on bottlenecks, where
cases scatter by more than 15 %.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log2
from operator import matmul as product
from typing import Any, Literal

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
    TorchBackend,
    clock_name,
    horner,
    measured_of,
    noise_of,
    relative_iqr,
    sample_rounds,
)
from minitrain.machine.devices.jax_programs import as_arguments, program_of
from minitrain.machine.devices.operations import Operation, Program, matmul
from minitrain.machine.devices.simulator import DeviceSimulator, aligned, make_simulator

PHASES = ("synthetic", "models", "all")
MOST_NOISE = 0.15
LIMITS: dict[Limit, float] = {"compute": 0.15, "memory": 0.20}
LEAST_RIGHT = 0.9
_COMPUTE_ELASTICITY = 0.5
_RESAMPLINGS = 400
_NOISY = "the machine was too noisy to tell; more rounds say more"
_DEGREES = (1, 2, 4, 8, 16, 32, 64)
_POLYNOMIAL_BYTES = (2**18, 2**22, 2**25)
_SQUARES = (1024, 2048, 4096)
_MATMULS = ((128, 128, 128), (512, 512, 512), (2048, 2048, 2048), (1000, 300, 700), (1, 2048, 2048))
_STREAMS = (2**20, 2**24, 2**27)
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # He et al. (2016), table 1, 50 layers: width and blocks
_EXPANSION = 4
_NHWC = ("NHWC", "HWIO", "NHWC")

Verdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Case:
    """A function to run and to predict.

    Args:
        name: what it is.
        function: takes arrays of JAX; or a function or module of torch, where that runs it.
        shapes: of its arguments, or these themselves.
        degree: how much arithmetic goes with its bytes; 0 where no other case has as many bytes.
        family: of cases whose bytes are the same.
    """

    name: str
    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    degree: int = 0
    family: str = ""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case, measured and predicted.

    Args:
        name: what it is.
        bottleneck: as predicted.
        measured_s: the median of its samples, s.
        predicted_s: s.
        noise: the interquartile range of its ratios to its probes, over their median.
        error: predicted over measured, less one, both over their probes.
        errors: the same in each round.
    """

    name: str
    bottleneck: str
    measured_s: float
    predicted_s: float
    noise: float
    error: float
    errors: tuple[float, ...] = ()


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


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """What a validation found.

    Args:
        device: name of the hardware config.
        rows: one a case.
        criteria: how they were judged.
        is_complete: whether all rounds were made; a report that was stopped is inconclusive.
        clock: what times are of.
    """

    device: str
    rows: tuple[CaseResult, ...]
    criteria: tuple[Criterion, ...]
    is_complete: bool = True
    clock: str = "wall"

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
        head = {"device": self.device, "verdict": self.verdict, "is_complete": self.is_complete, "clock": self.clock}
        return head | {"criteria": criteria, "rows": rows}

    def __str__(self) -> str:
        """Return the report as text."""
        head = ("case", "bound by", "measured ms", "predicted ms", "error", "noise")
        judged = [f"{criterion.name}: {criterion.verdict} ({criterion.reason})" for criterion in self.criteria]
        stopped = "" if self.is_complete else " (stopped before all rounds were made)"
        verdict = f"{self.device}: {self.verdict}{stopped}; clock: {self.clock}"
        lines = [*aligned([head, *map(_line, self.rows)]), "", *judged, verdict]
        return "\n".join(lines)


def _line(row: CaseResult) -> tuple[str, ...]:
    times = (f"{row.measured_s * 1e3:.4g}", f"{row.predicted_s * 1e3:.4g}")
    return (row.name, row.bottleneck, *times, f"{row.error:+.1%}", f"{row.noise:.1%}")


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
    library = backend or (TorchBackend() if measured_of(device).get("backend") == "torch" else JaxBackend())
    chosen = [*(cases_of(phase, library.name) if cases is None else cases), *own]
    if len({case.name for case in chosen}) < len(chosen):
        names = ", ".join(case.name for case in chosen)
        raise UsageError(f"each case needs a name of its own, got {names}")
    prepared = {case.name: _prepared(library, case) for case in chosen}
    predicted = {name: simulator.simulate(found) for name, (found, _) in prepared.items()}
    limits: dict[str, Limit] = {
        name: "compute" if found.bottleneck == "compute" else "memory" for name, found in predicted.items()
    }
    kernels = {name: (kernel, limits[name]) for name, (_, kernel) in prepared.items()}
    notebook, is_complete = Notebook(), True
    try:
        sample_rounds(library, kernels, notebook, num_rounds, progress)
    except KeyboardInterrupt:
        is_complete = False
    samples = notebook.values
    chosen = [case for case in chosen if case.name in samples]
    rows = tuple(
        _result(simulator, case.name, limits[case.name], predicted[case.name].time_seconds, samples[case.name])
        for case in chosen
    )
    noise = noise_of(device)
    criteria = (_errors(rows, "compute", noise), _errors(rows, "memory", noise), _bottlenecks(chosen, rows, samples))
    return ValidationReport(simulator.spec.name, rows, criteria, is_complete, clock_name(library))


def cases_of(phase: str, library: str = "jax") -> list[Case]:
    """Return the cases of a phase.

    Args:
        phase: "synthetic", "models" or "all".
        library: what runs them; "torch" has its own.

    Raises:
        UsageError: there is no such phase, or torch's networks need transformers.
    """
    if phase not in PHASES:
        raise UsageError(f"phase must be one of {', '.join(PHASES)}, got {phase!r}")
    found = [] if phase == "models" else _synthetic() + (_thin() if library == "torch" else _polynomials())
    if phase == "synthetic":
        return found
    return found + (torch_networks() if library == "torch" else all_networks())


def _synthetic() -> list[Case]:
    """Return matrix multiplications and passes over memory."""
    found = [Case(f"matmul {m}x{k}x{n}", product, ((m, k), (k, n))) for m, k, n in _MATMULS]
    return found + [Case(f"stream {size}", horner(1), ((size // 8,),)) for size in _STREAMS]


def _polynomials() -> list[Case]:
    """Return polynomials, whose arithmetic is their degree, for libraries that fuse them."""
    return [
        Case(f"polynomial {degree} on {size}", horner(degree), ((size // 8,),), degree, f"polynomial {size}")
        for size in _POLYNOMIAL_BYTES
        for degree in _DEGREES
    ]


def _thin() -> list[Case]:
    """Return square matrices times few columns, whose arithmetic is the columns: the square's bytes count.

    One column is left out, since libraries have another algorithm for it.
    """
    return [
        Case(f"{columns} columns of {size}", product, ((size, size), (size, columns)), columns, f"square {size}")
        for size in _SQUARES
        for columns in _DEGREES[1:]
    ]


def _result(
    simulator: DeviceSimulator, name: str, limit: Limit, predicted: float, samples: Sequence[tuple[float, float]]
) -> CaseResult:
    """Return a case measured and predicted, by samples of it and of its probe."""
    ratios = [taken / probe for taken, probe in samples]
    expected = predicted / _predicted_probe(simulator, limit)
    measured = statistics.median(taken for taken, _ in samples)
    error, errors = expected / statistics.median(ratios) - 1, tuple(expected / ratio - 1 for ratio in ratios)
    return CaseResult(name, limit, measured, predicted, relative_iqr(ratios), error, errors)


def _predicted_probe(simulator: DeviceSimulator, limit: Limit) -> float:
    """Return how long a probe should take, s."""
    if limit == "compute":
        return simulator.predict(matmul(PROBE_MATMUL, PROBE_MATMUL, PROBE_MATMUL))
    return simulator.predict(Operation("stream", PROBE_STREAM_BYTES / 8, PROBE_STREAM_BYTES))


def _prepared(backend: Backend, case: Case) -> tuple[Program, Kernel]:
    """Return a case's program, and the case with constant arguments."""
    if isinstance(backend, TorchBackend):
        from minitrain.machine.devices.torch_programs import exported, program_of_export  # noqa: PLC0415 - heavy

        inputs = [backend.ones(*shape) / 100 if isinstance(shape, tuple) else shape for shape in case.shapes]
        found = program_of_export(exported(case.function, *inputs))
        return found, backend.compiled(case.function, *inputs)
    import jax  # noqa: PLC0415 - JAX is heavy
    import jax.numpy as jnp  # noqa: PLC0415

    arguments = [
        jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01, leaf.dtype), as_arguments(shape, "float32"))
        for shape in case.shapes
    ]
    return program_of(case.function, *case.shapes), backend.compiled(case.function, *arguments)


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
    interval = _interval([row.errors for row in chosen])
    is_unsure = noise > limit if interval is None else interval[0] < limit < interval[1]
    doubt = f"the calibration's noise was {calibration_noise:.1%}; calibrate when it is quiet"
    doubt = _NOISY if is_unsure else doubt if calibration_noise > limit else ""
    sure = "" if interval is None else f", {interval[0]:.1%} to {interval[1]:.1%} by resampling rounds"
    said = f"median {error:.1%} of {len(chosen)}{sure}, allowed {limit:.0%}, noise {noise:.1%}"
    return _judged(name, error, limit, error < limit, said, doubt)


def _interval(errors: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Return where the median error of cases lies in 90 % of resamplings of their rounds (Efron's bootstrap, 1979).

    Args:
        errors: of each case, by round.

    Returns:
        The interval; None for fewer than two rounds.
    """
    num_rounds = min(map(len, errors))
    if num_rounds < 2:
        return None
    chance, found = random.Random(0), []
    for _ in range(_RESAMPLINGS):
        picked = chance.choices(range(num_rounds), k=num_rounds)
        found.append(statistics.median(abs(statistics.median(each[place] for place in picked)) for each in errors))
    found.sort()
    return found[_RESAMPLINGS // 20], found[-_RESAMPLINGS // 20 - 1]


def _bottlenecks(
    cases: Sequence[Case], rows: Sequence[CaseResult], samples: Mapping[str, Sequence[tuple[float, float]]]
) -> Criterion:
    """Judge how often the bottleneck is named rightly, by what twice the arithmetic costs in the same round."""
    name, row_of = "bottleneck named rightly", {row.name: row for row in rows}
    pairs = [
        (row_of[case.name], samples[case.name], samples[other.name])
        for case in cases
        for other in cases
        if case.degree > 0 and other.degree == 2 * case.degree and case.family == other.family
    ]
    if not pairs:
        return Criterion(name, None, LEAST_RIGHT, "inconclusive", "there are no cases to tell by")
    right = 0
    for row, once, twice in pairs:
        grows = statistics.median(double / single for (double, _), (single, _) in zip(twice, once, strict=False))
        right += row.bottleneck == ("compute" if log2(grows) > _COMPUTE_ELASTICITY else "memory")
    share, noise = right / len(pairs), statistics.median(row.noise for row, *_ in pairs)
    said = f"{right} of {len(pairs)}, more than {LEAST_RIGHT:.0%} asked, noise {noise:.1%}"
    is_met = share > LEAST_RIGHT
    return _judged(name, share, LEAST_RIGHT, is_met, said, "" if is_met or noise <= MOST_NOISE else _NOISY)


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


def torch_networks(batch: int = 1, length: int = 128) -> list[Case]:
    """Return ResNet-50, BERT-base and GPT-2 small as transformers has them, with weights at random.

    Raises:
        UsageError: transformers is not installed.
    """
    import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - an extra

    try:
        import transformers as hf  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError(
            "torch's networks need transformers, not installed here: pip install 'minitrain[transformers]'; "
            'phase="synthetic" does without'
        ) from None
    words = torch.zeros((batch, length), dtype=torch.int64)
    models = {
        "resnet50": (hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000)), (batch, 3, 224, 224)),
        "bert_base": (hf.BertModel(hf.BertConfig()), words),
        "gpt2_small": (hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False)), words),
    }
    return [Case(name, model, (given,)) for name, (model, given) in models.items()]
