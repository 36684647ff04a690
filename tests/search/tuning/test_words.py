"""A layout in other tools' words has their names, and what they cannot say is refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.run.strategy_loading import choose_strategy, options_of
from minitrain.search.tuning.findings import Choice, of_calculon
from minitrain.search.tuning.problem import Candidate, TuningProblem, axes_of, candidates
from minitrain.search.tuning.search import Figures, row_of
from minitrain.workloads.exchange.recipe import same_model
from tests.project.mutated_files import EXECUTION
from tests.search.tuning.models import SMALL

_MEGATRON = {
    "tp": 2, "pp": 2, "num_chunks": 2, "microbatch_size": 1, "zero": 1, "recompute": "selective",
    "sequence_parallel": True, "overlap_replicas": True, "overlap_parts": True, "overlap_messages": False,
    "scatter_gather": False, "batch_messages": True,
}  # fmt: skip
_OF_TORCHTITAN = {
    **_MEGATRON, "zero": 0, "overlap_parts": False, "overlap_messages": True, "batch_messages": False
}  # fmt: skip
_FSDP = {
    "tp": 1, "replicas": 2, "microbatch_size": 2, "reshard_after_forward": True, "recompute": "full",
    "sequence_parallel": False, "offload": "optimizer",
}  # fmt: skip


def choice(strategy: str, options: dict[str, Any], model: mt.Transformer = SMALL) -> Choice:
    problem = TuningProblem(model, "h100_80g_nvl8", 16, 32, {})
    candidate = Candidate(problem, strategy, options)
    return Choice(candidate, row_of(candidate, Figures(1.0, 1.0, 1.0), problem.machine, 2.0))


def test_megatron_lm_gets_its_options() -> None:
    words = choice("megatron", _MEGATRON).words("megatron-lm").replace(" \\\n", " ").split()
    for option, value in (
        ("--tensor-model-parallel-size", "2"),
        ("--pipeline-model-parallel-size", "2"),
        ("--num-virtual-stages-per-pipeline-rank", "2"),
        ("--micro-batch-size", "1"),
        ("--global-batch-size", "32"),
        ("--num-layers", "8"),
        ("--normalization", "RMSNorm"),
        ("--vocab-size", "511"),
        ("--recompute-granularity", "selective"),
    ):
        assert words[words.index(option) + 1] == value
    for switch in (
        "--sequence-parallel",
        "--tp-comm-overlap",
        "--use-distributed-optimizer",
        "--overlap-param-gather",
        "--no-overlap-p2p-communication",
    ):
        assert switch in words


def test_stages_that_megatron_lm_cannot_cut_are_said() -> None:
    equal = choice("megatron", _MEGATRON | {"pp": 1, "num_chunks": 1}).words("megatron-lm")
    assert "# the step time is that" not in equal
    unequal = choice("megatron", _MEGATRON | {"pp": 5, "num_chunks": 1}).words("megatron-lm")
    note = unequal.partition("# the step time is that of stages of unequal numbers of layers: ")[2].partition(";")[0]
    counts = [[float(number) for number in run.split(" of ")] for run in note.split(", ")]
    assert (sum(stages for stages, _ in counts), sum(stages * layers for stages, layers in counts)) == (5, 8)


def test_torchtitan_gets_a_file_that_is_toml() -> None:
    llama = mt.models()["llama3-8b"]
    found = tomllib.loads(choice("megatron", _OF_TORCHTITAN, llama).words("torchtitan"))
    assert found["model"] == {"name": "llama3", "flavor": "8B"}
    assert found["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert found["parallelism"]["data_parallel_replicate_degree"] == 4
    assert found["training"]["local_batch_size"] == 8
    sharded = tomllib.loads(choice("fsdp", _FSDP | {"offload": None}, llama).words("torchtitan"))
    assert sharded["parallelism"]["data_parallel_shard_degree"] == 8
    assert sharded["parallelism"]["fsdp_reshard_after_forward"] == "always"
    assert sharded["activation_checkpoint"]["mode"] == "full"


def test_deepspeed_gets_its_configuration_of_shards_alone() -> None:
    found = json.loads(choice("fsdp", _FSDP | {"offload": None}).words("deepspeed"))
    assert found["zero_optimization"]["stage"] == 3
    assert found["zero_optimization"]["mics_shard_size"] == 8
    with pytest.raises(mt.UsageError, match="offload=optimizer, which updates on the device"):
        choice("fsdp", _FSDP).words("deepspeed")
    sizes = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert found["train_batch_size"] == 16 * found[sizes[0]] * found[sizes[1]]
    with pytest.raises(mt.UsageError, match="no words for tp, pp of more than 1; use megatron-lm"):
        choice("megatron", _MEGATRON).words("deepspeed")


def test_fsdp_gets_calls_of_pytorch() -> None:
    words = choice("fsdp", _FSDP).words("fsdp")
    assert "init_device_mesh('cuda', (2, 8), mesh_dim_names=('replicate', 'shard'))" in words
    assert "fully_shard(layer, mesh=mesh[('replicate', 'shard')], reshard_after_forward=True)" in words


def test_calculon_gets_an_execution_and_gives_it_back(tmp_path: Path) -> None:
    text = choice("megatron", _MEGATRON).words("calculon")
    file = tmp_path / "execution.json"
    file.write_text(text)
    given = {name: value for name, value in _MEGATRON.items() if name not in ("overlap_messages", "batch_messages")}
    assert of_calculon(file) == {**given, "world_size": 16, "global_batch_size": 32}
    assert json.loads(text)["data_par"] == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer_offload": True}, "cannot do what an execution of Calculon asks for: optimizer_offload"),
        ({"training": False}, "inference"),
    ],
)
def test_what_megatron_cannot_do_is_refused(changes: dict[str, Any], message: str) -> None:
    execution = json.loads(choice("megatron", _MEGATRON).words("calculon"))
    with pytest.raises(mt.UsageError, match=message):
        of_calculon({**execution, **changes})


def test_files_that_are_no_executions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(mt.UsageError, match="must hold an object"):
        of_calculon(tmp_path / "list.json")
    with pytest.raises(mt.UsageError, match="cannot read"):
        of_calculon(tmp_path / "none.json")
    with pytest.raises(mt.UsageError, match="needs 'num_procs', and this one has none"):
        of_calculon({})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor_par": "2"}, "tensor_par of an execution of Calculon must be an integer of at least 1, got '2'"),
        ({"data_par": 3}, r"num_procs \(8\) .* must be tensor_par \* pipeline_par \* data_par \(2 \* 2 \* 3\)"),
        ({"optimizer_sharding": 1}, "optimizer_sharding of an execution of Calculon must be false or true, got 1"),
        ({"activation_recompute": []}, r'must be "none" or "attn_only" or "full", got \[\]'),
    ],
)
def test_executions_of_odd_values_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        of_calculon({**EXECUTION, **change})


@pytest.mark.parametrize(
    ("tool", "options", "message"),
    [
        ("calculon", _MEGATRON | {"optimizer_offload_fraction": 1}, "it has no optimizer_offload_fraction=1"),
        ("calculon", _MEGATRON | {"schedule": "zb_h1", "cp": 2}, "it has no cp=2 and no schedule=zb_h1"),
        ("calculon", _MEGATRON | {"zero": 3}, "it has no zero=3"),
        ("calculon", _MEGATRON | {"new": 1}, "it has no new=1"),
        ("fsdp", _FSDP | {"recompute": "selective"}, "it has no recompute=selective"),
        ("fsdp", _FSDP | {"overlap_replicas": False}, "it has no overlap_replicas=False"),
    ],
)
def test_an_option_that_a_tool_lacks_is_refused_and_never_left_out(
    tool: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(mt.UsageError, match=message):
        choice("megatron" if tool == "calculon" else "fsdp", options).words(tool)


@pytest.mark.parametrize(
    ("tool", "options"), [("calculon", _MEGATRON | {"cp": 1, "schedule": "1f1b"}), ("fsdp", _FSDP)]
)
def test_an_option_that_changes_nothing_needs_no_words(tool: str, options: dict[str, Any]) -> None:
    assert choice("megatron" if tool == "calculon" else "fsdp", options).words(tool)


@pytest.mark.parametrize(
    ("tool", "strategy", "message"),
    [
        (
            "nemo",
            "megatron",
            "in the words of megatron-lm, megatron-bridge, torchtitan, deepspeed, fsdp, calculon, got 'nemo'",
        ),
        ("calculon", "fsdp", "it has words for megatron"),
        ("fsdp", "megatron", "it has words for fsdp"),
        ("megatron-lm", "fsdp", "has no words for replicas of shards .2.; offload of optimizer"),
    ],
)
def test_what_a_tool_cannot_say_is_refused(tool: str, strategy: str, message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        choice(strategy, _MEGATRON if strategy == "megatron" else _FSDP).words(tool)


WINNERS: list[tuple[str, str, int, int, int | None, dict[str, Any]]] = [
    ("llama3-70b", "h100_80g_nvl8", 64, 128, None, {"tp": 4, "pp": 4, "cp": 2, "num_chunks": 10}),
    ("llama3.1-405b", "h100_80g_nvl8", 8192, 2048, None, {"tp": 8, "pp": 8, "cp": 2, "num_chunks": 8}),
    ("llama3.1-405b", "gb200_nvl72", 512, 256, None, {"tp": 4, "pp": 8, "cp": 2, "num_chunks": 8}),
    ("mixtral-8x7b", "h100_80g_nvl8", 64, 256, 4096, {"tp": 1, "pp": 2, "ep": 8, "num_chunks": 8}),
    ("deepseek-v3", "h100_80g_nvl8", 2048, 15360, None, {"tp": 1, "pp": 16, "ep": 64, "num_chunks": 4}),
]
"""What is found for models that many train, and a layout of DeepSeek-V3."""


@pytest.mark.few(8)
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("tool", ["megatron-lm", "megatron-bridge"])
@pytest.mark.parametrize(("name", "hardware", "ranks", "batch", "seq_len", "layout"), WINNERS)
def test_words_of_large_models_are_read_as_the_same_model_and_layout(
    name: str, hardware: str, ranks: int, batch: int, seq_len: int | None, layout: dict[str, Any], tool: str,
    precision: str,
) -> None:  # fmt: skip
    of = TuningProblem(name, hardware, ranks, batch, {"seq_len": seq_len, "precision": precision}).by("megatron")
    space = {option: [value] for option, value in layout.items()}
    space |= {
        "recompute": ["full"],
        "overlap_replicas": [True],
        "overlap_parts": [layout["tp"] > 1],
        "microbatch_size": [1],
    }
    all_found = candidates("megatron", of.machine, axes_of("megatron", of.machine, space), 1)
    one = [one for one in all_found if one.illegal is None][-1]
    again = mt.read_recipe(Choice(one, row_of(one, None, of.machine, 0.0)).words(tool))
    assert again.model is not None
    assert same_model(again.model, of.machine.model)
    assert (again.model.seq_len, again.model.precision) == (of.machine.workload.seq_len, of.machine.model.precision)
    usual = {option: known.default for option, known in options_of(choose_strategy("megatron").function).items()}
    assert {**usual, **again.options} == {**usual, **one.options}
    assert again.global_batch_size == batch
