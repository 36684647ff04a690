"""The trained model as a value: a transformer, its parameters, FLOPs and units, which weights train; shipped models.

    import minitrain as mt

    model = mt.Transformer(num_layers=24, hidden_size=2304, num_heads=24, vocab_size=51200, seq_len=2048)
    model.num_parameters, model.flop_per_token(recompute="full")

`architecture` says what its fields are, and `unit` what its units are. Sources: Narayanan et al. (2021), "Efficient
large-scale language model training on GPU clusters using Megatron-LM", for FLOPs and parameters; Korthikanti et al.
(2022), "Reducing activation recomputation in large transformer models", for memory.

**Which weights train** (`with_trained`): all, those of the last layers, or low-rank adapters beside frozen matrices.
What is frozen has no gradient, no optimizer state and no multiplication for its gradient, and what was kept for that
alone is not kept. A unit below all that is trained has no backward.

**Adapters** (Hu et al. 2021, "LoRA: Low-rank adaptation of large language models"). Each adapted matrix, k inputs by n
outputs, has two more: A of k x rank, and B of rank x n. Tensor parallelism cuts them as it cuts the matrix: where that
is cut by columns, B is, and every part has A; where it is cut by rows, A is, and every part has B. What every part has,
each takes all tokens through, so that a part's gradient of it is one share of a sum over the parts. Megatron-Bridge
exchanges the rank's activations in every pass instead, and has no such sum.

**Shipped models** (`models`, from `models.json`) have names and sources. Their `seq_len` is that of most of
pre-training, which may be shorter than the context that a model is used with. Precision is mixed, bf16 or fp16 beside
single precision: 2 + 4 + 12 bytes a parameter. GPTs are trained with dropout and unfused attention, as their papers
did. Two are for proofs and tests, in the smallest sizes that eight ranks can divide: `tiny` has all that Llama 3 has,
`tiny-moe` experts in both layers as DeepSeek-V3 has them, one of them shared.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from minitrain.errors import UsageError, closest, count_fault, refuse, shown
from minitrain.files import StrPath
from minitrain.workloads.architecture import Architecture, listed
from minitrain.workloads.linear_attention import linear_unit
from minitrain.workloads.mixers import LatentAttention
from minitrain.workloads.shapes import ADAPTER, Cut, Lora, Projection, SavedTensor, WeightShape, Work
from minitrain.workloads.unit import Unit, attention_unit, embedding_unit, head_unit, mlp_unit, moe_unit, predicting
from minitrain.workloads.workload import RECOMPUTE, Recompute


def with_trained(model: Architecture, units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Return a model's units with the weights that it trains marked, and adapters beside its matrices."""
    found, trains = list[Unit](), False
    for unit in units:
        marked = _marked(model, unit) if model.lora or model.frozen_layers else unit
        trains = trains or any(weight.is_trained for weight in marked.weights)
        found.append(marked if trains else replace(marked, saved=(), has_backward=False))
    return tuple(found)


def _marked(model: Architecture, unit: Unit) -> Unit:
    """Return a unit with its trained weights marked."""
    first = unit.kind == "embedding" or (unit.layer is not None and unit.layer < model.frozen_layers)
    if first or model.lora is not None:
        adapted = () if first or model.lora is None else tuple(_adapted(unit, model.lora))
        unit = _frozen(unit, adapted)
        return unit if model.lora is None else _with_adapters(model, model.lora, unit, adapted)
    tied = any(weight.is_shared for weight in unit.weights)  # to the embedding, which is frozen
    return _with_frozen_table(unit) if tied else unit


def _adapted(unit: Unit, lora: Lora) -> Iterator[WeightShape]:
    """Yield the matrices of a unit that have adapters."""
    for weight in unit.weights:
        if weight.name in (lora.targets or ()) and len(weight.shape) == 2 and unit.kind in ("attention", "mlp"):
            yield weight


def _frozen(unit: Unit, adapted: tuple[WeightShape, ...]) -> Unit:
    """Return a unit of which nothing is trained, without what is kept for its weights; adapters need their inputs."""
    kept_for = {weight.name for weight in adapted}
    return replace(
        unit,
        weights=tuple(replace(weight, is_trained=False) for weight in unit.weights),
        projections=tuple(replace(projection, is_trained=False) for projection in unit.projections),
        saved=tuple(each for each in unit.saved if not each.needed_for or kept_for.intersection(each.needed_for)),
    )


def _with_frozen_table(head: Unit) -> Unit:
    """Return a head whose norm is trained, and whose table is that of a frozen embedding."""
    return replace(
        head,
        weights=tuple(replace(weight, is_trained=not weight.is_shared) for weight in head.weights),
        projections=tuple(replace(projection, is_trained=False) for projection in head.projections),
        saved=tuple(each for each in head.saved if "tokens" not in each.needed_for),
    )


def _with_adapters(model: Architecture, lora: Lora, unit: Unit, adapted: tuple[WeightShape, ...]) -> Unit:
    """Return a unit with adapters beside some of its matrices."""
    module = "self_attn" if unit.kind == "attention" else "mlp"
    weights, projections, saved = list(unit.weights), list(unit.projections), list(unit.saved)
    for weight in adapted:
        (k, n), cut, by_rows = weight.shape, weight.cut, weight.cut_dim == 0
        copied, a, b = Cut("rank", lora.rank, is_copied=True), f"{weight.name}{ADAPTER}a", f"{weight.name}{ADAPTER}b"
        weights.append(WeightShape(a, (k, lora.rank), cut if by_rows else None, 0))
        weights.append(WeightShape(b, (lora.rank, n), None if by_rows else cut, 1))
        projections.append(Projection(a, k, lora.rank, cut if by_rows else copied, "k" if by_rows else "n"))
        projections.append(Projection(b, lora.rank, n, copied if by_rows else cut, "k" if by_rows else "n"))
        between = SavedTensor(f"{b} input", lora.rank, model.precision.activation_bytes, copied, (module,))
        saved.append(between)
    return replace(
        unit, weights=tuple(weights), projections=tuple(projections), saved=tuple(saved), adapter_scale=lora.scale
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer(Architecture):
    """A transformer that predicts the next token; its fields are those of `Architecture`.

    Example:
        >>> gpt2 = Transformer(num_layers=12, hidden_size=768, num_heads=12, vocab_size=50257, seq_len=1024)
        >>> gpt2.num_parameters
        124439808
        >>> [unit.name for unit in gpt2.units()][:4]
        ['embedding', 'attention 0', 'mlp 0', 'attention 1']
    """

    @classmethod
    def from_hf(
        cls, config: StrPath | Mapping[str, Any], /, *, ignore: Sequence[str] = (), **changes: Any
    ) -> Transformer:
        """Read a config of Hugging Face's transformers.

        The families are `hugging_face.MODEL_TYPES`, which the error for another names. Without `seq_len`, samples have
        8,192 tokens, or as many as the model takes if these are less.

        Args:
            config: the path of a config.json or of the folder that holds it, or the config itself as a mapping.
            ignore: keys that the caller knows to have no bearing on shapes, beside those that minitrain knows.
            changes: fields to set instead of what the config says, such as `seq_len`, `precision` or `attention`.

        Raises:
            UsageError: the file cannot be read, or the config says what cannot be modelled; all keys at once.
        """
        from minitrain.workloads.hugging_face import fields_of  # noqa: PLC0415 - only where a config is read

        return cls(**{**listed(fields_of(config, ignore)), **changes})

    def units(self) -> tuple[Unit, ...]:
        """Return what the engine calls layers: embedding, attention 0, mlp 0 (or moe 0), ..., head."""
        return _units(self)

    @property
    def num_parameters(self) -> int:
        """Return the parameters, those of all experts included; tied embeddings count once."""
        return sum(unit.num_parameters for unit in self.units())

    @property
    def num_trained_parameters(self) -> int:
        """Return the parameters that have a gradient."""
        weights = (weight for unit in self.units() for weight in unit.weights)
        return sum(weight.num_parameters for weight in weights if weight.is_trained and not weight.is_shared)

    @property
    def num_active_parameters(self) -> int:
        """Return the parameters that one token uses: all but those of the experts that it is not sent to.

        The embedding's table counts whole, as in the figures that models are published with.
        """
        return sum(unit.num_active_parameters for unit in self.units())

    def parameters_by_kind(self) -> dict[str, int]:
        """Return the parameters of embedding, attention, mlp, moe and head without their norms, and of all norms."""
        found: dict[str, int] = {}
        for unit in self.units():
            found[unit.kind] = found.get(unit.kind, 0) + unit.num_parameters - unit.num_norm_parameters
        found["norms"] = sum(unit.num_norm_parameters for unit in self.units())
        return found

    def flop_per_token(
        self, seq_len: int | None = None, *, recompute: Recompute = "none", causal: bool = False
    ) -> float:
        """Return the floating-point operations of a training step for each of its tokens.

        Counted are the matrix multiplications of forward, twice as many of backward (once as many for weights that are
        not trained, none below all that is), and what backward repeats. For a
        GPT this gives a step's 96 B s L h^2 (1 + s/6h + V/16Lh) with "full", and 72 B s L h^2 (1 + s/6h + V/12Lh) with
        "none", the FLOPs that MFU is about. What flash attention repeats within its backward is not counted.

        Args:
            seq_len: tokens of a sample; the model's own if None.
            recompute: what backward computes again; "full" leaves out embedding and head.
            causal: whether attention counts only pairs that the causal mask leaves, s (s + 1) / 2 of s^2. The
                papers count all pairs (of the window, where there is one).

        Returns:
            FLOPs, an int where they are whole.

        Raises:
            UsageError: `seq_len` is no integer of at least 1, or there is no such `recompute`.

        Source:
            Narayanan et al. (2021), equation 3 and its appendix; experts as those that a token is sent to.
        """
        length = self.seq_len if seq_len is None else seq_len
        fault = count_fault("seq_len", length, 1, "seq_len=2048")
        if fault:
            raise refuse("the sequence", [fault])
        sample = sum(
            unit.training_flop(length, causal=causal) + unit.recomputed_flop(length, recompute, causal=causal)
            for unit in self.units()
        )
        whole, rest = divmod(sample, length)
        return sample / length if rest else whole


@lru_cache(maxsize=64)
def _units(model: Architecture) -> tuple[Unit, ...]:
    """Make the units of a model, once; equal layers share their tables."""
    experts, windows, linear = map(frozenset, (model.moe_layers, model.window_layers, model.linear_layers))
    without_mixer, without_mlp = frozenset(model.without_mixer), frozenset(model.without_mlp)
    alike: dict[tuple[Any, ...], Unit] = {}
    layers: list[Unit] = []
    for layer in range(model.num_layers):
        after = moe_unit if layer in experts else mlp_unit
        mixer, mlp = (_mixer, layer in linear, layer in windows), (after, layer in without_mixer)
        kinds = ([] if layer in without_mixer else [mixer]) + ([] if layer in without_mlp else [mlp])
        for kind in kinds:
            if kind not in alike:
                alike[kind] = kind[0](model, layer)
            layers.append(replace(alike[kind], layer=layer))
    of_last = (predicting(model, layers[-2]), layers[-1]) if model.prediction_layers else ()
    for layer in range(model.num_layers, model.num_layers + model.prediction_layers):
        layers += (replace(unit, layer=layer) for unit in of_last)
    return with_trained(model, (embedding_unit(model), *layers, head_unit(model)))


def _mixer(model: Architecture, layer: int) -> Unit:
    """Return what mixes tokens in a transformer layer."""
    if model.linear is not None and layer in model.linear_layers:
        return linear_unit(model, layer, model.linear)
    return attention_unit(model, layer)


def models() -> dict[str, Transformer]:
    """Return the models that come with minitrain, by name.

    Example:
        >>> models()["llama3-8b"].num_parameters
        8030261248
    """
    return dict(_shipped())


def find_model(model: StrPath | Transformer) -> Transformer:
    """Return a model by its name, from a Hugging Face config, or as it is.

    Args:
        model: a shipped name, the path of a config.json or of its folder, or a `Transformer`.

    Raises:
        UsageError: there is no such model, or the config cannot be read.
    """
    if isinstance(model, Transformer):
        return model
    if isinstance(model, str) and model in _shipped():
        return _shipped()[model]
    if isinstance(model, os.PathLike) or (isinstance(model, str) and (model.endswith(".json") or os.sep in model)):
        return Transformer.from_hf(model)
    hint = f"{closest(model, _shipped())} ".lstrip()
    raise UsageError(
        f"there is no model {shown(model)}; {hint}shipped are {', '.join(_shipped())}; a path to a Hugging Face "
        "config.json or an mt.Transformer will do as well"
    )


@lru_cache(maxsize=1)
def _shipped() -> MappingProxyType[str, Transformer]:
    """Read the models, once: groups of them, with what is usual in each."""
    text = files("minitrain.workloads").joinpath("models.json").read_text("utf-8")
    found: dict[str, Transformer] = {}
    for group in json.loads(text):
        for name, own in group["models"].items():
            given = {"name": name, **group.get("usual", {}), **own}
            latent = given.pop("latent", None)
            found[name] = Transformer(**given, latent=latent and LatentAttention(**latent))
    return MappingProxyType(found)


def summary(model: Transformer) -> dict[str, Any]:
    """Return a model's fields and what follows from them.

    Returns:
        name, source, fields (as `Transformer` takes them), num_parameters, num_active_parameters, parameters_by_kind,
        flop_per_token (of a step, all pairs of attention) and saved_bytes_per_token, the last two by recomputation.
    """
    fields = asdict(model)
    return {
        "name": fields.pop("name"),
        "source": fields.pop("source"),
        "fields": fields,
        "num_parameters": model.num_parameters,
        "num_active_parameters": model.num_active_parameters,
        "parameters_by_kind": model.parameters_by_kind(),
        "flop_per_token": {mode: model.flop_per_token(recompute=mode) for mode in RECOMPUTE},
        "saved_bytes_per_token": {mode: saved_bytes_per_token(model, mode) for mode in RECOMPUTE},
    }


def saved_bytes_per_token(model: Transformer, recompute: Recompute) -> float:
    """Return the bytes that the whole model keeps for backward for each token, on one device."""
    sample = Work(num_samples=1, seq_len=model.seq_len)
    return sum(unit.saved_bytes(sample, recompute) for unit in model.units()) / model.seq_len
