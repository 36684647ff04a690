"""Predictions: steps of few microbatches stand for steps of many, and terms add up."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

import minitrain as mt
from minitrain.evidence import cases
from minitrain.evidence.cases import TERMS, Case, _composed, _predicted, _retimed, _run, _step, case_of, predict
from minitrain.evidence.errors_by_table import TABLES, rows_of, tables_folder
from minitrain.evidence.rows import LackingError, framework_of
from minitrain.run.device_memory import device_memory_of
from tests.evidence.test_rows import USUAL, case
from tests.evidence.test_rows import row as row_of


@pytest.mark.parametrize(
    "changes",
    [
        {"n_micro": "24", "gbs": "192"},
        {"n_micro": "24", "gbs": "192", "vpp": "2", "overlap": "p2p overlap", "mem_gib": "2"},
        {"n_micro": "24", "gbs": "192", "n_layers": "7"},
        {"n_micro": "24", "gbs": "768", "pp": "1", "tp": "1", "dp": "16"},
        {"n_micro": "9", "gbs": "288", "framework": "FSDP", "zero": "3", "pp": "1", "tp": "1", "dp": "16"},
        *(
            {"n_micro": "24", "gbs": "192", "n_layers": "16", "schedule": schedule}
            for schedule in ("GPipe", "ZB-H1", "ZB-H2", "ZB-2p", "ZB-V", "DualPipeV")
        ),
    ],
    ids=str,
)
def test_a_step_of_many_microbatches_takes_what_one_of_few_says(changes: dict[str, str]) -> None:
    found = case(**changes)
    whole = _step(found.bare(), found.layout.num_microbatches, ())
    quick = predict(found)
    assert quick.seconds == pytest.approx(whole.seconds, rel=1e-9)
    assert quick.memory == whole.memory


@pytest.mark.parametrize(
    ("framework", "ring"),
    [
        ("torchtitan (torch.compile)", "gathered"),
        ("torchtitan (eager)", "gathered eager"),
        ("PyTorch FSDP2, torch.compile", "ring"),
        ("NeMo", ""),
    ],
)
def test_ranks_of_a_sequence_pay_for_pytorchs_ring_alone(framework: str, ring: str) -> None:
    given = {"framework": framework, "gpu": "H100-SXM-80GB", "pp": "1", "attention": "flash2", "recompute": "none"}
    found = case(**given, tp="1", dp="8", cp="2", zero="3")
    assert found.platform is not None
    assert found.platform.ring == ring
    without = replace(found, platform=replace(found.platform, ring=""))
    assert (predict(found).seconds > predict(without).seconds) == bool(ring)


def test_deepspeed_is_eager_pytorch_whoever_wrote_the_model() -> None:
    of_others = "DeepSpeed with Hugging Face's models"
    for words, name, platform in (
        ("DeepSpeed", "DeepSpeed", "eager-a100"),
        ("DeepSpeed (Hugging Face)", of_others, "hugging-face"),
    ):
        found = case(framework=words, pp="1", tp="1", dp="16", zero="3")
        assert framework_of(row_of(framework=words)).name == name
        assert found.platform is not None
        assert (found.platform.name, found.platform.copies_units, found.platform.hooked) == (platform, 0, 3)


def test_fused_norms_leave_a_model_of_hugging_faces_without_its_own_kernels() -> None:
    at = {"pp": "1", "tp": "1", "dp": "16", "zero": "3"}
    its_own = case(framework="PyTorch FSDP2, eager (Hugging Face)", **at)
    fused = case(framework="PyTorch FSDP2, eager (Hugging Face), fused norms", **at)
    assert its_own.platform is not None
    assert fused.platform is not None
    assert (its_own.platform.hugging_face, fused.platform.hugging_face) == (True, False)
    assert predict(its_own).seconds > predict(fused).seconds


def test_an_optimizer_by_parameter_waits_for_the_host() -> None:
    at = {"pp": "1", "tp": "8", "dp": "1", "zero": "0", "n_gpus": "8"}
    usual, single = (case(framework=f"PyTorch FSDP2, eager{word}", **at) for word in ("", ", foreach=False"))
    assert not single.unread
    assert predict(single).seconds > predict(usual).seconds


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "vpp": "2",
            "overlap": "p2p overlap, no DP overlap",
            "zero": "1",
            "framework": "Megatron-Core",
            "recompute": "none",
        },
        {"sp": "1", "cp": "2", "dp": "2", "overlap": "no DP overlap", "attention": "flash", "recompute": "selective"},
        {"pp": "1", "tp": "1", "dp": "16", "n_micro": "2", "gbs": "64", "overlap": "no DP overlap"},
    ],
    ids=str,
)
def test_steps_of_pieces_are_those_of_simulations(changes: dict[str, str]) -> None:
    found = case(**changes).bare()
    composed, whole = _composed(found, 4, ()), _predicted(found, _run(found, 4, ()))
    assert composed is not None
    assert composed.seconds == whole.seconds
    assert composed.memory == pytest.approx(whole.memory, rel=1e-12)
    assert composed.terms == pytest.approx(whole.terms, abs=1e-12 * whole.seconds)


@pytest.mark.parametrize("vpp", ["1", "2"])
def test_pieces_are_slowed_down_beside_replicas_as_simulations_are(vpp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden": "4096", "n_heads": "32", "seq_len": "2048", "n_layers": "16", "n_gpus": "128", "n_micro": "8"}
    degrees = {"tp": "8", "pp": "4", "dp": "4", "zero": "1", "sp": "1", "vpp": vpp, "overlap": "DP overlap"}
    found = case(**sizes, **degrees, framework="Megatron-Core", recompute="none").bare()
    composed, alone = _composed(found, 8, ()), _run(found, 8, ()).step_time
    assert composed is not None
    monkeypatch.setattr(cases, "_is_slowed_down", lambda _: True)
    slowed = _run(found, 8, ()).step_time  # by messages too, but with wires of their own
    assert 1.01 * alone < composed.seconds
    assert composed.seconds == pytest.approx(slowed, rel=0.03)


@pytest.mark.parametrize(
    "changes",
    [
        {"zero": "2"},
        {"schedule": "ZB-H1"},
        {"pp": "1", "dp": "8", "overlap": "DP overlap"},
        {"mlp": "swiglu", "ep": "2", "n_experts": "8", "top_k": "2", "moe_ffn": "512", "sp": "1"},
    ],
    ids=str,
)
def test_steps_without_pieces_are_simulated(changes: dict[str, str]) -> None:
    assert _composed(case(**changes).bare(), 4, ()) is None


EXPERTS = {"mlp": "swiglu", "ep": "2", "n_experts": "8", "top_k": "2", "moe_ffn": "512", "sp": "1"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ep": "8", "zero": "1", "overlap": "DP overlap", "recompute": "full"},
        {"ep": "4", "zero": "1", "overlap": "DP overlap", "recompute": "none"},
        {"vpp": "2", "zero": "1", "overlap": "DP overlap, p2p overlap", "framework": "Megatron-Core"},
        {"pp": "4", "n_gpus": "32", "vpp": "2", "overlap": "p2p overlap", "framework": "Megatron-Core"},
        {"pp": "1", "dp": "8"},
        {"pp": "1", "dp": "8", "zero": "1", "overlap": "DP overlap"},
    ],
    ids=str,
)
def test_steps_from_shorter_ones_are_those_of_simulations(changes: dict[str, str]) -> None:
    found = case(**{**EXPERTS, **changes}).bare()
    for number in (4, 8):
        retimed = _retimed(found, number, ())
        assert retimed is not None
        assert _predicted(found, retimed, with_memory=False) == _predicted(found, _run(found, number, ()), False)


@pytest.mark.parametrize("changes", [{"zero": "2"}, {"schedule": "ZB-H1"}], ids=str)
def test_other_steps_are_simulated(changes: dict[str, str]) -> None:
    assert _retimed(case(**{**EXPERTS, **changes}).bare(), 4, ()) is None


@pytest.mark.parametrize(("year", "memory"), [(" (2023)", "megatron local"), ("", "transformer engine")])
def test_megatron_of_2023_has_layers_of_its_own(year: str, memory: str) -> None:
    sizes = {"gpu": "H100-SXM-80GB", "mlp": "swiglu, bias, learned pos emb", "ffn": "2816", "attention": "flash"}
    found = case(**sizes, framework=f"Megatron-LM{year}")
    assert found.platform is not None
    assert (found.platform.memory, found.model.dropout) == (memory, 0.1)


def test_terms_add_up_to_the_step() -> None:
    found = predict(case())
    assert tuple(found.terms) == TERMS
    assert sum(found.terms.values()) == pytest.approx(found.seconds, rel=1e-6)


def test_leaving_a_term_out_makes_a_step_shorter() -> None:
    found = case()
    whole = predict(found).seconds
    for term in ("elementwise", "transfers", "update", "loss"):
        assert predict(found, (term,)).seconds < whole


def test_the_memory_of_the_last_stage_is_that_of_its_device() -> None:
    sizes = {"mem_gib": "2", "pp": "4", "dp": "2", "recompute": "none"}
    fullest, last = (case(**sizes, mem_kind=f"allocated{words}") for words in ("", ", last stage"))
    found = [predict(each).memory["allocated"] for each in (fullest, last)]
    run = _run(last.bare(), 8, ())
    whole = device_memory_of(max(run.class_models, key=lambda model: model._rank))
    assert found == [run.allocated_bytes, pytest.approx(whole.allocated_bytes, rel=1e-12)]
    assert found[0] > found[1]  # the first stage has more microbatches in flight


def test_rows_that_differ_in_microbatches_alone_share_steps() -> None:
    few, many = case(n_micro="8", gbs="64"), case(n_micro="16", gbs="128")
    assert few.bare() == many.bare()
    assert few.bare() != case(hidden="2048").bare()


def test_every_table_of_the_package_has_rows_with_a_source() -> None:
    assert {file.stem for file in tables_folder().glob("*.csv")} == {*TABLES, "n1"}
    for name in TABLES:
        rows = rows_of([name])
        assert rows
        assert all(row.text("source") for row in rows)


@pytest.mark.few(1)
@pytest.mark.parametrize("table", ["c2", "e2", "h1"])
def test_small_tables_are_as_near_as_they_are_said_to_be(table: str) -> None:
    limits = {"c2": 0.02, "e2": 0.04, "h1": 0.01}
    (errors, *_) = mt.validate(table).tables
    assert errors.errors.mean <= limits[table]


def test_own_tables_are_judged_by_the_platform_of_their_framework(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, USUAL)
        writer.writeheader()
        writer.writerows([USUAL, {**USUAL, "row_id": "x-2", "n_layers": ""}])
    done = mt.validate(csv=file)
    assert [row["row_id"] for row in done.rows] == ["x-1"]
    assert done.rows[0]["table"] == "mine"
    assert done.rows[0]["platform"] == "megatron-2021"
    assert done.rows[0]["error"] == pytest.approx(done.rows[0]["predicted_s"] / 1.5 - 1)
    assert [skipped.row_id for skipped in done.skipped] == ["x-2"]
    components = mt.validate(csv=file, platform="components").rows[0]
    assert components["platform"] is None
    assert components["predicted_s"] < done.rows[0]["predicted_s"]


def test_errors_are_told_by_device_framework_and_parallelism() -> None:
    done = mt.validate("b3")
    found = {(errors.table, errors.group): errors.errors.num_runs for errors in done.kinds}
    of = "Megatron-LM of 2020 and 2021"
    expected = {("A100", "dp"): 2, ("A100", "tp"): 6, ("V100", "dp"): 1, ("V100", "tp"): 3}
    assert found == {(f"{device}, {of}", axes): num for (device, axes), num in expected.items()}
    assert done.rows[0]["framework"] == of
    named_alike = done.results[0], replace(done.results[0], about="another model")
    assert replace(done, results=named_alike).answered == {"b3": (2, 2)}


@pytest.mark.ci
def test_processes_change_nothing() -> None:
    assert mt.validate("c2", jobs=2).rows == mt.validate("c2").rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tables": "z9"}, "there is no table 'z9'"),
        ({"tables": "c2", "platform": "mine"}, "platform must be"),
        ({"tables": "c2", "without": ["wave"]}, "no term 'wave'"),
    ],
)
def test_mistakes_are_told(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        mt.validate(**arguments)  # type: ignore[arg-type]  # mistakes


def test_a_case_is_the_same_whatever_was_measured() -> None:
    assert predict(replace(case(), measured_s=9.0)).seconds == predict(case()).seconds


REFUSED = {
    "m4-0001": "5B on 8 A100s without recomputing, 4 % over: what unfused attention keeps may be less than is reckoned",
    "p2-0005": "70B under FSDP, two samples of 8,192 tokens: Megatron Bridge keeps activations on the host there",
    "t1-0001": "32B on 64 TPUs, 1 % over: XLA gathers and sums a matrix at a time, not a whole layer",
    **dict.fromkeys(
        ("t1-0002", "t2-0001", "t2-0002", "t2-0003", "t2-0006", "t2-0009"), "32B to 175B on TPUs: the same"
    ),
    **dict.fromkeys(("t5-0022", "t6-0002", "t7-0006", "t7-0007"), "long sequences, and 671B, on TPUs: the same"),
    **dict.fromkeys(("t5-0016", "t5-0017", "t5-0018", "t6-0014"), "TorchPrime keeps less than Adam's states"),
    **dict.fromkeys(("p3-0005", "p3-0006", "p3-0028", "p1-0003", "p1-0011", "p2-0006"), "as p2-0005"),
    **dict.fromkeys(("m6-0032", "m6-0033", "m7-0003", "m7-0004"), "as p2-0005"),
    "m7-0018": "175B on 256 A100s, which does not say what it computes again",
    **dict.fromkeys(("m6-0023", "m6-0026"), "8B in NVFP4 on B200, four samples of 8,192 tokens, 1 % over"),
    "j3-0173": "340B on 128 H100s, 5 % over",
    "x3-0012": "gpt-oss on 64 H100s, four samples, 25 % over: what its release's recipe computes again is not known",
    **dict.fromkeys(("x4-0018", "x4-0031"), "57B on 64 H100s without stages, 5 % over, as m7-0018"),
    "z2-0024": "21B with the largest vocabulary, 5 % over",
    **dict.fromkeys(("p3-0030", "p3-0043"), "405B under FSDP, likewise"),
    **dict.fromkeys(("t5-0016", "t5-0017", "t5-0018"), "8B on 4 TPUs: TorchPrime keeps less than Adam's states"),
    "t5-0022": "Gemma 3 12B on 256 TPUs: as t1-0001",
    **dict.fromkeys(("t8-0018", "t8-0021"), "a large vocabulary, 0.3 % over, and experts: as t1-0001"),
    **dict.fromkeys(
        [f"t9-{i:04d}" for i in (*range(1, 8), 9, 10, 18)],
        "8B on 8 TPUs, most of whose losses are in chunks, and 8B of 32,768 tokens: as t1-0001",
    ),
    "t10-0019": "8B on 4 TPUs of 32 GiB, 4 % over: as t1-0001",
    "x3-0008": "gpt-oss 120B on 64 H100s under FSDP, 2 % over",
    "v3-23": "30B of experts on 8 B200s, 7 % over: torchtitan held 94 % of the device",
    "x5-0023": "the same with plain all_to_alls, 8 % over",
    "f9-0012": "8B on 4 A100s, 16 samples, 1 % over: as v3-29",
    "v3-29": "7B on 4 A100s, whose head and loss are one operation (Liger): what must fit has all logits",
    "t12-0001": "8B on 8 TPUs without recomputing, 14 % over: as m4-0001",
    **dict.fromkeys(
        ("t13-0012", "t13-0013", "t13-0014"), "8B on 8 TPUs, whose logits XLA keeps in 16 bits alone: as t1-0001"
    ),
    **dict.fromkeys(("u2-0014", "u2-0015", "u2-0016"), "671B on 64 B200s, 6 to 10 % over: as t1-0001"),
}
"""Published runs that ran, and are refused; docs/accuracy.md names them."""


def runs_that_ran(one_in: int = 1, most_ranks: int = 256) -> list[Case]:
    """Return the published runs on few devices, but for torchtitan's, of which one is near its device's limit.

    Args:
        one_in: of so many rows one is read, and those that are refused.
        most_ranks: the most devices of a run.
    """
    cases: list[Case] = []
    rows = rows_of([name for name in TABLES if name not in ("d1", "n1", "n4", "h1")])
    for row in [row for place, row in enumerate(rows) if place % one_in == 0 or row.row_id in REFUSED]:
        try:
            found = case_of(row)
        except (LackingError, mt.UsageError):
            continue
        if found.layout.world_size <= most_ranks:
            cases.append(found)
    return cases


@pytest.mark.parametrize(
    "one_in", [150, pytest.param(34, marks=pytest.mark.ci), pytest.param(6, marks=pytest.mark.slow)]
)
def test_published_runs_that_ran_fit_into_their_devices(one_in: int) -> None:
    cases = runs_that_ran(one_in)
    refused = {case.row_id for case in cases if predict(case).memory["needed"] > case.system.mem1.usable_bytes}
    assert refused == REFUSED.keys()


@pytest.mark.ci
def test_as_many_published_runs_ran_as_can_be_read() -> None:
    assert len(runs_that_ran()) == 1783
