"""Write a distributed training strategy once; price it, prove it, see it, teach with it.

    import minitrain as mt

    run = mt.simulate("zero3", world_size=8, num_layers=32, global_batch_size=64)
    print(run.step_time, run.peak_memory_bytes, run.mfu)

A strategy is an async function of one rank's `Model` (see `minitrain.lib`); `simulate` runs it on every rank and
returns a `Run`. Names are imported when they are first used, so that `import minitrain` stays quick.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain import hw, schedules
    from minitrain.errors import (
        CollectiveMismatchError,
        DeadlockError,
        HardwareConfigError,
        LawError,
        MinitrainError,
        OutOfMemoryError,
        ProofError,
        StrategyError,
        TrainingError,
        UsageError,
    )
    from minitrain.exchange.reading import read_recipe
    from minitrain.exchange.recipe import Recipe
    from minitrain.exchange.writing import write_recipe
    from minitrain.faults.disturbed_run import DisturbedRun
    from minitrain.faults.goodput import Goodput, goodput
    from minitrain.grading.grader import Grade, grade
    from minitrain.hardware.clusters.cluster import Cluster
    from minitrain.hardware.clusters.device_groups import Devices, Link, Thermal
    from minitrain.hardware.fixed_durations import FixedPredictor
    from minitrain.hardware.measured_layers import MeasuredLayers
    from minitrain.hardware.platforms import Platform, platforms
    from minitrain.noise.monte_carlo import MonteCarlo, monte_carlo
    from minitrain.noise.noise import Histogram, Noise, SlowLink
    from minitrain.noise.sensitivity import Sensitivity, sensitivity
    from minitrain.numerics.proof import Proof, prove
    from minitrain.planning.planner import plan
    from minitrain.planning.result import Plan
    from minitrain.rank.model import Model
    from minitrain.rank.shares import Shares
    from minitrain.run.comparison import Comparison, FailedRun, compare
    from minitrain.run.faults import Fault, FaultRate, Recovery
    from minitrain.run.result import Run, load_run
    from minitrain.run.simulation import simulate, simulate_async
    from minitrain.run.strategy_loading import strategies
    from minitrain.schedules.pipeline import from_schedule
    from minitrain.solver.engine import solve
    from minitrain.sweeps.sweep import Sweep, sweep
    from minitrain.tensors.index_sets import span
    from minitrain.training.measured import MeasuredRun
    from minitrain.training.train import train
    from minitrain.tuning.result import Tuning
    from minitrain.tuning.tune import tune
    from minitrain.validation.validate import Validation, validate
    from minitrain.vector.price import Priced, price, price_async
    from minitrain.workloads.architecture import LatentAttention, Precision
    from minitrain.workloads.models import models
    from minitrain.workloads.transformer import Transformer

_HOMES = {
    "errors": (
        "CollectiveMismatchError",
        "DeadlockError",
        "HardwareConfigError",
        "LawError",
        "MinitrainError",
        "OutOfMemoryError",
        "ProofError",
        "StrategyError",
        "TrainingError",
        "UsageError",
    ),
    "exchange.reading": ("read_recipe",),
    "exchange.recipe": ("Recipe",),
    "exchange.writing": ("write_recipe",),
    "faults.disturbed_run": ("DisturbedRun",),
    "faults.goodput": ("Goodput", "goodput"),
    "grading.grader": ("Grade", "grade"),
    "hardware.clusters.cluster": ("Cluster",),
    "hardware.clusters.device_groups": ("Devices", "Link", "Thermal"),
    "hardware.fixed_durations": ("FixedPredictor",),
    "hardware.measured_layers": ("MeasuredLayers",),
    "hardware.platforms": ("Platform", "platforms"),
    "noise.monte_carlo": ("MonteCarlo", "monte_carlo"),
    "noise.noise": ("Histogram", "Noise", "SlowLink"),
    "noise.sensitivity": ("Sensitivity", "sensitivity"),
    "numerics.proof": ("Proof", "prove"),
    "planning.planner": ("plan",),
    "planning.result": ("Plan",),
    "platform.replayed_runs": ("Replayed", "replay"),
    "rank.model": ("Model",),
    "rank.shares": ("Shares",),
    "run.comparison": ("Comparison", "FailedRun", "compare"),
    "run.faults": ("Fault", "FaultRate", "Recovery"),
    "run.result": ("Run", "load_run"),
    "run.simulation": ("simulate", "simulate_async"),
    "run.strategy_loading": ("strategies",),
    "schedules.pipeline": ("from_schedule",),
    "solver.engine": ("solve",),
    "sweeps.sweep": ("Sweep", "sweep"),
    "tensors.index_sets": ("span",),
    "training.measured": ("MeasuredRun",),
    "training.train": ("train",),
    "tuning.result": ("Tuning",),
    "tuning.tune": ("tune",),
    "validation.validate": ("Validation", "validate"),
    "vector.price": ("Priced", "price", "price_async"),
    "workloads.models": ("models",),
    "workloads.architecture": ("LatentAttention", "Precision"),
    "workloads.transformer": ("Transformer",),
}
_MODULES = ("hw", "schedules")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Cluster",
    "CollectiveMismatchError",
    "Comparison",
    "DeadlockError",
    "Devices",
    "DisturbedRun",
    "FailedRun",
    "Fault",
    "FaultRate",
    "FixedPredictor",
    "Goodput",
    "Grade",
    "HardwareConfigError",
    "Histogram",
    "LatentAttention",
    "LawError",
    "Link",
    "MeasuredLayers",
    "MeasuredRun",
    "MinitrainError",
    "Model",
    "MonteCarlo",
    "Noise",
    "OutOfMemoryError",
    "Plan",
    "Platform",
    "Precision",
    "Priced",
    "Proof",
    "ProofError",
    "Recipe",
    "Recovery",
    "Replayed",
    "Run",
    "Sensitivity",
    "Shares",
    "SlowLink",
    "StrategyError",
    "Sweep",
    "Thermal",
    "TrainingError",
    "Transformer",
    "Tuning",
    "UsageError",
    "Validation",
    "compare",
    "from_schedule",
    "goodput",
    "grade",
    "hw",
    "load_run",
    "models",
    "monte_carlo",
    "plan",
    "platforms",
    "price",
    "price_async",
    "prove",
    "read_recipe",
    "replay",
    "schedules",
    "sensitivity",
    "simulate",
    "simulate_async",
    "solve",
    "span",
    "strategies",
    "sweep",
    "train",
    "tune",
    "validate",
    "write_recipe",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _MODULES:
        return import_module(f"minitrain.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'minitrain' has no attribute {name!r}")
    value = getattr(import_module(f"minitrain.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)


class _BesideThePackage:
    """Finds the folders that a checkout has beside the package, and an installation in it.

    Python started in a checkout imports the package from there, even where a wheel is installed.
    """

    folders = ("strategies", "hw_configs")
    root = Path(__file__).parents[1]

    @classmethod
    def find_spec(cls, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Find `minitrain.strategies` and `minitrain.hw_configs`, as an import asks for them."""
        package, _, folder = name.rpartition(".")
        return PathFinder.find_spec(name, [str(cls.root)]) if package == __name__ and folder in cls.folders else None


if (_BesideThePackage.root / "strategies" / "one_f_one_b.py").is_file():
    sys.meta_path.append(_BesideThePackage)
