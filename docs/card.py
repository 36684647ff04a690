"""Write docs/card.md, what each operation is called in torch and in JAX, from their records: `python docs/card.py`."""

from __future__ import annotations

from pathlib import Path

from minitrain.operations.collectives import COLLECTIVES, TRANSFERS
from minitrain.operations.computations import COMPUTATIONS

PAGE = Path(__file__).with_name("card.md")

_HEAD = """# Operations in torch and JAX

What comes nearest to each operation of a rank, where something does. `python docs/card.py` writes this page from the
operations' records.

Collectives of torch work in place, and return at once with `async_op=True`: `work.wait()` is `await`. Those of JAX
stand inside `jax.shard_map`, name an axis of the mesh, and are ordered by the compiler. `model.mesh` is
`torch.distributed.device_mesh`, and `jax.sharding.Mesh`. Sums are sums in all three: who wants means divides the loss.

| `model.` | torch | JAX |
|---|---|---|
"""


def card() -> str:
    """Return the page."""
    records = (*COMPUTATIONS.values(), *COLLECTIVES.values(), *TRANSFERS.values())
    names = {"recv": "receive"}
    rows = [
        f"| `{names.get(one.name, one.name)}` | {_code(one.torch)} | {_code(one.jax)} |"
        for one in records
        if one.torch or one.jax
    ]
    return _HEAD + "\n".join(rows) + "\n"


def _code(call: str) -> str:
    """Return a call as code, words as they are."""
    return f"`{call}`" if call.endswith(")") else call or "-"


if __name__ == "__main__":
    PAGE.write_text(card(), encoding="utf-8")
