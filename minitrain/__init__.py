"""Write a distributed training strategy once; price it, prove it, see it, teach with it.

    import minitrain as mt

    run = mt.simulate("zero3", world_size=8, num_layers=32, global_batch_size=64)
    print(run.step_time, run.peak_memory_bytes, run.mfu)

A strategy is an async function of one rank's `Model` (see `minitrain.lib`); `simulate` runs it on every rank and
returns a `Run`. Names are imported when they are first used, so that `import minitrain` stays quick.
"""

import sys
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from minitrain.run.above import hand_in

if TYPE_CHECKING:  # the public names and where they are: `_homes` reads this block
    from minitrain import hw as hw
    from minitrain.engine.model import Model as Model
    from minitrain.engine.semantics import Nesterov as Nesterov
    from minitrain.engine.semantics import Shares as Shares
    from minitrain.engine.semantics import approximate_steps as approximate_steps
    from minitrain.engine.semantics import delayed_steps as delayed_steps
    from minitrain.engine.semantics import local_steps as local_steps
    from minitrain.engine.semantics import own_steps as own_steps
    from minitrain.engine.strategy_model import StrategyModel as StrategyModel
    from minitrain.errors import CollectiveMismatchError as CollectiveMismatchError
    from minitrain.errors import DeadlockError as DeadlockError
    from minitrain.errors import HardwareConfigError as HardwareConfigError
    from minitrain.errors import LawError as LawError
    from minitrain.errors import MinitrainError as MinitrainError
    from minitrain.errors import OutOfMemoryError as OutOfMemoryError
    from minitrain.errors import ProofError as ProofError
    from minitrain.errors import StrategyError as StrategyError
    from minitrain.errors import TrainingError as TrainingError
    from minitrain.errors import UsageError as UsageError
    from minitrain.evidence.validate import Validation as Validation
    from minitrain.evidence.validate import validate as validate
    from minitrain.learn.explorer.notebook import explore as explore
    from minitrain.learn.grader import Grade as Grade
    from minitrain.learn.grader import grade as grade
    from minitrain.machine.cluster import Cluster as Cluster
    from minitrain.machine.device_groups import Devices as Devices
    from minitrain.machine.device_groups import Link as Link
    from minitrain.machine.device_groups import Thermal as Thermal
    from minitrain.machine.given_durations import Calibration as Calibration
    from minitrain.machine.given_durations import FixedPredictor as FixedPredictor
    from minitrain.machine.measured_layers import MeasuredLayers as MeasuredLayers
    from minitrain.machine.platforms import Platform as Platform
    from minitrain.machine.platforms import platforms as platforms
    from minitrain.machine.solver.engine import solve as solve
    from minitrain.proof.proof import Proof as Proof
    from minitrain.proof.proof import prove as prove
    from minitrain.run.parameters import Fault as Fault
    from minitrain.run.parameters import FaultRate as FaultRate
    from minitrain.run.parameters import Recovery as Recovery
    from minitrain.run.result import Run as Run
    from minitrain.run.result import load_run as load_run
    from minitrain.run.simulation import Comparison as Comparison
    from minitrain.run.simulation import FailedRun as FailedRun
    from minitrain.run.simulation import compare as compare
    from minitrain.run.simulation import simulate as simulate
    from minitrain.run.simulation import simulate_async as simulate_async
    from minitrain.run.strategy_loading import strategies as strategies
    from minitrain.search import schedules as schedules
    from minitrain.search.planning.planner import Plan as Plan
    from minitrain.search.planning.planner import plan as plan
    from minitrain.search.schedules.pipeline import from_schedule as from_schedule
    from minitrain.search.sweeps.sweep import Sweep as Sweep
    from minitrain.search.sweeps.sweep import sweep as sweep
    from minitrain.search.tuning.tune import Tuning as Tuning
    from minitrain.search.tuning.tune import tune as tune
    from minitrain.tensors.index_sets import span as span
    from minitrain.training.calibration import calibrate as calibrate
    from minitrain.training.measured import MeasuredRun as MeasuredRun
    from minitrain.training.profiles import Profiled as Profiled
    from minitrain.training.profiles import read_profiles as read_profiles
    from minitrain.training.train import LossCurves as LossCurves
    from minitrain.training.train import loss_curves as loss_curves
    from minitrain.training.train import train as train
    from minitrain.whatif.diff import Gap as Gap
    from minitrain.whatif.diff import diff as diff
    from minitrain.whatif.disturbed_run import DisturbedRun as DisturbedRun
    from minitrain.whatif.goodput import Goodput as Goodput
    from minitrain.whatif.goodput import goodput as goodput
    from minitrain.whatif.monte_carlo import MonteCarlo as MonteCarlo
    from minitrain.whatif.monte_carlo import Sensitivity as Sensitivity
    from minitrain.whatif.monte_carlo import monte_carlo as monte_carlo
    from minitrain.whatif.monte_carlo import sensitivity as sensitivity
    from minitrain.whatif.noise import Histogram as Histogram
    from minitrain.whatif.noise import Noise as Noise
    from minitrain.whatif.noise import SlowLink as SlowLink
    from minitrain.whatif.price import Priced as Priced
    from minitrain.whatif.price import price as price
    from minitrain.whatif.price import price_async as price_async
    from minitrain.whatif.replayed_runs import Replayed as Replayed
    from minitrain.whatif.replayed_runs import replay as replay
    from minitrain.workloads.architecture import Precision as Precision
    from minitrain.workloads.documents import Documents as Documents
    from minitrain.workloads.exchange.reading import read_recipe as read_recipe
    from minitrain.workloads.exchange.reading import write_recipe as write_recipe
    from minitrain.workloads.exchange.recipe import Recipe as Recipe
    from minitrain.workloads.hugging_face import read_lora as read_lora
    from minitrain.workloads.mixers import LatentAttention as LatentAttention
    from minitrain.workloads.mixers import LinearAttention as LinearAttention
    from minitrain.workloads.mixers import SparseAttention as SparseAttention
    from minitrain.workloads.shapes import Lora as Lora
    from minitrain.workloads.transformer import Transformer as Transformer
    from minitrain.workloads.transformer import models as models

PUBLIC_PATHS = {
    "devices": "machine.devices",
    "heterogeneous": "machine.heterogeneous",
    "platform": "machine.platform",
    "schedules": "search.schedules",
    "solver": "machine.solver",
}
"""Packages that users import by shorter names than those of their rooms."""

_ABOVE_RUNS = {
    "chrome trace": "view.exports",
    "excerpt": "view.run_folder",
    "faults": "whatif.disturbed_run",
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


@cache
def _homes() -> dict[str, str]:
    """Return the module of each public name, as the imports for type checkers at the top of this file say."""
    import inspect  # noqa: PLC0415  (only where a name is asked for)
    import re  # noqa: PLC0415

    source = inspect.getsource(sys.modules[__name__])
    return {name: module for module, name in re.findall(r"^    from (\S+) import (\w+) as \2$", source, re.M)}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__all__":
        return sorted(_homes())
    if name in _MODULES:
        return import_module(f"minitrain.{name}")
    if name.startswith("__") or name not in _homes():
        raise AttributeError(f"module 'minitrain' has no attribute {name!r}")
    value = getattr(import_module(_homes()[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(_homes())


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
