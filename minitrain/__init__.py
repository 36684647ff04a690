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
from types import ModuleType
from typing import TYPE_CHECKING, Any

from minitrain.run.above import hand_in

if TYPE_CHECKING:
    from minitrain import hw
    from minitrain.engine.model import Model
    from minitrain.engine.semantics import Nesterov, approximate_steps, delayed_steps, local_steps, own_steps
    from minitrain.engine.shares import Shares
    from minitrain.engine.strategy_model import StrategyModel
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
    from minitrain.evidence.validate import Validation, validate
    from minitrain.explorer.notebook import explore
    from minitrain.learn.grader import Grade, grade
    from minitrain.machine.calibrated import Calibration
    from minitrain.machine.clusters.cluster import Cluster
    from minitrain.machine.clusters.device_groups import Devices, Link, Thermal
    from minitrain.machine.fixed_durations import FixedPredictor
    from minitrain.machine.measured_layers import MeasuredLayers
    from minitrain.machine.platforms import Platform, platforms
    from minitrain.machine.solver.engine import solve
    from minitrain.proof.proof import Proof, prove
    from minitrain.run.comparison import Comparison, FailedRun, compare
    from minitrain.run.faults import Fault, FaultRate, Recovery
    from minitrain.run.result import Run, load_run
    from minitrain.run.simulation import simulate, simulate_async
    from minitrain.run.strategy_loading import strategies
    from minitrain.search import schedules
    from minitrain.search.planning.planner import Plan, plan
    from minitrain.search.schedules.pipeline import from_schedule
    from minitrain.search.sweeps.sweep import Sweep, sweep
    from minitrain.search.tuning.tune import Tuning, tune
    from minitrain.tensors.index_sets import span
    from minitrain.training.calibration import calibrate
    from minitrain.training.measured import MeasuredRun
    from minitrain.training.profiles import Profiled, read_profiles
    from minitrain.training.train import LossCurves, loss_curves, train
    from minitrain.whatif.diff import Gap, diff
    from minitrain.whatif.faults.disturbed_run import DisturbedRun
    from minitrain.whatif.faults.goodput import Goodput, goodput
    from minitrain.whatif.noise.monte_carlo import MonteCarlo, monte_carlo
    from minitrain.whatif.noise.noise import Histogram, Noise, SlowLink
    from minitrain.whatif.noise.sensitivity import Sensitivity, sensitivity
    from minitrain.whatif.vector.price import Priced, price, price_async
    from minitrain.workloads.architecture import LatentAttention, Lora, Precision
    from minitrain.workloads.documents import Documents
    from minitrain.workloads.exchange.reading import read_recipe, write_recipe
    from minitrain.workloads.exchange.recipe import Recipe
    from minitrain.workloads.models import models
    from minitrain.workloads.peft import read_lora
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
    "workloads.exchange.reading": ("read_recipe", "write_recipe"),
    "workloads.exchange.recipe": ("Recipe",),
    "whatif.diff": ("Gap", "diff"),
    "whatif.faults.disturbed_run": ("DisturbedRun",),
    "whatif.faults.goodput": ("Goodput", "goodput"),
    "learn.grader": ("Grade", "grade"),
    "machine.clusters.cluster": ("Cluster",),
    "machine.clusters.device_groups": ("Devices", "Link", "Thermal"),
    "machine.fixed_durations": ("FixedPredictor",),
    "machine.measured_layers": ("MeasuredLayers",),
    "machine.platforms": ("Platform", "platforms"),
    "whatif.noise.monte_carlo": ("MonteCarlo", "monte_carlo"),
    "whatif.noise.noise": ("Histogram", "Noise", "SlowLink"),
    "whatif.noise.sensitivity": ("Sensitivity", "sensitivity"),
    "proof.proof": ("Proof", "prove"),
    "search.planning.planner": ("Plan", "plan"),
    "whatif.replayed_runs": ("Replayed", "replay"),
    "engine.model": ("Model",),
    "engine.semantics": ("Nesterov", "approximate_steps", "delayed_steps", "local_steps", "own_steps"),
    "engine.strategy_model": ("StrategyModel",),
    "engine.shares": ("Shares",),
    "run.comparison": ("Comparison", "FailedRun", "compare"),
    "run.faults": ("Fault", "FaultRate", "Recovery"),
    "run.result": ("Run", "load_run"),
    "run.simulation": ("simulate", "simulate_async"),
    "run.strategy_loading": ("strategies",),
    "search.schedules.pipeline": ("from_schedule",),
    "machine.solver.engine": ("solve",),
    "search.sweeps.sweep": ("Sweep", "sweep"),
    "tensors.index_sets": ("span",),
    "machine.calibrated": ("Calibration",),
    "training.calibration": ("calibrate",),
    "training.train": ("LossCurves", "loss_curves", "train"),
    "training.measured": ("MeasuredRun",),
    "training.profiles": ("Profiled", "read_profiles"),
    "search.tuning.tune": ("Tuning", "tune"),
    "explorer.notebook": ("explore",),
    "evidence.validate": ("Validation", "validate"),
    "whatif.vector.price": ("Priced", "price", "price_async"),
    "workloads.models": ("models",),
    "workloads.peft": ("read_lora",),
    "workloads.architecture": ("LatentAttention", "Lora", "Precision"),
    "workloads.documents": ("Documents",),
    "workloads.transformer": ("Transformer",),
}
PUBLIC_PATHS = {
    "devices": "machine.devices",
    "heterogeneous": "machine.heterogeneous",
    "platform": "machine.platform",
    "schedules": "search.schedules",
    "solver": "machine.solver",
}
"""Packages that users import by shorter names than those of their rooms."""

_ABOVE_RUNS = {
    "chrome trace": "view.chrome",
    "excerpt": "view.excerpt",
    "faults": "whatif.faults.disturbed_run",
    "figure": "view.gantt",
    "notebook": "view.notebook_figure",
    "numerics": "proof",
    "page": "view.page",
    "schedules": "search.schedules.pipeline",
    "shared links": "whatif.replayed_runs",
    "shipped strategies": "strategies",
    "sureness": "evidence.similar_runs",
    "tables": "view.tables",
    "words": "view.run_folder",
}
"""What other rooms do for runs, and where: `minitrain.run.above` is given this table."""

_MODULES = ("hw", *PUBLIC_PATHS)
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Calibration",
    "Cluster",
    "CollectiveMismatchError",
    "Comparison",
    "DeadlockError",
    "Devices",
    "DisturbedRun",
    "Documents",
    "FailedRun",
    "Fault",
    "FaultRate",
    "FixedPredictor",
    "Gap",
    "Goodput",
    "Grade",
    "HardwareConfigError",
    "Histogram",
    "LatentAttention",
    "LawError",
    "Link",
    "Lora",
    "LossCurves",
    "MeasuredLayers",
    "MeasuredRun",
    "MinitrainError",
    "Model",
    "MonteCarlo",
    "Nesterov",
    "Noise",
    "OutOfMemoryError",
    "Plan",
    "Platform",
    "Precision",
    "Priced",
    "Profiled",
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
    "StrategyModel",
    "Sweep",
    "Thermal",
    "TrainingError",
    "Transformer",
    "Tuning",
    "UsageError",
    "Validation",
    "approximate_steps",
    "calibrate",
    "compare",
    "delayed_steps",
    "diff",
    "explore",
    "from_schedule",
    "goodput",
    "grade",
    "hw",
    "load_run",
    "local_steps",
    "loss_curves",
    "models",
    "monte_carlo",
    "own_steps",
    "plan",
    "platforms",
    "price",
    "price_async",
    "prove",
    "read_lora",
    "read_profiles",
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


class _PublicPaths:
    """Finds packages by the names that users import them by, as `minitrain.solver.engine`: modules are the rooms' own.

    It is asked before the folders are, which would make second copies of the modules.
    """

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Find a module below one of the public names."""
        package, _, inside = name.partition(".")
        is_ours = package == __name__ and inside.partition(".")[0] in PUBLIC_PATHS
        loader: Any = _PublicPaths  # `importlib.abc`, whose `Loader` it could be, takes long to import
        return ModuleSpec(name, loader) if is_ours else None

    @staticmethod
    def create_module(_spec: ModuleSpec) -> None:
        """Leave it to Python to make a module, which `exec_module` replaces."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Put the room's own module in the place of a new one."""
        first, dot, rest = module.__name__.partition(".")[2].partition(".")
        sys.modules[module.__name__] = import_module(f"{__name__}.{PUBLIC_PATHS[first]}{dot}{rest}")


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
sys.meta_path.insert(0, _PublicPaths)
hand_in({does: f"{__name__}.{module}" for does, module in _ABOVE_RUNS.items()})
