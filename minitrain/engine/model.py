"""One rank's view of a training run: its stores, its operations, its clock and its log.

A strategy sees nothing else. Every operation checks the laws of training first, then logs one event priced by the
rank's predictor, then moves the rank's clock. Computing moves this rank's clock alone; what ranks do together starts
when the last of them is ready.

What only watches (strict accounting, a recording) is an observer, see `minitrain.engine.observers`; what operations do
beside, such as computing in NumPy, is an executor's, see `minitrain.engine.observers`. A class of folded ranks is a
subclass. It adds to operations by overriding some of the following, and nothing else; an override calls `super()` for
what it does not replace. The docstring of a kind of model lists under "Adds" what it overrides and why, which
tests/engine/test_model_kinds.py checks.

| overridden | when it is called |
|---|---|
| `load_weights`, `load_router`, `load_experts`, `get_input_activation`, `get_input_shard` | by the strategy |
| `route`, `launch`, `document_lengths`, `count_pairs` | by the strategy |
| `_samples_of`, `_samples_with_documents` | when samples come in, and when their documents are looked at |
| `_collective`, `_send`, `_receive` | when a communication is submitted, awaited or launched |
| `_join` | when a collective has what it was given, and is to meet those of other ranks |
| `mesh`, `group`, `_member` | when a group of ranks is named |
| `rank`, `log`, `_is_whole_batch` | when the strategy or an operation reads them |

A journal of memory by kind needs no kind of model: it is another store (see `minitrain.engine.stores`). Nor do totals
in the place of events: they are another log (see `minitrain.run.accounting.summary_log`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minitrain.engine import stages
from minitrain.engine.attention import Attention
from minitrain.engine.communication import Communication
from minitrain.engine.compression import Compression
from minitrain.engine.experts import ExpertComputation
from minitrain.engine.final_weights import check_final_weights
from minitrain.engine.kept_for_backward import mode_of
from minitrain.engine.local_steps import LocalComputation, steps_of
from minitrain.engine.shares import Shares
from minitrain.engine.stages import blocks_of, stages_of
from minitrain.engine.strategy_model import StrategyModel
from minitrain.engine.tied import TiedEmbeddings
from minitrain.workloads.workload import Recompute

_OF_THE_ENGINE = frozenset(
    {
        "account",
        "after_collective",
        "after_message",
        "counted",
        "follows_tensors",
        "held_bytes",
        "in_flight",
        "launching",
        "message_bytes",
        "operation_kind",
        "wire_bytes",
    }
)
"""Names that kinds of model override or that the engine uses, and that no strategy needs: `dir` leaves them out."""


class Model(Attention, ExpertComputation, LocalComputation, Compression, TiedEmbeddings, Communication, StrategyModel):
    """One rank of a training run.

    Args:
        rank: this rank, 0 to world_size - 1 (in a world of one, any number).
        dist: the transport that all ranks share; by default a world of its own.
        num_layers: layers of the trained model.
        global_batch_size: samples of one step, over all ranks.
        runtime_predictor: what prices the operations; the specified H100 server by default.
        memory_by_kind: keep a journal of every change of every store (see `Run.memory_journals`).

    Attributes:
        time: the clock of the rank's compute stream, s.
        log: the events so far, a list to read.
        final_weights: weight by layer, as set by `set_final_weight`.
        final_experts: likewise, part of the experts by layer.
        final_locals: likewise, a replica's own weight, where fragments meet in turn.
        weights, opt_states, activations, grad_activations, grad_weights: the five stores.

    Raises:
        UsageError: a parameter is outside its rule.
    """

    @property
    def recompute(self) -> Recompute:
        """What backward computes again of a layer, where its forward does not say: see `forward`.

        Layers that are alike keep their input alone, whatever it is.
        """
        return self._recompute

    @recompute.setter
    def recompute(self, recompute: str) -> None:
        self._recompute = mode_of(recompute).recompute

    @property
    def layers_are_alike(self) -> bool:
        """Whether all layers cost the same and hold tensors of the same sizes."""
        return self._is_uniform

    @property
    def blocks(self) -> tuple[range, ...]:
        """The layers that belong together: attention and MLP of a transformer layer; one layer where all are alike."""
        return blocks_of(self)

    def stages(
        self, num_stages: int, microbatch_size: int = 1, *, layers_per_stage: Sequence[int] | None = None
    ) -> tuple[range, ...]:
        """Return the layers of each stage of a pipeline, so that the costliest stage costs as little as it can.

        Layers that are alike go in equal shares. Where the run has shares of layers (`mt.Shares`), these are taken.

        Args:
            num_stages: how many stages.
            microbatch_size: samples a microbatch; layers are priced with as many.
            layers_per_stage: how many layers each stage has, instead.

        Raises:
            UsageError: the layers cannot be shared so.
        """
        return stages_of(self, num_stages, microbatch_size, layers_per_stage)

    @property
    def shares(self) -> Shares | None:
        """Who takes how much of the step; None where all take the same."""
        return None if self._shares is None else self._shares.shares

    def samples_of_rank(self, num_replicas: int | None = None, index: int | None = None) -> Sequence[int]:
        """Return the samples of this rank: an equal, contiguous part of the batch, or what the run's shares say.

        Args:
            num_replicas: how many share the batch; world_size if None.
            index: which of them this rank belongs to; its rank if None.

        Raises:
            UsageError: the batch does not divide equally, or the shares are of another number of replicas.
        """
        return stages.samples_of_rank(self, num_replicas, index)  # type: ignore[no-any-return]  # of folded ranks, an object like a range

    def microbatches(
        self,
        microbatch_size: int | None = None,
        *,
        num_replicas: int | None = None,
        index: int | None = None,
        in_step: bool = False,
    ) -> Sequence[Sequence[int]]:
        """Return the samples of this rank in microbatches; the last one is smaller where they do not divide.

        Args:
            microbatch_size: the most samples of one; all of them if None. The run's shares may say it for each replica.
            num_replicas: how many share the batch; world_size if None.
            index: which of them this rank belongs to; its rank if None.
            in_step: whether all replicas take the same number of microbatches, as they must where they communicate in
                each. Unequal shares are then cut into as many as the replica with the most would need.

        Raises:
            UsageError: as for `samples_of_rank`, or a share has fewer samples than there are microbatches.
        """
        return stages.microbatches(self, microbatch_size, num_replicas, index, in_step=in_step)

    def steps(self) -> Iterator[int]:
        """Yield the steps of a strategy that takes them in a loop of its own: 0, 1 and so on.

        Raises:
            StrategyError: it declares none; see `minitrain.own_steps`.
        """
        return steps_of(self)

    def __dir__(self) -> list[str]:
        """List what a strategy may use, and what may be read of a finished rank."""
        return [name for name in super().__dir__() if not name.startswith("_") and name not in _OF_THE_ENGINE]

    @staticmethod
    def check(models: Sequence[Model]) -> None:
        """Verify that every layer was trained: see `minitrain.engine.final_weights.check_final_weights`.

        Raises:
            LawError: a final weight is missing, incomplete, of the wrong step, or differs between replicas.
        """
        check_final_weights(models)
