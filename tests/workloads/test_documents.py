"""Packed documents: their draw, what of attention they leave, and that all lives of a strategy follow."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.lib import Model
from minitrain.proof.attention_core import Packing
from minitrain.workloads.documents import order, shard_pairs
from minitrain.workloads.transformer_workload import find_workload
from minitrain.workloads.workload import Context, Pairs, PassMode

DRAWN = mt.Documents(median=7, sigma=0.9)
TINY: dict[str, Any] = {"workload": "tiny", "world_size": 4, "global_batch_size": 8}


LONG = mt.Transformer(
    num_layers=2, hidden_size=1024, num_heads=8, vocab_size=64, seq_len=16384, norm="rmsnorm", positions="none"
)
"""Sequences so long that most of the time is attention's."""


# ---- the draw --------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 40), max_size=6), st.integers(0, 50), st.integers(1, 64), st.integers(0, 5))
def test_documents_fill_each_sample_and_are_drawn_once(
    lengths: list[int], sample: int, seq_len: int, seed: int
) -> None:
    documents = mt.Documents(lengths, median=9, seed=seed)
    found = documents.of_sample(sample, seq_len)
    assert sum(found) == seq_len
    assert min(found) > 0
    assert mt.Documents(lengths, median=9, seed=seed).of_sample(sample, seq_len) == found
    if lengths:  # as the tokens of all documents, one behind the other, are cut
        number = [document for document, length in enumerate(lengths * (seq_len * 52)) for _ in range(length)]
        here = np.array(number[sample * seq_len : (sample + 1) * seq_len])
        assert tuple(np.unique(here, return_counts=True)[1]) == found


def test_drawn_lengths_have_the_median_that_was_asked_for() -> None:
    documents = mt.Documents(median=50, sigma=1.0)
    drawn = [length for sample in range(200) for length in documents.of_sample(sample, 8192)[:-1]]
    assert np.median(drawn) == pytest.approx(50, rel=0.05)
    assert np.std(np.log(drawn)) == pytest.approx(1.0, rel=0.05)


def test_a_file_has_a_length_on_each_line(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("12\n20\n")
    by_file, given_here = (
        mt.simulate("ddp", documents=which, **TINY).step_time
        for which in (str(tmp_path / "lengths.txt"), mt.Documents((12, 20)))
    )
    assert by_file == given_here


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (0, "documents must be a length that all have, lognormal:MEDIAN:SIGMA, a file .* got 0"),
        ("lognormal:5", 'got "lognormal:5"'),
        ("lognormal:0:1", "median must be a number of at least 1, got 0"),
        ("nowhere.txt", "cannot read the documents' lengths in nowhere.txt"),
        (1.5, "got 1.5; use lognormal:1000:1.2"),
    ],
)
def test_other_words_are_refused(documents: Any, message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        mt.simulate("ddp", documents=documents, **TINY)


def test_documents_are_of_transformers(tmp_path: Path) -> None:
    with pytest.raises(mt.UsageError, match=r"documents .* is for transformers"):
        mt.simulate("ddp", documents=8, world_size=2)
    (tmp_path / "lengths.txt").write_text("12\nmany\n")
    with pytest.raises(mt.UsageError, match=r'must have the tokens of a document on each line, .* found "many"'):
        mt.simulate("ddp", documents=str(tmp_path / "lengths.txt"), **TINY)
    with pytest.raises(mt.UsageError, match="lengths must be integers of at least 1, got 0"):
        mt.Documents((3, 0))


# ---- pairs, FLOPs and time -------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["sequence", "document"]),
    st.none() | st.integers(1, 9),
)
def test_pairs_are_counted_as_one_by_one(lengths: list[int], num_shards: int, cut: str, window: int | None) -> None:
    lengths[-1] += -sum(lengths) % num_shards
    size = sum(lengths) // num_shards
    document = [number for number, length in enumerate(lengths) for _ in range(length)]
    tokens = order(tuple(lengths), num_shards, cut)
    assert sorted(tokens) == list(range(sum(lengths)))
    wanted = np.zeros((num_shards, num_shards), dtype=int)
    for (query, q), (key, k) in product(enumerate(tokens), repeat=2):
        seen = document[q] == document[k] and 0 <= q - k < (window or sum(lengths))
        wanted[query // size, key // size] += seen
    assert (shard_pairs(tuple(lengths), num_shards, cut, window) == wanted).all()


def test_a_document_costs_what_a_sample_of_its_length_does() -> None:
    packed: Any = find_workload("llama3-8b", 8192, documents=1024)
    short: Any = find_workload("llama3-8b", 1024)
    assert packed.training_flop(4, 66) == 8 * short.training_flop(4, 66)
    pairs = packed.pairs(1, range(4), None, cut="sequence")
    assert pairs == Pairs(((0, 0, 4 * 8 * 1024 * 1025 // 2),), 1024)
    forward = packed.compute_cost("forward", 4, 1, PassMode(pairs=pairs))
    assert forward.work_flop == short.compute_cost("forward", 32, 1).work_flop
    again = PassMode("full", pairs=pairs)
    assert packed.recomputed_flop(4, 1, again) == short.recomputed_flop(32, 1, PassMode("full"))


@pytest.mark.parametrize("cut", ["sequence", "document"])
def test_ranks_that_share_sequences_do_the_work_of_one(cut: str) -> None:
    workload: Any = find_workload("tiny", documents=DRAWN)
    whole = workload.pairs(1, range(8), None, cut=cut).total
    every = frozenset(range(8))
    shares = [workload.pairs(1, range(8), Context(frozenset([i, 7 - i]), 8, every), cut=cut).total for i in range(4)]
    assert sum(shares) == whole
    assert (max(shares) - min(shares)) / whole < (0.02 if cut == "document" else 1)


def test_time_follows_the_documents_of_each_rank_and_waits_say_so() -> None:
    large: dict[str, Any] = {"workload": LONG, "world_size": 2, "global_batch_size": 2}
    packed, plain = (
        mt.simulate("ddp_overlap", documents=documents, **large)
        for documents in (mt.Documents((16384, *[1024] * 16)), None)
    )
    begins = [next(event.time for event in log if event.typ == "update") for log in packed.logs]
    reasons = [[wait["waits_for"] for wait in run.explain().data()["longest_waits"]] for run in (packed, plain)]
    assert any("rank 0, the last to come" in why and "longer in attention so far" in why for why in reasons[0])
    assert not any("documents" in why for why in reasons[1])
    assert begins[0] <= plain.step_time
    assert packed.trained_model is not None
    assert packed.trained_model.unusual_text == ", 17 documents"


def test_alike_documents_fold_and_others_say_why_not() -> None:
    sizes: dict[str, Any] = {"workload": "tiny", "global_batch_size": 16, "world_size": 16}
    for strategy in ("fsdp", "packed_context_parallel:cp=4"):
        folded, full = (mt.simulate(strategy, documents=8, fold=fold, **sizes) for fold in (True, False))
        assert folded.step_time == full.step_time
    with pytest.raises(mt.StrategyError, match="documents of which each rank has others"):
        mt.simulate("fsdp", documents=DRAWN, fold=True, **sizes)


# ---- proofs ----------------------------------------------------------------------------------------------------------


PROVEN = [
    "fsdp",
    "1f1b",
    "megatron:tp=2,sequence_parallel=True",
    "ring_attention:microbatch_size=2",
    "packed_context_parallel:cut=sequence",
    "packed_context_parallel:cut=document,cp=2,tp=2",
    "packed_context_parallel:cp=2,microbatch_size=1,recompute=full",
    "packed_context_parallel:cp=1,balance=False",
    "packed_context_parallel:cp=2,whole=2,tp=2,microbatch_size=2",
    "packed_context_parallel:whole=4,microbatch_size=1,recompute=full",
]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", PROVEN)
def test_packed_documents_are_trained_as_on_one_device(name: str) -> None:
    assert mt.prove(name, documents=DRAWN, **TINY).largest < 1e-9


GPT = mt.Transformer(
    num_layers=1, hidden_size=32, num_heads=4, vocab_size=40, seq_len=24, attention="unfused", tied_embeddings=False
)
WINDOWED = replace(mt.models()["tiny"], window=5)
EXPERTS = mt.models()["tiny-moe"]
LATENT = replace(
    mt.models()["tiny"],
    latent=mt.LatentAttention(query_rank=None, kv_rank=8, rope_head_dim=4, nope_head_dim=8, value_head_dim=8),
    num_kv_heads=8,
    head_dim=12,
)


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [GPT, WINDOWED, EXPERTS, LATENT], ids=["learned positions", "window", "moe", "mla"])
def test_documents_cut_by_themselves_keep_their_positions(model: mt.Transformer) -> None:
    found = mt.prove("packed_context_parallel:cp=2,cut=document", documents=DRAWN, **{**TINY, "workload": model})
    assert found.largest < 1e-9


def _forgets_documents(self: Any, queries: Any, keys: Any, window: Any) -> Any:
    return (self.positions[:, None, keys] <= self.positions[:, queries, None])[:, None, None]


def _sees_places(self: Any, queries: Any, keys: Any, window: Any) -> Any:
    return ((keys <= queries[:, None]) & (keys >= self.starts[:, queries, None]))[:, None, None]


@pytest.mark.few(1)
@pytest.mark.parametrize("mask", [_forgets_documents, _sees_places])
def test_a_forgotten_mask_is_disproved(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Packing, "visible", mask)
    with pytest.raises(mt.ProofError, match="differs from single-device training"):
        mt.prove("packed_context_parallel:cut=document", documents=DRAWN, **TINY)


def attends(cut: Any, seen: Any) -> Any:
    """Return a strategy that takes an attention forward with some of the keys that were gathered."""

    async def strategy(model: Model) -> Model:
        weights, states, acts, _, _ = model.storage()
        for layer in (0, 1):
            weights[layer], states[layer] = model.load_weights(layer)
        acts[0] = model.get_input_shard(range(model.global_batch_size), [model.rank], model.world_size, cut(model.rank))
        acts[1] = model.forward(0, acts[0], weights[0])
        acts["own"] = model.keys_values(1, acts[1], weights[1])
        acts["all"] = await model.all_gather(acts["own"], 1)
        acts["got"] = model.attend(1, acts[1], acts[seen(model.rank)])
        acts[2] = model.project(1, acts[1], weights[1], acts["got"])
        return model

    return strategy


@pytest.mark.parametrize(
    ("cut", "seen", "message"),
    [
        (lambda _: "sequence", lambda _: "own", "lacks keys of shard 0 of 4; attend them too"),
        (lambda _: "document", lambda _: "own", "lacks keys of shard"),
        (lambda rank: ("sequence", "document")[rank % 2], lambda _: "all", "must agree|do not agree|same"),
        (lambda _: "tokens", lambda _: "all", 'cut must be "sequence" or "document", got "tokens"'),
    ],
    ids=["a border forgotten", "chunks forgotten", "two cuts", "no cut"],
)
def test_a_document_that_crosses_a_border_wrongly_is_refused(cut: Any, seen: Any, message: str) -> None:
    with pytest.raises(mt.LawError, match=message):
        mt.simulate(attends(cut, seen), documents=mt.Documents((12, 20)), check=False, **TINY)


def test_shards_that_no_document_crosses_need_no_others() -> None:
    run = mt.simulate(attends(lambda _: "sequence", lambda _: "own"), documents=8, check=False, **TINY)
    assert run.step_time > 0


# ---- balance ---------------------------------------------------------------------------------------------------------


def test_balance_by_pairs_and_by_document_shortens_the_step() -> None:
    sizes: dict[str, Any] = {"workload": LONG, "world_size": 4, "cp": 2, "global_batch_size": 8, "microbatch_size": 1}
    long: dict[str, Any] = {**sizes, "documents": mt.Documents(median=1000, sigma=1.4)}
    times = {
        (cut, balance): mt.simulate("packed_context_parallel", cut=cut, balance=balance, **long).step_time
        for cut in ("sequence", "document", "best")
        for balance in (False, True)
    }
    assert times["best", True] == times["document", True] == min(times.values())
    assert times["document", True] < times["document", False] < times["sequence", False]
    with pytest.raises(mt.StrategyError, match='cut must be "best", "sequence" or "document"'):
        mt.simulate("packed_context_parallel", cut="token", **sizes)


def test_samples_that_stay_whole_need_no_keys_of_others() -> None:
    sizes: dict[str, Any] = {"workload": LONG, "world_size": 4, "global_batch_size": 8, "microbatch_size": 1}
    name = "packed_context_parallel"
    cut, some, all_whole = (mt.simulate(name, whole=whole, documents=512, **sizes) for whole in (0, 4, 8))
    assert cut.exposed_comm_fraction > some.exposed_comm_fraction > all_whole.exposed_comm_fraction
    assert cut.peak_memory_bytes < some.peak_memory_bytes
    gathered = [sum(event.typ == "all_gather" for log in run.logs for event in log) for run in (cut, some, all_whole)]
    assert gathered[0] == 2 * gathered[1]
    assert not gathered[2]
    with pytest.raises(mt.StrategyError, match=r"whole \(2\) must be a multiple of cp \(4\)"):
        mt.simulate(name, whole=2, **sizes)


def test_a_strategy_may_ask_for_the_documents_and_their_pairs() -> None:
    asked: list[Any] = []

    async def asks(model: Model) -> Model:
        asked.append((model.document_lengths(1), model.count_pairs([0, 1]), model.count_pairs([1], [1], 2)))
        return model

    mt.simulate(asks, workload="tiny", documents=mt.Documents((20, 44)), world_size=1, global_batch_size=2, check=False)
    mt.simulate(asks, workload="tiny", world_size=1, global_batch_size=2, check=False)
    assert asked[0] == ((32,), 20 * 21 // 2 + 12 * 13 // 2 + 32 * 33 // 2, 32 * 33 // 2 - 16 * 17 // 2)
    assert asked[1] == ((32,), 32 * 33, 32 * 33 // 2 - 16 * 17 // 2)
