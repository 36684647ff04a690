"""The frameworks that were measured: their defaults, and the platform that stands for each.

A framework is found by words of the row's column `framework`. Its fields come from its documentation or source code,
never from a fit: the dropout it trains with by default, how it hides communication, and whether each of a stage's ranks
sends a part of an activation (Narayanan et al. 2021, section 4.1, "scatter/gather").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import final

from minitrain.validation.rows import Row


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework.

    Args:
        name: what pages call it.
        words: what the column `framework` contains, as a regular expression; case does not matter.
        platforms: the platform by a word of the device ("a100"), as a regular expression; the first that fits is taken.
        dropout: what models with biases are trained with by default.
        attention: "flash" or "unfused", where the row does not say.
        overlap: whether communication between replicas is hidden behind compute: "always", "never", or "one stage"
            where only a model that is not cut into stages does that (PyTorch's DistributedDataParallel).
        gradient_bytes: bytes of an element of a gradient, kept and summed, where the row does not say.
        recompute: what backward computes again where the row does not say; None where that is not known.
        balances: whether stages are cut by the parameters of layers and head, as nanotron does.
        batches_messages: whether a stage sends and receives at once (`batch_isend_irecv` of Megatron-LM's schedules).
        parts_overlap: how the collectives of tensor parallelism are hidden where the row does not say: "" as its
            platform has it, or a way of `minitrain.hardware.platforms.EXPOSED`.
        gradient_accesses: how often a step of replicas reads or writes an element of a rank's whole gradients, beside
            what the optimizer does with its shards. Megatron-LM divides its buffer of gradients by the number of
            replicas before it is summed (two accesses: `allreduce_gradients` of `model/distributed.py` in 2021).
            Megatron-Core 0.8 also takes its norm, to find what is no number, and sets it to zero (four together:
            `Bucket.start_grad_sync` and `zero_grad_buffer` of `core/distributed`).
    """

    name: str
    words: str
    platforms: tuple[tuple[str, str], ...] = ()
    dropout: float = 0.0
    attention: str = "flash"
    overlap: str = "never"
    gradient_bytes: int = 4
    recompute: str | None = "none"
    balances: bool = False
    batches_messages: bool = False
    parts_overlap: str = ""
    gradient_accesses: float = 0.0

    def platform_of(self, row: Row) -> str | None:
        """Return the name of the platform for a row's device; None for prices of components alone."""
        device = row.text("gpu").lower()
        return next((name for pattern, name in self.platforms if re.search(pattern, device)), None)


_OLD_MEGATRON = Framework(
    name="Megatron-LM of 2020 and 2021",
    words=r"megatron-lm (2020|\(sc21\))|megatron-lm.*(2019|2020|2021)",
    platforms=((r".", "megatron-2021"),),
    dropout=0.1,
    attention="unfused",
    overlap="one stage",
    batches_messages=True,
    gradient_accesses=2,
)
_MEGATRON_DEEPSPEED = Framework(
    name="Megatron-DeepSpeed",
    words=r"megatron-deepspeed",
    platforms=((r".", "megatron-2021"),),
    dropout=0.1,
    attention="unfused",
    gradient_bytes=2,
)
_NEMO = Framework(
    name="NeMo",
    words=r"nemo|megatron-bridge",
    platforms=((r"h100|h200|b200", "nemo-h100"),),
    dropout=0.1,
    overlap="always",
    batches_messages=True,
)

FRAMEWORKS = (
    _OLD_MEGATRON,
    replace(
        _MEGATRON_DEEPSPEED,
        name="Megatron-DeepSpeed of BLOOM",
        words=r"megatron-deepspeed.*bloom",
        platforms=((r"a100", "bloom"),),
    ),
    _MEGATRON_DEEPSPEED,
    replace(_NEMO, name="NeMo Megatron of 2023", words=r"nemo megatron 2[23]", platforms=(), attention="unfused"),
    _NEMO,
    Framework(name="JAX", words=r"jax|maxtext|pax", overlap="always", recompute=None),
    replace(
        _NEMO,
        name="Megatron-Core",
        words=r"megatron-core|megatron-lm|megatron",
        parts_overlap="gradients",
        gradient_accesses=4,
    ),
    Framework(
        name="MosaicML Composer",
        words=r"llm-foundry|composer|mosaic",
        platforms=((r"h100|h200|b200", "eager-h100"), (r".", "eager-a100")),
        overlap="always",
    ),
    Framework(name="nanotron", words=r"nanotron", platforms=((r".", "nanotron"),), balances=True),
    Framework(
        name="InternEvo",
        words=r"internevo|internlm",
        platforms=((r".", "internevo"),),
        overlap="always",
        gradient_bytes=2,
    ),
    Framework(
        name="torchtitan without torch.compile",
        words=r"torchtitan.*eager",
        platforms=((r"h100|h200|b200", "eager-h100"), (r".", "eager-a100")),
        overlap="always",
    ),
    Framework(
        name="torchtitan",
        words=r"torchtitan",
        platforms=((r"h100|h200|b200", "torchtitan-h100"), (r".", "eager-a100")),
        overlap="always",
    ),
    Framework(
        name="PyTorch FSDP",
        words=r"fsdp|pytorch|huggingface|transformers|accelerate",
        platforms=((r"h100|h200|b200", "eager-h100"), (r".", "eager-a100")),
        overlap="always",
    ),
    Framework(name="DeepSpeed", words=r"deepspeed|zero", dropout=0.1, overlap="always"),
)
"""The frameworks, the more special ones first."""

UNKNOWN = Framework(name="unknown", words=r"", overlap="always")
"""For a row that names none of them: components alone."""


def framework_of(row: Row) -> Framework:
    """Return the framework that a row names, or `UNKNOWN`."""
    text = row.text("framework").lower()
    return next((each for each in FRAMEWORKS if re.search(each.words, text)), UNKNOWN)
