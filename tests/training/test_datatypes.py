"""bfloat16 on real processes: weights, activations and messages of 16 bits, with masters and moments in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import minitrain as mt  # noqa: E402
from minitrain.proof.problem import TransformerProblem  # noqa: E402
from minitrain.tensors import placed  # noqa: E402
from minitrain.training.checkpoints import read_checkpoint  # noqa: E402
from minitrain.training.divided import arithmetic_of  # noqa: E402
from minitrain.training.layers import Datatypes  # noqa: E402
from minitrain.training.program import record  # noqa: E402
from minitrain.training.transformer import CrossEntropy, TransformerNet  # noqa: E402
from minitrain.training.wire import room_for  # noqa: E402

STRATEGIES = [
    ("zero3", "tiny"),
    ("megatron:tp=2,sequence_parallel=true", "tiny"),
    ("ring_attention", "tiny"),
    ("moe:ep=2", "tiny-moe"),
]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "workload"), [*STRATEGIES[:2], *(pytest.param(*each, marks=pytest.mark.slow) for each in STRATEGIES[2:])]
)
def test_losses_are_those_of_single_precision_to_the_rounding_of_bfloat16(name: str, workload: str) -> None:
    half, single = (
        mt.train(name, workload=workload, global_batch_size=8, steps=10, dtype=dtype).losses
        for dtype in ("bfloat16", "float32")
    )
    assert half != single
    assert half == pytest.approx(single, rel=2**-7)  # bfloat16 has eight bits
    assert half[-1] < half[0] - 1


def test_dense_layers_learn_in_bfloat16() -> None:
    half, single = (mt.train("zero1", steps=30, dtype=dtype).losses for dtype in ("bfloat16", "float32"))
    assert half == pytest.approx(single, rel=0.03)
    assert half[-1] < 4.5


@pytest.mark.ci
def test_masters_keep_what_weights_round_away(tmp_path: Path) -> None:
    given: dict[str, Any] = {"strategy": "zero1", "dtype": "bfloat16", "optimizer": mt.proof.Adam(rate=1e-6)}
    mt.train(steps=4, checkpoints=tmp_path / "four", checkpoint_every=2, **given)
    before, after = (read_checkpoint(tmp_path / "four" / f"step-0000000{step}") for step in (2, 4))
    for layer, (weight, state) in after.items():
        assert (weight.dtype, state.dtype) == (torch.bfloat16, torch.float32)
        assert state.shape == (3, weight.numel())  # the master and two moments
        assert torch.equal(state[0].bfloat16(), weight)
        moved = before[layer][1][0] != state[0]
        assert moved.float().mean() > 0.9
        assert (before[layer][0] != weight).float().mean() < 0.1
    whole = mt.train(steps=6, **given).losses
    assert list(mt.train(steps=6, checkpoints=tmp_path / "four", **given).losses) == list(whole[4:])


@pytest.mark.parametrize(
    ("name", "workload"), [*STRATEGIES, ("zero1", "tiny"), ("megatron:cp=2,cp_comm_type=all_gather", "tiny")]
)
def test_messages_have_the_bytes_that_the_workload_says(name: str, workload: str) -> None:
    trained = mt.models()[workload]
    program = record(name, {"world_size": 2, "global_batch_size": 8, "workload": trained})
    net = TransformerNet(TransformerProblem(trained), None, Datatypes(torch.bfloat16, torch.float32, torch.float32))
    model: Any = program.run.models[0]
    arithmetic, predicted = arithmetic_of(net, 8), model._runtime_predictor.workload
    seen = set()
    for each in (each for rank in program.ranks for each in rank.communications.values()):
        for symbol in each.brought:
            is_logits = isinstance(symbol, placed.PartialActivation) and symbol.layer == len(net.units)
            if symbol is None or isinstance(symbol, tuple(placed.COPIES)) or is_logits:
                continue
            share = len(symbol.shards) / symbol.num_shards if hasattr(symbol, "shards") else 1
            assert room_for(symbol, arithmetic)[0].nbytes == predicted.message_bytes(symbol) * share
            seen.add(type(symbol))
    assert seen


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8"])
def test_another_precision_is_refused(precision: Any) -> None:
    with pytest.raises(mt.UsageError, match=r"dtype='bfloat16' trains what is of precision bf16.*; give precision="):
        mt.train("ddp", workload=replace(mt.models()["tiny"], precision=precision), dtype="bfloat16", steps=1)


@pytest.mark.parametrize(("dtype", "near"), [("float64", 1e-12), ("float32", 1e-5), ("bfloat16", 1e-2)])
def test_the_loss_and_its_gradient_are_torchs_own(dtype: str, near: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 300, generator=generator).mul(20).to(getattr(torch, dtype))  # some softmax is 0
    logits[0, 0, 1] = -400.0
    targets = torch.randint(0, 300, (3, 5), generator=generator)
    targets[0, 0] = 1
    own, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    made: Any = CrossEntropy.apply(own, targets)  # type: ignore[no-untyped-call]  # torch's
    wide = other.float() if dtype == "bfloat16" else other
    wanted = torch.nn.functional.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="sum")
    for each in (made, wanted):
        (each / 7).backward()
    assert made.item() == pytest.approx(wanted.item(), rel=near)
    torch.testing.assert_close(own.grad, other.grad, rtol=near, atol=near)
