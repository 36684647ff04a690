"""Compressed gradients: what is declared, what a wrong strategy is told, what messages cost, hold and lose."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import MinitrainError, UsageError
from minitrain.proof.compression import Exchange, decoded, e4m3, encoded, orthonormal
from minitrain.tensors import HIDDEN_SIZE
from minitrain.tensors.compressed import CODES, PowerSGD, Quantised, TopK, compressor_of

SIZES: dict[str, Any] = {"world_size": 2, "num_layers": 3, "global_batch_size": 24, "num_steps": 3}
EVERY = ("powersgd:1", "powersgd:2", "topk:0.1", "int8", "fp8:16", "int4:16", "int4:16+feedback")
SOURCE = (
    (
        Path(inspect.getfile(inspect.unwrap(mt.strategies()["powersgd_ddp"])))
        .read_text()
        .replace("from ._batch", "from minitrain.strategies._batch")
        .replace("async def powersgd_ddp", "async def mine")
    )
    + """

class Kept:
    def __init__(self, value):
        self.value = value

    def __await__(self):
        return self.value
        yield
"""
)


def mine(tmp_path: Path, *changes: tuple[str, str]) -> str:
    """Write the shipped strategy with some changes, and return how it is named."""
    text = SOURCE
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = tmp_path / "mine.py"
    path.write_text(text)
    return f"{path}:mine"


def values_of(weight: Any) -> Any:
    """Return the numbers of a weight."""
    return weight._content.values


@pytest.mark.parametrize("how", EVERY)
def test_every_compressor_is_its_papers(how: str, tmp_path: Path) -> None:
    proof = mt.prove(mine(tmp_path), compression=how, **SIZES)
    assert proof.largest < 1e-12
    assert f"3 steps with gradients by {compressor_of(how)} of 2 workers do on one device" in str(proof)


def test_what_loses_nothing_is_what_ddp_trains() -> None:
    """All elements, or factors larger than the matrix, which is sent whole then."""
    sizes: dict[str, Any] = {"world_size": 2, "num_layers": 3, "global_batch_size": 8, "numerics": "numpy"}
    exact = mt.simulate("ddp", **sizes).models[0].final_weights
    for how in ("topk:1", "powersgd:8"):
        found = mt.simulate("powersgd_ddp", num_steps=1, compression=how, **sizes).models[0].final_weights
        for layer, weight in exact.items():
            np.testing.assert_allclose(values_of(found[layer]), values_of(weight), rtol=0, atol=1e-13)


_STATE = 'model.decompress(\n                layer, await sent.pop(layer), opt_states["sent", layer]\n            )'
REFUSED: dict[str, Any] = {
    "no declaration": (
        ('@mt.approximate_steps("num_steps", "compression", alike=True)', '@mt.local_steps("num_steps", 1)'),
        "means exact gradients; declare @mt.approximate_steps",
    ),
    "no such compression": (('steps", "compression"', 'steps", "int5"'), "no compression is called 'int5'"),
    "error feedback dropped": (
        ("        for samples in batches:\n", "        for k in layers:\n            "
         'opt_states["sent", k] = model.load_compression(k, weights[k])\n        for samples in batches:\n'),
        "is compressed with what step 0 has left (its error",
    ),
    "the state before the last step's error": (
        (_STATE, _STATE + '\n            opt_states["sent", layer] = old[layer]'),
        ("    sent: dict", "    old: dict[int, Any] = {}\n    sent: dict"),
        ('        opt_states["sent", layer] = model.load_compression(layer, weights[layer])',
         '        opt_states["sent", layer] = old[layer] = model.load_compression(layer, weights[layer])'),
        "was overwritten",
    ),
    "an exact gradient applied": (
        ("layer, grad_weights.pop(layer), weights[layer], opt_states[layer]", "layer, exact[layer], weights[layer], "
         "opt_states[layer]"),
        ("                if samples is batches[-1]:\n",
         "                if samples is batches[-1]:\n                    exact[layer] = grad_weights[layer]\n"),
        ("    sent: dict", "    exact: dict[int, Any] = {}\n    sent: dict"),
        "the strategy declares gradients by powersgd:2, got an exact",
    ),
    "a message applied": (
        ("layer, grad_weights.pop(layer), weights[layer], opt_states[layer]",
         "layer, kept, weights[layer], opt_states[layer]"),
        ("                    del packed\n", "                    kept = packed\n"),
        "must be a WeightGrad, got CompressedGrad",
    ),
    "messages that are not exchanged": (
        ("sent[layer] = model.launch(meet(packed, layer))", "sent[layer] = Kept(packed)"),
        "messages of all 2 workers must be there, 8 samples",
    ),
    "the second factors left out": (
        ('            packed, opt_states["sent", layer] = model.second', "            sent[layer] = Kept("
         'await sent.pop(layer))\n            return\n            packed, opt_states["sent", layer] = model.second'),
        "the state must have made 2 messages of this step, got one that has made 1",
    ),
    "factors gathered": (
        ("model.all_reduce if packed.how.sums else model.all_gather", "model.all_gather"),
        "messages of powersgd:2 are not that; all_reduce them",
    ),
    "compressed after the sum": (
        ("                    packed, opt_states", "                    grad_weights[layer] = await model.all_reduce("
         "grad_weights[layer], layer)\n                    packed, opt_states"),
        "each of 2 workers compresses the gradient of its own 4 samples, got",
    ),
    "compressed twice": (
        ("            weights[layer], opt_states[layer] = model.update",
         '            model.compress(layer, grad_weights[layer], opt_states["sent", layer])\n'
         "            weights[layer], opt_states[layer] = model.update"),
        "takes an exact gradient of a whole layer, got ApproximateGrad",
    ),
    "a step left out": (("step in model.steps():", "step in range(num_steps - 1):"), "must have seen all 3"),
    "compressed with exact ones added": (
        ("            weights[layer], opt_states[layer] = model.update",
         "            grad_weights[layer] = grad_weights[layer] + grad_weights[layer].__class__.__mro__[1](\n"
         "                layer, 3, frozenset([0]), 24)\n            weights[layer], opt_states[layer] = model.update"),
        "both must be ApproximateGrad",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_compression_is_refused_by_name(case: str, tmp_path: Path) -> None:
    *changes, message = REFUSED[case]
    with pytest.raises(MinitrainError) as told:
        mt.simulate(mine(tmp_path, *changes), strict=True, compression="powersgd:2", **SIZES)
    assert message in str(told.value)


def test_workers_that_change_places_are_the_same_sum(tmp_path: Path) -> None:
    """PowerSGD is linear in the sum of all workers' gradients: who has which samples changes nothing."""
    swap = ("* model.world_size + model.rank)", "* model.world_size + (model.rank + step) % model.world_size)")
    assert mt.prove(mine(tmp_path, swap), compression="powersgd:2", **SIZES).largest < 1e-12
    with pytest.raises(mt.ProofError, match="differs from single-device training"):
        mt.prove(mine(tmp_path, swap), compression="int4:16+feedback", **SIZES)


def test_what_is_declared_decides_what_is_computed() -> None:
    """Feeding errors back, another rank and another share each train something else."""
    for declared, meant in (("int4:16", "int4:16+feedback"), ("powersgd:1", "powersgd:2"), ("topk:0.1", "topk:0.2")):
        runs = [mt.simulate("powersgd_ddp", numerics="numpy", compression=how, **SIZES) for how in (declared, meant)]
        one, other = (values_of(run.models[0].final_weights[0]) for run in runs)
        assert np.abs(one - other).max() > 1e-6


blocks = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40).map(lambda each: np.array(each, float))


@settings(max_examples=25, deadline=None)
@given(blocks, st.sampled_from(list(CODES)))
def test_codes_are_within_half_a_step(values: np.ndarray[Any, Any], codes: Any) -> None:
    how = Quantised(codes, 16)
    found = decoded(how, encoded(how, values), values.size)
    most = np.repeat([np.abs(values[i : i + 16]).max() for i in range(0, values.size, 16)], 16)[: values.size]
    step = most / CODES[codes][1]
    bound = np.maximum(np.abs(values) / 16, step * 2.0**-10) if codes == "fp8" else step / 2
    assert (np.abs(found - values) <= bound * (1 + 1e-12)).all()
    assert Exchange(how, 0, ((values.size,),)).of([values]) == pytest.approx(found, rel=1e-12, abs=0)


@settings(max_examples=25, deadline=None)
@given(blocks, st.floats(0.01, 1))
def test_what_top_k_leaves_out_is_no_larger_than_what_it_sends(values: np.ndarray[Any, Any], share: float) -> None:
    how = TopK(share)
    found = decoded(how, encoded(how, values), values.size)
    places = encoded(how, values)[0]
    assert (found[places] == values[places]).all()
    left = np.delete(np.abs(values), places)
    assert left.size == values.size - how.kept(values.size)
    assert not left.size or left.max() <= np.abs(values[places]).min()


def test_fp8_is_that_of_others() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).normal(size=4000) * np.logspace(-4, 2.6, 4000)
    wanted = np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert (e4m3(values) == wanted).all()


def test_columns_are_orthonormal_and_span_the_same() -> None:
    columns = np.random.default_rng(1).normal(size=(3, 7, 4))
    columns[..., 2] = 2 * columns[..., 0] - columns[..., 1]  # adds nothing
    found = orthonormal(columns)
    assert found.swapaxes(-1, -2) @ found == pytest.approx(np.stack([np.diag([1.0, 1, 0, 1])] * 3), abs=1e-12)
    assert found @ (found.swapaxes(-1, -2) @ columns) == pytest.approx(columns)


def test_repeated_iteration_finds_the_best_factors() -> None:
    """Vogels et al. 2019, section 3: with a warm start, factors of a constant matrix become the best of their rank."""
    matrix = np.random.default_rng(2).normal(size=(12, 9))
    exchange = Exchange(PowerSGD(2), 0, ((12, 9),))
    for _ in range(300):
        exchange.errors = []
        found = exchange.of([matrix.ravel()]).reshape(12, 9)
    left, values, right = np.linalg.svd(matrix)
    assert found == pytest.approx(left[:, :2] * values[:2] @ right[:2], abs=1e-6)


def sent_bytes(how: str, **options: Any) -> list[float]:
    """Return the bytes of each message of a layer in one step."""
    run = mt.simulate("powersgd_ddp", **{**SIZES, "num_steps": 1, "num_layers": 1, **options}, compression=how)
    return [event.size_bytes for event in run.logs[0] if event.typ in ("all_reduce", "all_gather")]


def test_messages_have_the_bytes_of_their_formats() -> None:
    elements, of = HIDDEN_SIZE**2, 2  # half precision
    assert sent_bytes("powersgd:4") == [of * 4 * HIDDEN_SIZE] * 2
    assert sent_bytes("topk:0.01") == [2 * -(-elements // 100) * (of + 4)]  # of both workers, with places
    assert sent_bytes("int8:64") == [2 * (elements + elements / 64 * 4)]
    assert sent_bytes("int4:32") == [2 * (elements / 2 + elements / 32 * 4)]


def test_errors_and_factors_are_held() -> None:
    held = {how: mt.simulate("powersgd_ddp", compression=how, **SIZES).peak_memory for how in ("fp8", "fp8+feedback")}
    assert held["fp8+feedback"] - held["fp8"] == 3 * HIDDEN_SIZE**2  # of three layers


def test_factors_pay_over_a_slow_network() -> None:
    sizes: dict[str, Any] = {"world_size": 16, "num_layers": 8, "hardware": "h100_80g_nvl8"}
    ddp = mt.simulate("ddp_overlap", global_batch_size=16, **sizes)
    run = mt.simulate("powersgd_ddp", global_batch_size=32, **sizes)
    assert run.step_time / 2 < ddp.step_time
    assert run.exposed_comm_fraction < ddp.exposed_comm_fraction


@pytest.mark.parametrize("how", ["powersgd:4", "int8"])
def test_folded_ranks_equal_all_ranks(how: str) -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "compression": how}
    folded, each = (
        mt.simulate("powersgd_ddp", world_size=32, global_batch_size=128, fold=fold, **sizes) for fold in (True, False)
    )
    assert folded.is_folded
    assert folded == each
    assert mt.simulate("powersgd_ddp", world_size=4096, global_batch_size=8192, **sizes).is_folded


@pytest.mark.ci
@pytest.mark.parametrize("workload", ["tiny", pytest.param("tiny-moe", marks=pytest.mark.slow)])
def test_matrices_of_a_transformer(workload: str) -> None:
    sizes: dict[str, Any] = {"world_size": 2, "global_batch_size": 4, "num_steps": 2, "lora": 2}
    assert mt.prove("powersgd_ddp", workload=workload, compression="powersgd:1", **sizes).largest_relative < 1e-9


@pytest.mark.parametrize(
    "word", ["int5", "topk:0", "topk:2", "topk:x", "powersgd:0", "powersgd:1.5", "int8:0", "powersgd:2+feedback", "", 4]
)
def test_words_that_name_no_compression_are_refused(word: Any) -> None:
    with pytest.raises(UsageError, match=r"compression|must be"):
        mt.simulate("powersgd_ddp", compression=word, **SIZES)


def test_a_batch_that_workers_cannot_share_is_refused() -> None:
    with pytest.raises(mt.StrategyError, match="3 steps of 2 workers: global_batch_size must be a multiple of 6"):
        mt.simulate("powersgd_ddp", **{**SIZES, "global_batch_size": 9})


@pytest.mark.parametrize("how", ["int4", "fp8:16", "topk:0.2", "int8:16+feedback"])
@pytest.mark.parametrize("replicas", [4, 2])
def test_outer_gradients_are_sent_as_declared(how: str, replicas: int) -> None:
    """Each rank of a replica compresses its shard of the outer gradient."""
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 2, "global_batch_size": 16, "replicas": replicas}
    proof = mt.prove("diloco", compression=how, **sizes)
    assert proof.largest < 1e-12
    assert f"and outer gradients by {compressor_of(how)}" in str(proof)


def test_outer_gradients_of_four_bits_are_gathered_from_all_replicas() -> None:
    sizes: dict[str, Any] = {"world_size": 16, "num_layers": 2, "global_batch_size": 64, "replicas": 2}
    exact, coded = (mt.simulate("diloco", compression=how, **sizes) for how in ("none", "int4:64"))
    across = [event.size_bytes for event in coded.logs[0] if event.group == (0, 8)]
    assert across == [2 * (HIDDEN_SIZE**2 / 8 / 2 + HIDDEN_SIZE**2 / 8 / 64 * 4)] * 2
    assert coded.step_time < exact.step_time


WRONG_OUTER: dict[str, Any] = {
    "an exact outer gradient": (
        ('compression == "none"', "True"),
        "the strategy declares gradients by int4:64, got an exact WeightGrad",
    ),
    "whole gradients of replicas of several ranks": (
        ("        if within.size > 1:  # the ranks", "        if False:  # the ranks"),
        ("own.shard(within.index, within.size) if within.size > 1 else own", "own"),
        "each rank of a worker compresses one of 2 shards, got",
    ),
    "a local step by messages": (
        ("layer, grad_weights.pop(layer), weights[\"local\", layer]",
         "layer, ApproximateGrad(layer, 2, grad_weights.pop(layer).samples, 16), weights[\"local\", layer]"),
        ("from ._batch", "from minitrain.tensors.compressed import ApproximateGrad\n\nfrom ._batch"),
        "a compressed gradient is no exact one, which 2 local steps of 2 replicas",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_OUTER)
def test_wrong_outer_gradients_are_refused_by_name(case: str, tmp_path: Path) -> None:
    *changes, message = WRONG_OUTER[case]
    folder = Path(inspect.getfile(inspect.unwrap(mt.strategies()["diloco"]))).parent
    text = (folder / "_local.py").read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (tmp_path / "_local.py").write_text(re.sub(r"from \._(batch|tied)", r"from minitrain.strategies._\1", text))
    (tmp_path / "mine.py").write_text((folder / "diloco.py").read_text())
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 2, "global_batch_size": 16, "replicas": 2}
    with pytest.raises(MinitrainError) as told:
        mt.simulate(f"{tmp_path / 'mine.py'}:diloco", options={"compression": "int4"}, **sizes)
    assert message in str(told.value)
