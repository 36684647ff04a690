"""`mt.train(compile=True)`: layers by torch.compile give the numbers of layers without it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import minitrain as mt

NEEDS_A_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")


@pytest.mark.ci
@NEEDS_A_COMPILER
@pytest.mark.parametrize(
    "given",
    [
        {"strategy": "zero3", "global_batch_size": 8},
        pytest.param(
            {"strategy": "megatron:tp=2,schedule=zb_h1", "workload": "tiny", "global_batch_size": 4},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["dense", "parts"],
)
def test_compiled_layers_learn_what_others_learn(given: dict[str, Any]) -> None:
    plain, compiled = (mt.train(steps=8, dtype="float64", compile=each, **given).losses for each in (False, True))
    assert compiled != plain  # or nothing was compiled: sums have another order
    assert compiled == pytest.approx(plain, rel=1e-9)


def test_without_a_compiler_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder

    def missing() -> str:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    with pytest.raises(mt.UsageError, match=r"^compile=True \(--compile\) needs a C\+\+ compiler .*; install one"):
        mt.train("ddp", steps=1, compile=True)
