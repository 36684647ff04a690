"""The first and the last unit of a transformer: embedding, and head.

Tensor parallelism gives each rank some rows of the vocabulary, which is padded until it divides. The embedding saves
the mask of its dropout; the head saves its norm's input and output and the logits in single precision, which the loss
needs (Korthikanti et al. 2022, section 4.3). No way to recompute changes that. Where embeddings are tied, the head
holds a copy of the table that the embedding counts.
"""

from __future__ import annotations

from minitrain.workloads.architecture import Architecture
from minitrain.workloads.degrees import Cut
from minitrain.workloads.precision import MASK_BYTES, STATISTIC_BYTES
from minitrain.workloads.shapes import Projection, SavedTensor, WeightShape, norm_weights
from minitrain.workloads.unit import Unit


def _vocabulary(model: Architecture) -> Cut:
    return Cut("vocab_size", model.vocab_size, is_padded=True)


def embedding_unit(model: Architecture) -> Unit:
    """Return the embedding: the table of tokens, and that of learned positions, which every rank holds."""
    tables = [WeightShape("tokens", (model.vocab_size, model.hidden_size), _vocabulary(model))]
    if model.positions == "learned":
        tables.append(WeightShape("positions", (model.num_positions, model.hidden_size)))
    mask = SavedTensor("dropout mask", model.hidden_size, MASK_BYTES, is_always_kept=True)
    return Unit(
        kind="embedding",
        layer=None,
        output_size=model.hidden_size,
        weights=tuple(tables),
        projections=(),
        core=None,
        saved=(mask,) if model.dropout else (),
    )


def head_unit(model: Architecture) -> Unit:
    """Return the head: the final norm, the multiplication with the vocabulary, and the loss."""
    hidden_size, element, vocabulary = model.hidden_size, model.precision.activation_bytes, _vocabulary(model)
    table = WeightShape("tokens", (hidden_size, model.vocab_size), vocabulary, 1, is_shared=model.tied_embeddings)
    return Unit(
        kind="head",
        layer=None,
        output_size=0,
        weights=(*norm_weights(hidden_size, has_bias=model.norm_bias), table),
        projections=(Projection("logits", hidden_size, model.vocab_size, vocabulary),),
        core=None,
        saved=(
            SavedTensor("norm input", hidden_size, element, is_always_kept=True),
            SavedTensor("head input", hidden_size, element, is_always_kept=True),
            SavedTensor("logits", model.vocab_size, STATISTIC_BYTES, vocabulary, is_always_kept=True),
        ),
    )
