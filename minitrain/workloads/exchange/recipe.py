"""A recipe: what is trained, on how many ranks, and in which layout.

Words of other tools without bearing on shapes, layout and time of a step: data, schedules, logs, checkpoints, names.

Whoever adds one here has looked at what it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.workloads.transformer import Transformer, models


@final
@dataclass(frozen=True, slots=True)
class Recipe:
    """What a tool's arguments say, in the words of `simulate`.

    Args:
        strategy: the strategy that divides the work so: "megatron", "fsdp", "zero2" ...
        options: its options; what the arguments do not say has the strategy's default.
        model: what is trained, with its precision and the length of samples; None where the arguments do not say.
        world_size: ranks; None where the arguments do not say.
        global_batch_size: samples of a step; None where the arguments do not say.
        notes: what was read as something else, and why.
        tool: whose arguments they are.
    """

    strategy: str
    options: Mapping[str, Any]
    model: Transformer | None = None
    world_size: int | None = None
    global_batch_size: int | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    tool: str = field(default="", compare=False)

    def keywords(self, **changes: Any) -> dict[str, Any]:
        """Return the keywords of `simulate`, the strategy among them.

        Args:
            changes: parameters and options to set otherwise, or that the arguments do not say.

        Raises:
            UsageError: neither the arguments nor the changes say what is trained, or on how many ranks.

        Example:
            >>> Recipe("fsdp", {"microbatch_size": 1}, None, 8, 16).keywords(workload="llama3-8b")["global_batch_size"]
            16
        """
        known = {
            "workload": self.model,
            "world_size": self.world_size,
            "global_batch_size": self.global_batch_size,
        }
        given = {name: value for name, value in known.items() if value is not None}
        found = {"strategy": self.strategy, **given, **self.options, **changes}
        for name in known:
            if found.get(name) is None:
                remedy = _REMEDIES[name]
                raise UsageError(f"the arguments of {self.tool or 'a tool'} do not say the {name}; {remedy}", name=name)
        return found


def same_model(model: Transformer, other: Transformer) -> bool:
    """Return whether two models are the same but for names, sources, precision and the length of samples."""
    kept = ("name", "source", "seq_len", "num_positions", "max_seq_len", "precision")
    of_other = {name: getattr(other, name) for name in kept}
    fits = model.positions != "learned" or model.num_positions == other.num_positions
    return fits and replace(model, **of_other) == other


def called_as_shipped(model: Transformer) -> Transformer:
    """Return a model under the name of the shipped one that it is, or as it is."""
    found = next((other for other in models().values() if same_model(model, other)), model)
    return replace(model, name=found.name, source=found.source)


_REMEDIES = {
    "workload": 'give --model, or workload="llama3-8b" in Python',
    "world_size": "give --world-size, or world_size=64 in Python",
    "global_batch_size": "give --batch, or global_batch_size=256 in Python",
}


# fmt: off
OF_LAUNCHERS = frozenset({
    "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--rdzv-endpoint",
    "--rdzv-backend", "--rdzv-id", "--max-restarts", "--standalone", "--role", "--tee", "--log-dir", "--redirects",
    "--local-ranks-filter", "--rdzv-conf", "--nodes", "--ntasks-per-node", "--gpus-per-node", "--container-image",
    "--container-mounts", "--job-name", "--mpi", "--export",
})
"""Of torchrun and Slurm."""

OF_MEGATRON_LM = frozenset({
    # optimizer and schedule
    "--lr", "--min-lr", "--lr-decay-style", "--lr-decay-iters", "--lr-decay-samples", "--lr-warmup-iters",
    "--lr-warmup-fraction", "--lr-warmup-samples", "--lr-warmup-init", "--weight-decay", "--weight-decay-incr-style",
    "--start-weight-decay", "--end-weight-decay", "--clip-grad", "--adam-beta1", "--adam-beta2", "--adam-eps",
    "--train-iters", "--train-samples", "--exit-interval", "--exit-duration-in-mins", "--exit-signal-handler",
    "--rampup-batch-size", "--init-method-std", "--seed", "--override-opt-param-scheduler", "--loss-scale",
    "--initial-loss-scale", "--min-loss-scale", "--loss-scale-window", "--hysteresis", "--optimizer",
    "--use-checkpoint-opt-param-scheduler", "--lr-wsd-decay-style", "--lr-wsd-decay-iters", "--decoupled-lr",
    # data
    "--data-path", "--train-data-path", "--valid-data-path", "--test-data-path", "--data-args-path",
    "--per-split-data-args-path", "--data-cache-path", "--split", "--tokenizer-model",
    "--vocab-file", "--merge-file", "--num-workers", "--reset-position-ids", "--reset-attention-mask",
    "--eod-mask-loss", "--mock-data", "--no-create-attention-mask-in-dataloader", "--num-dataset-builder-threads",
    "--no-mmap-bin-files", "--dataloader-type", "--tiktoken-pattern", "--tiktoken-num-special-tokens",
    "--data-sharding",
    # evaluation, logs, checkpoints
    "--eval-iters", "--eval-interval", "--log-interval", "--log-throughput", "--log-progress", "--log-params-norm",
    "--log-num-zeros-in-grad", "--log-timers-to-tensorboard", "--log-memory-to-tensorboard",
    "--log-validation-ppl-to-tensorboard", "--log-world-size-to-tensorboard", "--log-loss-scale-to-tensorboard",
    "--log-learning-rate-to-tensorboard", "--log-batch-size-to-tensorboard", "--no-log-loss-scale-to-tensorboard",
    "--tensorboard-dir", "--tensorboard-log-interval", "--tensorboard-queue-size", "--wandb-project",
    "--wandb-exp-name", "--wandb-save-dir", "--wandb-entity", "--timing-log-level", "--timing-log-option",
    "--save", "--load", "--save-interval", "--no-save-optim", "--no-save-rng", "--no-load-optim", "--no-load-rng",
    "--finetune", "--ckpt-format", "--dist-ckpt-format", "--async-save", "--use-dist-ckpt", "--auto-detect-ckpt-format",
    "--ckpt-fully-parallel-save", "--ckpt-fully-parallel-load", "--ckpt-assume-constant-structure",
    "--dist-ckpt-strictness", "--exit-on-missing-checkpoint", "--use-checkpoint-args", "--no-initialization",
    "--profile", "--profile-step-start", "--profile-step-end", "--profile-ranks", "--use-pytorch-profiler",
    "--log-straggler", "--one-logger-project", "--one-logger-run-name", "--enable-one-logger", "--no-one-logger",
    "--pretrained-checkpoint", "--non-persistent-save-interval", "--check-for-nan-in-loss-and-grad",
    "--no-check-for-nan-in-loss-and-grad", "--check-weight-hash-across-dp-replicas-interval",
    # how processes start and what they are built of; kernels that the prices of Megatron's platform have
    "--distributed-backend", "--distributed-timeout-minutes", "--local-rank", "--lazy-mpu-init", "--use-mcore-models",
    "--use-legacy-models", "--transformer-impl", "--spec", "--attention-softmax-in-fp32",
    "--no-async-tensor-model-parallel-allreduce", "--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion",
    "--no-bias-gelu-fusion", "--no-bias-swiglu-fusion", "--no-bias-dropout-fusion", "--no-rope-fusion",
    "--no-persist-layer-norm", "--apply-layernorm-1p", "--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl",
    "--use-rotary-position-embeddings", "--no-position-embedding", "--rotary-interleaved", "--manual-gc",
    "--manual-gc-interval", "--no-align-grad-reduce", "--no-align-param-gather", "--empty-unused-memory-level",
    "--accumulate-allreduce-grads-in-fp32", "--ddp-bucket-size", "--ddp-num-buckets", "--ddp-average-in-collective",
    "--calculate-per-token-loss", "--deterministic-mode", "--apply-query-key-layer-scaling", "--nccl-ub",
    "--disable-scaled-init-method", "--tp-comm-overlap-cfg", "--tp-comm-bootstrap-backend", "--use-tp-pp-dp-mapping",
    "--init-model-with-meta-device", "--inference-max-seq-length", "--no-weight-decay-cond-type",
    # numerics of 8-bit training; the format alone has bearing
    "--fp8-amax-history-len", "--fp8-amax-compute-algo", "--fp8-margin", "--fp8-recipe", "--fp8-interval",
    "--first-last-layers-bf16", "--num-layers-at-start-in-bf16", "--num-layers-at-end-in-bf16",
    # how a router chooses and is balanced; every expert is taken to get the mean
    "--moe-router-load-balancing-type", "--moe-aux-loss-coeff", "--moe-z-loss-coeff",
    "--moe-router-dtype", "--moe-router-pre-softmax", "--moe-router-num-groups", "--moe-router-group-topk",
    "--moe-router-topk-scaling-factor", "--moe-router-bias-update-rate", "--moe-router-force-load-balancing",
    "--moe-permute-fusion", "--moe-router-fusion", "--moe-per-layer-logging", "--moe-input-jitter-eps",
    "--moe-use-legacy-grouped-gemm",
    # multi-head latent attention: how long contexts are reached
    "--rotary-scaling-factor", "--mscale", "--mscale-all-dim", "--beta-fast", "--beta-slow",
})
"""Of Megatron-LM's `arguments.py`."""

SECTIONS_OF_BRIDGE = frozenset({
    "optimizer", "optimizer_config_override_provider", "scheduler", "logger", "checkpoint", "rng", "tokenizer", "dist",
    "profiling", "rerun_state_machine", "straggler", "ft", "nvrx_straggler", "inprocess_restart", "peft", "_target_",
    "tensor_inspect", "validation",
})
"""Of Megatron Bridge's `ConfigContainer`."""

SECTIONS_OF_TORCHTITAN = frozenset({
    "job", "profiling", "metrics", "optimizer", "lr_scheduler", "checkpoint", "comm", "validation", "debug",
    "fault_tolerance", "memory_estimation", "experimental",
})
"""Of torchtitan's `job_config.py`."""

OF_TORCHTITAN = frozenset({
    "model.tokenizer_path", "model.hf_assets_path", "model.print_after_conversion", "training.dataset",
    "training.dataset_path", "training.max_norm", "training.steps", "training.gc_freq", "training.gc_debug",
    "training.seed", "training.deterministic", "training.debug_moe_force_load_balance", "compile.components",
    "compile.enable", "compile.backend", "training.compile", "parallelism.disable_loss_parallel",
    "parallelism.enable_compiled_autograd", "parallelism.context_parallel_rotate_method",
    "activation_checkpoint.early_stop", "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
    "training.warmup_steps",
})
"""Keys of the sections that have a bearing."""

OF_DEEPSPEED = frozenset({
    "optimizer", "scheduler", "gradient_clipping", "steps_per_print", "wall_clock_breakdown", "dump_state",
    "prescale_gradients", "gradient_predivide_factor", "tensorboard", "wandb", "csv_monitor", "comms_logger",
    "flops_profiler", "checkpoint", "data_types", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    "communication_data_type", "memory_breakdown", "aio", "autotuning", "elasticity",
})
OF_ZERO = frozenset({
    "allgather_partitions", "allgather_bucket_size", "reduce_scatter", "reduce_bucket_size", "contiguous_gradients",
    "round_robin_gradients", "sub_group_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    "stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save", "elastic_checkpoint", "ignore_unused_parameters",
    "zero_hpz_partition_size", "overlap_comm", "memory_efficient_linear", "load_from_fp32_weights",
})
"""Of DeepSpeed's configuration, and of its `zero_optimization`: sizes of buckets are not modelled."""
# fmt: on
