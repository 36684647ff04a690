"""Norm and gated activation as frameworks fuse them: backward computes again what forward need not keep.

Written with torch's own functions, a norm would keep its input and its normalised input, and a gated MLP the activated
gate beside gate and product. Memory is counted as Megatron-Core's and TransformerEngine's kernels keep it: the input of
a norm, and both inputs of a product (Korthikanti et al. 2022, section 4.1, counts so).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from minitrain.training.layers import wide


class RmsNorm(torch.autograd.Function):
    """x / root(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019), in single precision at least."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Return tokens behind the norm."""
        scale = (wide(x).square().mean(-1, keepdim=True) + epsilon).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        normed: torch.Tensor = (wide(x) * scale).to(x.dtype) * weight
        return normed

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the gradients of input and weight."""
        x, weight, scale = ctx.saved_tensors
        normed = wide(x) * scale
        of_weight = (wide(grad) * normed).flatten(0, -2).sum(0).to(weight.dtype)
        of_normed = wide(grad) * weight
        of_x = (of_normed - normed * (of_normed * normed).mean(-1, keepdim=True)) * scale
        return of_x.to(x.dtype), of_weight, None


class SwiGlu(torch.autograd.Function):
    """silu(gate) * up (Shazeer 2020)."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        ctx.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of both."""
        gate, up = ctx.saved_tensors
        share = wide(gate).sigmoid()
        slope = share * (1 + wide(gate) * (1 - share))
        return (grad * up * slope).to(gate.dtype), grad * functional.silu(gate)
