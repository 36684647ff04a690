"""Networks to validate predictions on, like ResNet-50, BERT-base and GPT-2 small: plain JAX functions of their weights.

Their layers have the sizes of the originals; weights are constants, since their values do not change how long anything
takes. Left out: batch norm's statistics (it is a scale and a shift, as in inference), dropout, and tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

Shapes = Any
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # He et al. (2016), table 1, 50 layers: width and blocks
_EXPANSION = 4
_NHWC = ("NHWC", "HWIO", "NHWC")


@final
@dataclass(frozen=True, slots=True)
class SampleNetwork:
    """A network to run and to predict.

    Args:
        name: what it is like.
        function: takes weights and an input.
        weights: shapes of the weights.
        inputs: shape of the input.
    """

    name: str
    function: Callable[[Any, Any], Any]
    weights: Shapes
    inputs: tuple[int, ...]


def resnet50(batch: int = 1, size: int = 224) -> SampleNetwork:
    """Return a network like ResNet-50 (He et al. 2016): 4.1e9 multiplications for an image of 224 x 224."""
    weights: dict[str, Any] = {"stem": (7, 7, 3, 64), "blocks": [], "head": (512 * _EXPANSION, 1000)}
    channels = 64
    for width, num_blocks in _STAGES:
        for block in range(num_blocks):
            shapes = {"a": (1, 1, channels, width), "b": (3, 3, width, width), "c": (1, 1, width, width * _EXPANSION)}
            if block == 0:
                shapes["skip"] = (1, 1, channels, width * _EXPANSION)
            weights["blocks"].append(shapes)
            channels = width * _EXPANSION
    return SampleNetwork("resnet50", _resnet, weights, (batch, size, size, 3))


def _resnet(weights: Any, x: Any) -> Any:
    """Compute the network."""
    import jax.numpy as jnp  # noqa: PLC0415 - JAX is heavy
    from jax import lax  # noqa: PLC0415

    x = jnp.maximum(_convolved(x, weights["stem"], 2), 0)
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for place, block in enumerate(weights["blocks"]):
        stride = 2 if "skip" in block and place else 1
        y = jnp.maximum(_convolved(x, block["a"], 1), 0)
        y = jnp.maximum(_convolved(y, block["b"], stride), 0)
        y = _convolved(y, block["c"], 1)
        x = jnp.maximum(y + (_convolved(x, block["skip"], stride) if "skip" in block else x), 0)
    return x.mean((1, 2)) @ weights["head"]


def _convolved(x: Any, kernel: Any, stride: int) -> Any:
    """Return a convolution, scaled and shifted as a frozen batch norm does."""
    from jax import lax  # noqa: PLC0415

    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=_NHWC) * 0.5 + 0.1


def bert_base(batch: int = 1, length: int = 128) -> SampleNetwork:
    """Return a network like BERT-base (Devlin et al. 2019): twelve layers of width 768."""
    return SampleNetwork("bert_base", _transformer(is_causal=False), _layers(30522), (batch, length))


def gpt2_small(batch: int = 1, length: int = 128) -> SampleNetwork:
    """Return a network like GPT-2 small (Radford et al. 2019): twelve layers of width 768, and a vocabulary."""
    return SampleNetwork("gpt2_small", _transformer(is_causal=True), _layers(50257), (batch, length))


def _layers(vocabulary: int, width: int = 768, num_layers: int = 12) -> Shapes:
    layer = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    return {"words": (vocabulary, width), "layers": [dict(layer) for _ in range(num_layers)]}


def _transformer(*, is_causal: bool, num_heads: int = 12) -> Callable[[Any, Any], Any]:
    """Return a transformer of words; a causal one says which word comes next."""
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    def normed(x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    def attention(layer: Any, x: Any) -> Any:
        batch, length, width = x.shape
        parts = (x @ layer["qkv"]).reshape(batch, length, 3, num_heads, width // num_heads)
        query, key, value = (parts[:, :, place] for place in range(3))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(width // num_heads)
        if is_causal:
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), value)
        return mixed.reshape(batch, length, width) @ layer["out"]

    def transformer(weights: Any, words: Any) -> Any:
        x = weights["words"][words.astype(jnp.int32)]
        for layer in weights["layers"]:
            x = x + attention(layer, normed(x))
            x = x + jax.nn.gelu(normed(x) @ layer["up"]) @ layer["down"]
        return normed(x) @ weights["words"].T if is_causal else normed(x)

    return transformer


def all_networks() -> list[SampleNetwork]:
    """Return the three."""
    return [resnet50(), bert_base(), gpt2_small()]
