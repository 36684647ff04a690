"""The shipped models, by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import minitrain as mt
from minitrain.workloads.transformer import find_model, summary

NAMED = ["gpt3-175b", "mistral-7b", "mixtral-8x7b", "qwen2.5-7b", "deepseek-v3", "tiny", "llama3-8b", "llama3.1-405b"]


def test_the_models_are_listed_by_their_own_names() -> None:
    assert [model.name for model in mt.models().values()] == list(mt.models())
    assert set(NAMED) <= set(mt.models())


@pytest.mark.parametrize("model", mt.models().values(), ids=lambda model: model.name)
def test_every_model_says_where_its_figures_come_from(model: mt.Transformer) -> None:
    assert model.source


def test_changing_the_list_changes_nothing() -> None:
    mt.models().clear()
    assert mt.models()


def test_a_model_is_found_by_name_path_or_itself(tmp_path: Path) -> None:
    tiny = mt.models()["tiny"]
    assert find_model("tiny") is find_model(tiny) is tiny
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 10, "n_positions": 4}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    assert find_model(tmp_path) == find_model(str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("name", "meant"), [("lama3-8b", "llama3-8b"), ("GPT2-XL", "gpt2-xl"), ("mixtral", "mixtral-8x7b")]
)
def test_a_name_that_is_nearly_right_brings_the_right_one(name: str, meant: str) -> None:
    with pytest.raises(mt.UsageError, match=f'there is no model "{name}"; did you mean "{meant}"'):
        find_model(name)


def test_a_name_like_no_other_brings_all_of_them() -> None:
    with pytest.raises(mt.UsageError, match=r'there is no model "xyz"; shipped are tiny, .*gpt2, .*, deepseek-v3'):
        find_model("xyz")
    with pytest.raises(mt.UsageError, match="there is no model 3;"):
        find_model(3)  # type: ignore[arg-type]


def test_tiny_can_be_divided_by_eight_ranks_and_has_experts_of_no_kind() -> None:
    tiny = mt.models()["tiny"]
    assert tiny.num_layers == 2
    assert all(size % 4 == 0 for size in (tiny.num_heads, tiny.num_kv_heads, tiny.ffn_hidden_size, tiny.seq_len))


def test_a_summary_is_ready_for_json() -> None:
    for model in mt.models().values():
        facts = json.loads(json.dumps(summary(model), allow_nan=False))
        assert facts["num_parameters"] == model.num_parameters
        fields = {**facts["fields"], "precision": mt.Precision(**facts["fields"]["precision"])}
        if fields["latent"]:
            fields["latent"] = mt.LatentAttention(**fields["latent"])
        assert mt.Transformer(name=model.name, source=model.source, **fields) == model
