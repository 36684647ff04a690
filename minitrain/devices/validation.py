"""Validate: compare predictions with the machine at hand, and judge them by the specification's criteria.

Phase 1 is synthetic: matrix multiplications, passes over memory, and polynomials whose degree sets how much arithmetic
goes with their bytes. Phase 2 is networks. Cases are run in rounds, each round in another order, and each case stands
between two probes, small kernels whose prediction is known. Where a case's samples scatter little, their median is
compared with the prediction. Where they scatter, the machine was busy: then what is compared is the case over its
probes, measured and predicted, which a slow moment changes little.

Criteria: the median error of compute-bound cases is under 15 %, that of memory-bound ones under 20 %, and the
bottleneck is named rightly in more than 90 %. What a polynomial is truly bound by is measured: if twice its arithmetic
on the same bytes takes more than 2 ** 0.5 times as long, it is bound by compute. A criterion whose samples scatter more
than it allows is inconclusive, and so is one by a config whose calibration did.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import log2
from typing import Any, Literal, final

from minitrain.devices.backends import Backend, JaxBackend, Kernel, horner
from minitrain.devices.calibration import PROBE_MATMUL, PROBE_STREAM_BYTES, noise_of
from minitrain.devices.jax_programs import as_arguments, program_of
from minitrain.devices.kinds import make_simulator
from minitrain.devices.measuring import calls_a_sample, relative_iqr, sample_between
from minitrain.devices.sample_networks import SampleNetwork, all_networks
from minitrain.devices.simulator import DeviceSimulator
from minitrain.errors import UsageError, require_count

PHASES = ("synthetic", "models", "all")
MOST_NOISE = 0.15
LIMITS = {"compute": 0.15, "memory": 0.20}
LEAST_RIGHT = 0.9
_COMPUTE_ELASTICITY = 0.5
_DEGREES = (1, 2, 4, 8, 16, 32, 64)
_POLYNOMIAL_BYTES = (2**18, 2**22, 2**25)
_MATMULS = ((128, 128, 128), (512, 512, 512), (2048, 2048, 2048), (1000, 300, 700), (1, 2048, 2048))
_STREAMS = (2**20, 2**24, 2**27)
_PROBES = {"compute": PROBE_MATMUL, "memory": PROBE_STREAM_BYTES}

Verdict = Literal["pass", "fail", "inconclusive"]
Progress = Callable[[int, int, str], None]


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
        lines = [head, *map(_line, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        judged = [f"{criterion.name}: {criterion.verdict} ({criterion.reason})" for criterion in self.criteria]
        stopped = "" if self.is_complete else " (stopped before all rounds were made)"
        return "\n".join([*text, "", *judged, f"{self.device}: {self.verdict}{stopped}"])


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
    runs = _Runs(JaxBackend() if backend is None else backend, simulator, chosen)
    is_complete = runs.sample_all(num_rounds, progress)
    chosen = [case for case in chosen if runs.has_samples(case)]
    rows = tuple(map(runs.result, chosen))
    noise = noise_of(device)
    groups = [_errors(rows, bound, noise) for bound in ("compute", "memory")]
    criteria = (*groups, _bottlenecks(chosen, rows))
    return ValidationReport(simulator.spec.name, rows, criteria, is_complete)


def cases_of(phase: str) -> list[Case]:
    """Return the cases of a phase.

    Raises:
        UsageError: there is no such phase.
    """
    if phase not in PHASES:
        raise UsageError(f"phase must be one of {', '.join(PHASES)}, got {phase!r}", phase=phase)
    found = [] if phase == "models" else _synthetic()
    return found if phase == "synthetic" else found + [_of_network(network) for network in all_networks()]


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


def _of_network(network: SampleNetwork) -> Case:
    return Case(network.name, network.function, (network.weights, network.inputs))


@final
class _Runs:
    """The samples of all cases and of the probes around them."""

    def __init__(self, backend: Backend, simulator: DeviceSimulator, cases: Sequence[Case]) -> None:
        self._simulator = simulator
        self._predicted = {case.name: simulator.simulate(program_of(case.function, *case.shapes)) for case in cases}
        self._kernels = {case.name: _kernel(backend, case) for case in cases}
        self._calls = {name: calls_a_sample(kernel) for name, kernel in self._kernels.items()}
        self._probes = {"compute": backend.matmul(_PROBES["compute"]), "memory": backend.stream(_PROBES["memory"])}
        self._probe_calls = {bound: calls_a_sample(kernel) for bound, kernel in self._probes.items()}
        self._samples: dict[str, list[tuple[float, float]]] = {case.name: [] for case in cases}

    def sample_all(self, num_rounds: int, progress: Progress | None) -> bool:
        """Sample every case in each round, and return whether nobody stopped it."""
        try:
            self._sample_rounds(num_rounds, progress)
        except KeyboardInterrupt:
            return False
        return True

    def has_samples(self, case: Case) -> bool:
        """Return whether a case was sampled at all."""
        return bool(self._samples[case.name])

    def _sample_rounds(self, num_rounds: int, progress: Progress | None) -> None:
        """Sample every case in each round, each round in another order."""
        order = random.Random(0)
        names = list(self._samples)
        for place in range(num_rounds):
            order.shuffle(names)
            for step, name in enumerate(names):
                if progress is not None:
                    progress(place * len(names) + step, num_rounds * len(names), name)
                self._samples[name].append(self._sample(name))

    def _sample(self, name: str) -> tuple[float, float]:
        """Return the time of a case, and the mean of the probes before and after it, s."""
        bound = self._bound(name)
        return sample_between(self._kernels[name], self._calls[name], self._probes[bound], self._probe_calls[bound])

    def _bound(self, name: str) -> str:
        return "compute" if self._predicted[name].is_compute_bound else "memory"

    def result(self, case: Case) -> CaseResult:
        """Return a case measured and predicted."""
        samples, predicted = self._samples[case.name], self._predicted[case.name].time_seconds
        times = [taken for taken, _ in samples]
        measured, noise = statistics.median(times), relative_iqr(times)
        by_ratio = noise > MOST_NOISE
        error = predicted / measured - 1
        if by_ratio:
            ratios = [taken / probe for taken, probe in samples]
            noise = relative_iqr(ratios)
            error = predicted / self._predicted_probe(self._bound(case.name)) / statistics.median(ratios) - 1
        return CaseResult(case.name, self._bound(case.name), measured, predicted, noise, by_ratio, error)

    def _predicted_probe(self, bound: str) -> float:
        """Return how long a probe should take, s."""
        import jax.numpy as jnp  # noqa: PLC0415

        size = _PROBES[bound]
        if bound == "compute":
            return self._simulator.predict(program_of(jnp.matmul, (size, size), (size, size)))
        return self._simulator.predict(program_of(horner(1), (size // 8,)))


def _kernel(backend: Backend, case: Case) -> Kernel:
    """Return a case with constant arguments."""
    import jax  # noqa: PLC0415 - JAX is heavy
    import jax.numpy as jnp  # noqa: PLC0415

    arguments = [
        jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01, leaf.dtype), as_arguments(shape, "float32"))
        for shape in case.shapes
    ]
    return backend.compiled(case.function, *arguments)


def _errors(rows: Sequence[CaseResult], bound: str, calibration_noise: float = 0.0) -> Criterion:
    """Judge the median error of the cases that are bound alike, by a config whose own measurements had some noise."""
    name, limit = f"error of {bound}-bound cases", LIMITS[bound]
    chosen = [row for row in rows if row.bottleneck == bound]
    if not chosen:
        return Criterion(name, None, limit, "inconclusive", "there are none")
    error = statistics.median(abs(row.error) for row in chosen)
    noise = statistics.median(row.noise for row in chosen)
    said = f"median {error:.1%} of {len(chosen)}, allowed {limit:.0%}, noise {noise:.1%}"
    if noise > limit:
        return Criterion(name, error, limit, "inconclusive", f"{said}: the machine was too busy to tell")
    if calibration_noise > limit:
        reason = f"{said}: the calibration's noise was {calibration_noise:.1%}; calibrate when it is quiet"
        return Criterion(name, error, limit, "inconclusive", reason)
    return Criterion(name, error, limit, "pass" if error < limit else "fail", said)


def _bottlenecks(cases: Sequence[Case], rows: Sequence[CaseResult]) -> Criterion:
    """Judge how often the bottleneck of a polynomial is named rightly, by what twice its arithmetic costs."""
    found = {row.name: row for row in rows}
    pairs = [(case, other) for case in cases for other in cases if _is_double(case, other)]
    name = "bottleneck named rightly"
    if not pairs:
        return Criterion(name, None, LEAST_RIGHT, "inconclusive", "there are no polynomials to tell by")
    right = 0
    for case, other in pairs:
        elasticity = log2(found[other.name].measured_s / found[case.name].measured_s)
        truth = "compute" if elasticity > _COMPUTE_ELASTICITY else "memory"
        right += found[case.name].bottleneck == truth
    share = right / len(pairs)
    noise = statistics.median(found[case.name].noise for case, _ in pairs)
    said = f"{right} of {len(pairs)}, more than {LEAST_RIGHT:.0%} asked, noise {noise:.1%}"
    if share <= LEAST_RIGHT and noise > MOST_NOISE:
        return Criterion(name, share, LEAST_RIGHT, "inconclusive", f"{said}: the machine was too busy to tell")
    return Criterion(name, share, LEAST_RIGHT, "pass" if share > LEAST_RIGHT else "fail", said)


def _is_double(case: Case, other: Case) -> bool:
    """Whether a polynomial has twice the arithmetic of another on the same bytes."""
    return case.degree > 0 and other.degree == 2 * case.degree and case.shapes == other.shapes
