"""What `validate` predicts for a published row is what `simulate` says of the same framework, by its name."""

from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import MinitrainError
from minitrain.evidence.cases import case_of, predict
from minitrain.evidence.errors_by_table import rows_of
from minitrain.machine.platforms import frameworks
from minitrain.run.device_memory import DeviceMemory


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("row_id", "platform"),
    [
        ("j3-0144", "NeMo"),
        ("p2-0005", "Megatron Bridge"),
        ("m5-0002", None),
        ("v1-01", "megatron"),
        ("z1-0065", "Megatron-LM of zero-bubble pipelines"),
        ("b3-0006", "Megatron-LM of 2020 and 2021"),
        ("l1-1178", "Megatron-DeepSpeed"),
        ("j1-0001", "nanotron"),
        ("m2-0069", "InternEvo"),
        ("a1-0145", "MosaicML Composer"),
        ("f1-0008", "PyTorch FSDP"),
        ("f2-0003", None),
        ("d1-0014", "torchtitan:fused_loss=False,memory=fsdp2 eager loss"),
        ("v1-17", "torchtitan without torch.compile"),
        ("f8-0012", "DeepSpeed with Hugging Face's models"),
        ("t1-0003", "JAX:one_hot_embedding=True"),
    ],
)
def test_a_published_row_is_predicted_as_a_run_of_its_framework_is(row_id: str, platform: str | None) -> None:
    row = next(row for row in rows_of([row_id.partition("-")[0]]) if row.row_id == row_id)
    case = case_of(row)
    predicted = predict(case)
    given: dict[str, Any] = {"world_size": case.layout.world_size, "hardware": case.system, "workload": case.model}
    given |= {"global_batch_size": case.layout.global_batch_size, "microbatch_size": case.layout.microbatch_size}
    # computing beside what replicas exchange is slowed down where a row's pipeline has one stage
    beside = case.strategy == "megatron" and case.layout.pp == 1 and bool(case.options["overlap_replicas"])
    run = mt.simulate(
        case.strategy, platform=platform, contention=beside or "auto", check=False, **given, **case.options
    )
    assert run.step_time == pytest.approx(predicted.seconds, rel=1e-9)
    memory: DeviceMemory | None = run.device_memory
    assert memory is not None
    # of what is reserved, a row's device has no more than it has memory for
    assert (memory.allocated_bytes, memory.needed_bytes) == (predicted.memory["allocated"], predicted.memory["needed"])


def test_each_framework_of_tables_is_a_platform_that_simulate_takes() -> None:
    for name in frameworks():
        run = mt.simulate("megatron", workload="tiny", world_size=1, global_batch_size=1, platform=name)
        assert "platform" in run.priced_by
    with pytest.raises(MinitrainError, match="platform must be a framework"):
        mt.simulate("megatron", workload="tiny", world_size=1, global_batch_size=1, platform="Megatron-Cor")


def test_what_a_framework_does_depends_on_the_layout() -> None:
    def accesses(**options: Any) -> float:
        run = mt.simulate("megatron", workload="tiny", global_batch_size=8, world_size=4, **options)
        return float(run.models[0]._runtime_predictor.style.gradient_accesses)  # type: ignore[attr-defined]  # priced by kernels

    assert (accesses(), accesses(zero=1), accesses(zero=2), accesses(tp=4), accesses(pp=4)) == (4, 4, 0, 2, 2)
    assert accesses(platform="NeMo") == 1
