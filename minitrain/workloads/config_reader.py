"""Reading a model's config key by key: missing, wrong and unknown keys are collected for one error."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from minitrain.workloads.field_faults import is_count, shown

_ABSENT = object()

# Keys of every config that say nothing about shapes: generation, initialisation, bookkeeping, numerics.
# fmt: off
_NO_BEARING = frozenset(
    [
        "architectures", "attn_implementation", "auto_map", "bad_words_ids", "begin_suppress_tokens",
        "bos_token_id", "chunk_size_feed_forward", "classifier_dropout", "cross_attention_hidden_size",
        "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype", "early_stopping",
        "encoder_no_repeat_ngram_size", "eos_token_id", "exponential_decay_length_penalty", "finetuning_task",
        "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "id2label", "init_std",
        "initializer_range", "is_decoder", "keys_to_ignore_at_inference", "label2id", "layer_norm_eps",
        "layer_norm_epsilon", "length_penalty", "max_length", "min_length", "model_type", "name_or_path",
        "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions",
        "output_hidden_states", "output_past", "output_router_logits", "output_scores", "pad_token_id",
        "partial_rotary_factor", "prefix", "pretraining_tp", "problem_type", "quantization_config",
        "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate", "rms_norm_eps",
        "rope_interleave", "rope_interleaved", "rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base",
        "rotary_pct", "router_aux_loss_coef", "router_jitter_noise", "sep_token_id", "suppress_tokens",
        "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k",
        "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p", "unk_token_id", "use_bfloat16",
        "use_cache", "use_parallel_residual",
    ]
)
# fmt: on


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


@final
class ConfigReader:
    """A config; `faults` says what is wrong, by key.

    Args:
        config: the config's keys and values.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._read: set[str] = set()
        self.faults: dict[str, str] = {}

    def _value(self, key: str, default: Any, expected: str, accept: Callable[[Any], bool]) -> Any:
        """Return a key's value or its default; a fault unless it is accepted."""
        self._read.add(key)
        value = self._config.get(key, default)
        if value is _ABSENT:
            self.faults[key] = f"{key} is missing: expected {expected}"
        elif not accept(value):
            self.faults[key] = f"{key} must be {expected}, got {shown(value)}"
        else:
            return value
        return None

    def count(self, key: str, default: Any = _ABSENT, least: int = 1) -> Any:
        """Return a count."""
        return self._value(key, default, f"an integer of at least {least}", lambda value: is_count(value, least))

    def optional_count(self, key: str, default: Any = None) -> Any:
        """Return a count or None."""
        return self._value(key, default, "an integer or null", lambda value: value is None or is_count(value))

    def positive(self, key: str, default: Any = _ABSENT) -> Any:
        """Return a positive number."""
        return self._value(key, default, "a positive number", _is_positive)

    def optional_positive(self, key: str, default: float | None = None) -> Any:
        """Return a positive number or None."""
        return self._value(
            key, default, "a positive number or null", lambda value: value is None or _is_positive(value)
        )

    def object(self, key: str) -> Mapping[str, Any]:
        """Return an object; an empty one where there is none."""
        return self._value(key, None, "an object", lambda value: value is None or isinstance(value, Mapping)) or {}

    def layers(self, key: str, default: Sequence[int] = ()) -> Any:
        """Return a list of layers."""
        expected = "a list of layers from 0"
        return self._value(
            key, default, expected, lambda value: isinstance(value, Sequence) and all(is_count(one, 0) for one in value)
        )

    def flag(self, key: str, *, default: bool) -> Any:
        """Return true or false."""
        return self._value(key, default, "true or false", lambda value: isinstance(value, bool))

    def probability(self, key: str, default: float) -> Any:
        """Return a number in [0, 1)."""
        return self._value(
            key, default, "a number in [0, 1)", lambda value: isinstance(value, int | float) and 0 <= value < 1
        )

    def only(self, key: str, default: Any, *modelled: Any) -> Any:
        """Return a value of which only some can be modelled."""
        listed = " or ".join(json.dumps(value) for value in modelled)
        return self._value(key, default, f"{listed}, since others are not modelled", lambda value: value in modelled)

    def windowed_layers(self, num_layers: int | None, default: Sequence[int]) -> tuple[int, ...]:
        """Return the layers whose attention has a window, by `layer_types`, or the default where that is absent."""
        kinds = {"full_attention", "sliding_attention"}
        found = self._value(
            "layer_types",
            None,
            '"full_attention" or "sliding_attention" for each layer, since others are not modelled',
            lambda value: (
                value is None or (isinstance(value, list) and len(value) == num_layers and {*map(str, value)} <= kinds)
            ),
        )
        if found is None:
            return tuple(default)
        return tuple(layer for layer, kind in enumerate(found) if kind == "sliding_attention")

    def pass_over(self, *keys: str) -> None:
        """Accept keys that have no bearing in this family."""
        self._read.update(keys)

    def refuse_the_rest(self, family: str, ignore: Sequence[str]) -> None:
        """Note a fault for every key that was not read."""
        known = self._read | _NO_BEARING | set(ignore)
        for key in self._config:
            if key not in known and not key.startswith("_"):
                self.faults[key] = f"{key} is not known for {family}: if it changes no shape, pass ignore=({key!r},)"
