"""A run that is ready to be simulated: the strategy is found, and what prices its operations is made.

Every way of simulating (all ranks, folded) begins with a `PreparedRun` and makes its `Run` by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from minitrain.errors import UsageError
from minitrain.hardware.data_sheet import DataSheet
from minitrain.hardware.predictor import network_of
from minitrain.hardware.price import Predictor, RankPredictors, predictor_of
from minitrain.rank.model import Model
from minitrain.rank.shares import SharesOfRun
from minitrain.run.chosen_strategy import choose_strategy
from minitrain.run.device_memory import device_memory_of
from minitrain.run.memory_reports import OutOfMemory
from minitrain.run.out_of_memory import error_of, excess_of, when, worst_of
from minitrain.run.parameters import DEFAULTS, RunParameters, split_keywords
from minitrain.run.progress import Watch
from minitrain.run.result import Run
from minitrain.run.strategy_loading import Strategy, framework_of
from minitrain.run.trained_model import name_of_workload, trained_model_of
from minitrain.transport.dist import Dist
from minitrain.workloads.workload import fills_devices

if TYPE_CHECKING:
    from minitrain.run.device_kinds import DeviceKind

R = TypeVar("R", bound=Run)


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A strategy, its options, and what it is simulated with.

    Args:
        name: the strategy's name.
        function: the strategy.
        options: the strategy's own options.
        parameters: those of the run.
        predictor: what prices the operations: one for all ranks, or one for each.
        watch: called when the ranks begin, with a `RunProgress`.
        variant: how all ranks are simulated (a `minitrain.run.variants.Variant`), for whoever extends the engine;
            chosen by the parameters if None.
        folded_kind: class of the models where ranks are folded, likewise.
    """

    name: str
    function: Strategy
    options: Mapping[str, Any]
    parameters: RunParameters
    predictor: Predictor | RankPredictors
    watch: Watch | None = None
    variant: Any = None
    folded_kind: Any = None

    @property
    def hardware_name(self) -> str:
        """What the run calls its hardware."""
        if isinstance(self.predictor, RankPredictors) and self.predictor.cluster is not None:
            return str(self.predictor.cluster.name)
        system = getattr(self.predictor, "system", None)
        return str(getattr(system, "name", None) or self.parameters.hardware)

    @property
    def has_stragglers(self) -> bool:
        """Whether computing takes longer on some ranks."""
        return bool(self.parameters.slowdown)

    def predictor_of(self, rank: int) -> Predictor:
        """Return what prices the operations of one rank, which may be a straggler."""
        predictor, factor = predictor_of(self.predictor, rank), (self.parameters.slowdown or {}).get(rank)
        return predictor if factor is None else predictor.slowed(factor)

    def give_shares(self, models: Sequence[Model]) -> None:
        """Tell the ranks who takes how much of the step, if they do not all take the same."""
        shares = None if self.parameters.shares is None else SharesOfRun(self.parameters.shares)
        for model in models if shares else ():
            model._shares = shares

    def require_shares_read(self, models: Sequence[Model]) -> None:
        """Require that the strategy has asked for the shares that it was given.

        Raises:
            UsageError: it has not, and has divided the step equally.
        """
        given = models[0]._shares
        if given is not None and given.unread:
            raise UsageError(
                f"{self.name} has not asked for the {' and the '.join(given.unread)} of shares, and divides the step "
                "without them; use a strategy that asks for them (model.samples_of_rank, model.microbatches, "
                "model.stages), or leave them out",
                shares=given.shares,
            )

    def transport(self) -> Dist:
        """Return a fresh transport for the ranks."""
        return Dist(self.parameters.world_size, p2p_buffer=self.parameters.p2p_buffer)

    def _sheets(self) -> tuple[DataSheet | None, ...]:
        """Return the data sheet of each rank's device, or one for all."""
        predictors = self.predictor.predictors if isinstance(self.predictor, RankPredictors) else (self.predictor,)
        return tuple([getattr(getattr(predictor, "system", None), "sheet", None) for predictor in predictors])

    def _device_kinds(self) -> Sequence[DeviceKind]:
        """Return which ranks have which device, where a cluster tells them apart."""
        if not isinstance(self.predictor, RankPredictors) or self.predictor.cluster is None:
            return ()
        from minitrain.run.device_kinds import kinds_of  # noqa: PLC0415  (few runs have several kinds)

        return kinds_of(self.predictor)

    def result(self, kind: type[R], models: Sequence[Model], excesses: Sequence[OutOfMemory], /, **more: Any) -> R:
        """Return the run that was simulated.

        Args:
            kind: class of the run.
            models: those of the ranks, at their end.
            excesses: where tensors took more than the device's memory.
            more: further fields of that class, and those of `Run` that are not read from the models as they are.
        """
        workload, parameters = self.predictor.workload, self.parameters
        memories = [device_memory_of(model) for model in models] if fills_devices(workload) else []
        oom = min(excesses, key=when, default=None)
        if memories:
            sizes = [model._runtime_predictor.capacity_bytes for model in models]
            oom = worst_of(map(excess_of, models, memories, sizes))
        if oom is not None and parameters.strict_memory:
            raise error_of(oom)
        machine = predictor_of(self.predictor, 0)  # the ranks of a run share one network
        of_models: dict[str, Any] = {
            "models": models,
            "logs": [model._log for model in models],
            "peak_memory_per_rank": [model.peak_memory for model in models],
            "memory_by_kind": _memory_by_kind(models, workload.bytes_per_element),
            "peak_host_memory_bytes": max([model.peak_host_bytes for model in models]),
            "meshes": _different([mesh for model in models for mesh in model._meshes]),
            "trained_model": trained_model_of(workload, models),
            "device_kinds": self._device_kinds(),
        }
        return kind(
            strategy=self.name,
            world_size=parameters.world_size,
            num_layers=parameters.num_layers,
            global_batch_size=parameters.global_batch_size,
            hardware=self.hardware_name,
            options=self.options,
            bytes_per_element=workload.bytes_per_element,
            useful_flop=workload.training_flop(parameters.global_batch_size, parameters.num_layers),
            peak_flop_per_s=self.predictor.peak_flop_per_s,
            capacity_bytes=self.predictor.capacity_bytes,
            oom=oom,
            needed_memory_bytes=max([memory.needed_bytes for memory in memories], default=None),
            network=network_of(machine) or "flat",
            num_nodes=getattr(machine, "num_nodes", 1),
            priced_by=_priced_by(self.predictor),
            prepared=self,
            sheets=self._sheets(),
            tokens_per_sample=getattr(workload, "tokens_per_sample", None),
            workload=name_of_workload(workload),
            **(of_models | more),
        )


def _priced_by(predictor: Predictor | RankPredictors) -> str:
    """Return what priced operations, in words; devices of a cluster may have platforms of their own."""
    each = predictor.predictors if isinstance(predictor, RankPredictors) else (predictor,)
    different = {id(pricing): pricing for pricing in (getattr(one, "pricing", "roofline") for one in each)}
    return "; ".join(dict.fromkeys(map(str, different.values())))


def _different(meshes: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    """Return meshes that differ, each once."""
    return list({tuple(mesh.items()): mesh for mesh in meshes}.values())


def _memory_by_kind(models: Sequence[Model], bytes_per_element: int) -> dict[str, float] | None:
    """Return the bytes of each kind on the rank that held most, when it did; None where stores did not tell kinds."""
    if models[0].layers_are_alike:
        return None
    kinds = max(models, key=lambda model: model.peak_memory).peak_by_kind
    return kinds and {kind: elements * bytes_per_element for kind, elements in kinds.items()}


def prepare(strategy: str | Strategy, keywords: Mapping[str, Any], watch: Watch | None = None) -> PreparedRun:
    """Find a strategy and make what prices its operations.

    Args:
        strategy: a coroutine function of one rank's `Model`, a shipped name, or "path.py:function"; a name may have
            options ("pp_dp:pp=4").
        keywords: parameters of the run, and the strategy's own options.
        watch: called when the ranks begin, with a `RunProgress`.

    Raises:
        UsageError: a parameter is outside its rule.
        HardwareConfigError: the hardware config cannot be found or read, or is invalid.
        StrategyError: there is no such strategy, or it takes other options.
    """
    parameters, common = split_keywords(keywords)
    chosen = choose_strategy(strategy)
    options = chosen.options_with(common, DEFAULTS)
    predictor = parameters.predictor(framework_of(chosen.function))
    return PreparedRun(chosen.name, chosen.function, options, parameters, predictor, watch)
