"""What the configurations of a batch share: strategies, predictors and folding's history, each made once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minitrain.hardware.chosen_predictor import make_predictor
from minitrain.hardware.clusters.cluster_files import names_cluster
from minitrain.hardware.price import Predictor
from minitrain.hardware.pricing import PRICING_PARAMETERS, Pricing
from minitrain.run.chosen_strategy import ChosenStrategy, choose_strategy
from minitrain.run.exclusions import AUTO
from minitrain.run.parameters import DEFAULTS, OF_TRANSFORMER
from minitrain.run.strategy_loading import Strategy, framework_of

if TYPE_CHECKING:
    from minitrain.folding.early_divergence import DivergenceHistory

_MACHINE = ("hardware", "world_size", "network")  # what a predictor is made of, unless there is a placement


class SharedByBatch:
    """What the configurations of a batch share: loaded strategies, predictors, and which ranks folding saw diverge."""

    def __init__(self) -> None:
        self._strategies: dict[str, ChosenStrategy] = {}
        self._histories: dict[bool, DivergenceHistory] = {}  # by whether folding was asked for
        self._predictors: dict[tuple[Any, ...], Predictor] = {}  # by machine and workload, which live as long

    def strategy(self, strategy: str | Strategy) -> ChosenStrategy:
        """Return a strategy, which is loaded once if it has a name.

        Raises:
            StrategyError: there is no such strategy.
        """
        if not isinstance(strategy, str):
            return choose_strategy(strategy)
        if strategy not in self._strategies:
            self._strategies[strategy] = choose_strategy(strategy)
        return self._strategies[strategy]

    def parameters(self, chosen: ChosenStrategy, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return parameters of `simulate` in which shared objects stand for their descriptions; the run is the same.

        Args:
            chosen: the strategy, whose framework has a part in prices.
            parameters: those of the run.

        Raises:
            MinitrainError: the hardware cannot be found, is invalid, or does not connect so many ranks.
        """
        shared = self._with_workload(parameters)
        machine = self._machine(chosen, parameters)
        if machine is not None:
            workload = shared.get("workload")
            key = *machine, id(workload)
            if key not in self._predictors:
                self._predictors[key] = make_predictor(*machine[:3], workload=workload, pricing=machine[3])
            # The predictor has these already.
            shared |= {name: DEFAULTS[name] for name in PRICING_PARAMETERS if name in parameters}
            shared["hardware"] = self._predictors[key]
        return {**parameters, **shared, **self._folding(parameters)}

    def structure(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return parameters like `parameters`, but without a shared predictor."""
        return {**parameters, **self._with_workload(parameters), **self._folding(parameters)}

    def _folding(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameter `fold` with the divergences that earlier runs of the batch met, if runs may fold."""
        fold = parameters.get("fold", AUTO)
        is_known = fold is True or fold == AUTO
        return {"fold": self._divergence_history(was_asked_for=fold is True)} if is_known else {}

    def _with_workload(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a workload that is loaded; nothing where none is given."""
        if parameters.get("workload") is None:
            return {}
        from minitrain.workloads.transformer_workload import find_workload  # noqa: PLC0415  (only where one is given)

        of_transformer = {name: parameters.get(name) for name in OF_TRANSFORMER}
        return {"workload": find_workload(parameters["workload"], **of_transformer), **dict.fromkeys(OF_TRANSFORMER)}

    def _machine(self, chosen: ChosenStrategy, parameters: Mapping[str, Any]) -> tuple[str, int, str, Pricing] | None:
        """Return what the predictor of a run is made from; None where it cannot be shared.

        A predictor remembers prices and nothing of a run, so that one serves all runs on a machine.
        """
        hardware, world_size, network = (parameters.get(name, DEFAULTS[name]) for name in _MACHINE)
        if (
            type(hardware) is not str
            or names_cluster(hardware)
            or type(world_size) is not int
            or type(network) is not str
        ):
            return None
        if parameters.get("placement") is not None:
            return None
        given = {name: parameters[name] for name in PRICING_PARAMETERS if name in parameters}
        return hardware, world_size, network, Pricing(**given, stands_for=framework_of(chosen.function))

    def _divergence_history(self, *, was_asked_for: bool) -> DivergenceHistory:
        """Return what the runs of this batch that may fold share."""
        if was_asked_for not in self._histories:
            from minitrain.folding.early_divergence import DivergenceHistory  # noqa: PLC0415  (only where it is used)

            self._histories[was_asked_for] = DivergenceHistory(was_asked_for=was_asked_for)
        return self._histories[was_asked_for]
