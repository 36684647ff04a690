"""Contention: compute slows down beside communication, and nothing else changes."""

from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.machine.given_durations import Calibration, Line
from minitrain.machine.platforms import StandsFor
from minitrain.machine.price import Price
from minitrain.operations import Event
from minitrain.run.contention import Retiming, _Lane, _taken
from minitrain.run.parameters import RunParameters

USAGE = 0.15  # of the H100 server's NVLink tier, see its config


@pytest.mark.parametrize(
    "strategy",
    ["ddp", "zero1", "zero2", "zero3", *(f"{name}:overlap_messages=False" for name in ("gpipe", "1f1b", "zb_h1"))],
)
def test_without_overlap_every_time_stays_to_the_last_float(strategy: str) -> None:
    run = mt.simulate(strategy, num_layers=8, global_batch_size=16)
    again = mt.simulate(strategy, num_layers=8, global_batch_size=16, contention=True)
    assert [list(log) for log in again.logs] == [list(log) for log in run.logs]
    assert again.step_time == run.step_time


async def gather_beside_a_forward(model: mt.Model) -> mt.Model:
    """Launch one gather, compute one layer beside it, then await it."""
    weights, _, activations, _, _ = model.storage()
    weights[0], _ = model.load_weights(0)
    shard, _ = model.load_weights(1, model.rank, model.world_size)
    activations[0] = model.get_input_activation([model.rank])
    work = model.launch(model.all_gather(shard, 1))
    activations[1] = model.forward(0, activations[0], weights[0])
    weights[1] = await work
    return model


def durations(*, contention: bool) -> dict[str, float]:
    """Return the duration of each type of event on rank 0, s."""
    run = mt.simulate(
        gather_beside_a_forward,
        world_size=8,
        num_layers=2,
        global_batch_size=8,
        check=False,
        contention=contention,
    )
    return {event.typ: event.duration for event in run.logs[0]}


def test_a_forward_beside_a_longer_gather_runs_at_the_rate_that_is_left() -> None:
    plain, slowed = durations(contention=False), durations(contention=True)
    assert plain["forward"] < plain["all_gather"] * (1 - USAGE)
    assert slowed["forward"] == pytest.approx(plain["forward"] / (1 - USAGE), rel=1e-12)
    assert slowed["all_gather"] == plain["all_gather"]


def test_a_forward_gets_its_full_rate_back_when_the_gather_ends() -> None:
    run = mt.simulate("zero3_prefetch", num_layers=4, global_batch_size=512, contention=True)
    plain = mt.simulate("zero3_prefetch", num_layers=4, global_batch_size=512)
    slow = [event.duration for event in run.logs[0] if event.typ == "forward"]
    fast = [event.duration for event in plain.logs[0] if event.typ == "forward"]
    gather = next(event.duration for event in plain.logs[0] if event.typ == "all_gather")
    assert gather < fast[0]
    # during the gather, gather x (1 - usage) of the work is done; the rest goes at full speed
    assert slow[0] == pytest.approx(fast[0] + gather * USAGE, rel=1e-9)


def test_contention_never_makes_a_run_faster_nor_slower_than_the_rate_left() -> None:
    for strategy in ("ddp_overlap", "zero3_prefetch", "zbv"):
        plain = mt.simulate(strategy, num_layers=16, global_batch_size=32)
        again = mt.simulate(strategy, num_layers=16, global_batch_size=32, contention=True)
        assert plain.step_time <= again.step_time <= plain.step_time / (1 - USAGE) + 1e-12


def on_one_processor(gather_s: float, forward_s: float, share: float, strategy: Any) -> dict[str, list[Event]]:
    """Return a run's events by type, on a machine whose gathers and forwards take one another's rate."""
    lines = {"forward": forward_s, "loss": 0.0, "backward": forward_s, "update": 0.0, "all_gather among 2": gather_s}
    machine = Calibration(
        machine="one processor",
        cores=2,
        ranks=2,
        lines={
            name: Line((seconds, 0.0, 0.0)[: 2 if " " in name else 3], (), (), 0.0, 1)
            for name, seconds in lines.items()
        },
        between_s=0.0,
        usage=0.2,
        computing_usage=share,
        waiting=1.0,
        ratios=(),
        runs=(),
        spread=0.0,
    )
    run = mt.simulate(strategy, world_size=2, num_layers=2, global_batch_size=8, hardware=machine, check=False)
    found: dict[str, list[Event]] = {}
    for event in run.logs[0]:
        found.setdefault(event.typ, []).append(event)
    return found


async def gathers_beside_forwards(model: mt.Model) -> mt.Model:
    """Launch a gather, compute two layers beside it on rank 0 and one on rank 1, then await it."""
    weights, _, activations, _, _ = model.storage()
    weights[0], _ = model.load_weights(0)
    shard, _ = model.load_weights(1, model.rank, model.world_size)
    activations[0] = model.get_input_activation(model.samples_of_rank())
    work = model.launch(model.all_gather(shard, 1))
    for _ in range(2 - model.rank):
        model.forward(0, activations[0], weights[0])
    weights[1] = await work
    return model


@pytest.mark.parametrize(
    ("gather_s", "share", "took"),
    [
        (1.0, 0.5, 2.0),  # forwards end at 2.5 s of the transfer: it is done before
        (3.0, 0.5, 4.25),  # 2.5 s at half its rate, then what is left at the full one
        (3.0, 0.0, 3.0),
        (1e-3, 0.25, 1e-3 / 0.75),
    ],
)
def test_computing_takes_from_a_transfer_where_its_price_says_so(gather_s: float, share: float, took: float) -> None:
    """Two forwards of 1 s at 0.8 of their rate on rank 0, and one on rank 1, which does not matter."""
    (gathered,) = on_one_processor(gather_s, 1.0, share, gathers_beside_forwards)["all_gather"]
    assert gathered.duration == pytest.approx(took, rel=1e-12)


def test_the_runs_own_logs_stay_as_they_were() -> None:
    run = mt.simulate("ddp_overlap", num_layers=4, global_batch_size=8)
    before = [list(log) for log in run.logs]
    Retiming([model.log for model in run.models]).run()
    assert [list(log) for log in run.logs] == before


@pytest.mark.parametrize(
    ("strategy", "sizes"),
    [
        ("megatron:tp=2,pp=2,overlap_parts=True,overlap_replicas=True", {"world_size": 16, "global_batch_size": 16}),
        ("megatron:cp=4,tp=2", {"world_size": 16, "global_batch_size": 4}),  # messages between ranks of one class
    ],
)
def test_one_rank_of_each_class_is_slowed_down_as_all_of_them(strategy: str, sizes: dict[str, int]) -> None:
    given: dict[str, Any] = {**sizes, "workload": "tiny", "hardware": "h100_80g_nvl8", "contention": True}
    folded, full = (mt.simulate(strategy, **given, fold=fold) for fold in (True, False))
    assert len(folded.class_logs) < 16
    assert [list(log) for log in folded.logs] == [list(log) for log in full.logs]
    assert folded.step_time == full.step_time


FSDP: dict[str, Any] = {"workload": "tiny", "world_size": 8, "global_batch_size": 16, "microbatch_size": 1}


@pytest.mark.parametrize("platform", ["compiled-fsdp", "xla", "pytorch-compiled", "eager-h100", "eager-a100"])
def test_fsdp_has_contention_where_no_number_of_its_platform_contains_it(platform: str) -> None:
    run, on, off = (mt.simulate("fsdp", **FSDP, platform=platform, contention=how) for how in ("auto", True, False))
    is_on = not platform.startswith("eager")
    assert run.is_folded
    assert on.step_time > off.step_time
    assert run.step_time == (on if is_on else off).step_time
    assert run.priced_by == (on if is_on else off).priced_by
    assert run.priced_by.endswith(", with contention" if is_on else f"platform {platform}")


@pytest.mark.parametrize(
    ("strategy", "more"),
    [("ddp", {"platform": "compiled-fsdp"}), ("megatron", {"platform": "xla"}), ("fsdp", {"fidelity": "roofline"})],
)
def test_no_other_run_has_contention_that_nobody_asked_for(strategy: str, more: dict[str, Any]) -> None:
    run, off = (mt.simulate(strategy, **FSDP | more, contention=how) for how in ("auto", False))
    assert (run.step_time, run.priced_by) == (off.step_time, off.priced_by)
    assert "contention" not in run.priced_by


@pytest.mark.parametrize("more", [{"steps": 2}, {"log": "summary"}])
def test_what_leaves_contention_out_says_so(more: dict[str, Any]) -> None:
    run = mt.simulate("fsdp", **FSDP, platform="compiled-fsdp", **more)
    assert run.priced_by == "kernels, platform compiled-fsdp, without contention"


def test_links_that_are_shared_tell_ranks_apart() -> None:
    with pytest.raises(UsageError, match="fold=True does not go with contention='exact'"):
        mt.simulate("ddp", world_size=8, fold=True, contention="exact")


def _rate_after(lane: _Lane, transfer: Price, change: int) -> float:
    """Return the rate of computing after a transfer has begun or ended."""
    lane.count(_taken(transfer), change)
    lane.set_rate()
    return lane.rate


def test_passes_over_memory_run_at_the_rate_that_a_transfer_leaves_of_its_bandwidth() -> None:
    gather = Price(4.0, 1.0, None, USAGE, 8, memory_s=1.0)
    found = {}
    for memory_s in (0.0, 0.5, 1.0):
        lane = _Lane(price=Price(1.0, memory_s=memory_s))
        found[memory_s] = _rate_after(lane, gather, 1)
        assert _rate_after(lane, gather, -1) == 1.0
    assert found == pytest.approx({0.0: 0.85, 0.5: 1 / (0.5 / 0.85 + 0.5 / 0.75), 1.0: 0.75})


def test_persistent_kernels_take_twice_as_long_beside_whatever_holds_multiprocessors() -> None:
    """However few are held: the blocks that wait for them start when the others have ended."""
    lane, beside = _Lane(price=Price(1.0, memory_s=0.25, persistent_s=0.5)), Price(4.0, 1.0, None, 0.01, 8)
    assert 1 / _rate_after(lane, beside, 1) == pytest.approx(0.5 * 2 + 0.25 / 0.99 + 0.25)
    assert _rate_after(lane, beside, -1) == 1.0


def test_pytorchs_multiplications_are_persistent_on_hopper_alone() -> None:
    given: dict[str, Any] = {"workload": "tiny", "world_size": 8, "global_batch_size": 8, "platform": "compiled-fsdp"}
    shares = {}
    for hardware in ("a100_80g", "h100_80g_nvl8", "b200_192g_nvl8"):
        predictor: Any = mt.simulate("fsdp", hardware=hardware, **given).models[0].runtime_predictor
        price = predictor.compute("forward", 1, 1)
        shares[hardware] = price.persistent_s / price.seconds
    assert 0 < shares["h100_80g_nvl8"] < 1
    assert shares["a100_80g"] == shares["b200_192g_nvl8"] == 0
    fitted: Any = mt.simulate("fsdp", hardware="h100_80g_nvl8", **given | {"platform": "eager-h100"}).models[0]
    assert fitted.runtime_predictor.compute("forward", 1, 1).persistent_s == 0


def test_prices_of_kernels_know_what_transfers_take_of_memory() -> None:
    """A ring's all_gather of 8 ranks writes and reads seven eighths of its bytes."""
    run = mt.simulate("zero3_prefetch", workload="tiny", world_size=8, global_batch_size=8, hardware="h100_80g_nvl8")
    predictor: Any = run.models[0].runtime_predictor
    price = predictor.collective("all_gather", 8e8, range(8))
    assert price.memory_s == pytest.approx(2 * 7e8 / (predictor.device.rates.GBps * 1e9))
    slowed = mt.simulate(
        "zero3_prefetch", workload="tiny", world_size=8, global_batch_size=8, hardware="h100_80g_nvl8", contention=True
    )
    assert run.step_time < slowed.step_time < run.step_time / (1 - USAGE)


def test_a_message_has_half_of_the_wires_while_a_launched_collective_is_under_way() -> None:
    options: dict[str, Any] = {
        "workload": "llama3-8b",
        "tp": 2,
        "pp": 4,
        "microbatch_size": 1,
        "overlap_messages": True,
        "zero": 1,
    }
    for overlaps in (False, True):
        found = []
        for contention in (False, True):
            run = mt.simulate(
                "megatron",
                world_size=64,
                global_batch_size=64,
                fold=True,
                check=False,
                hardware="h100_80g_nvl8",
                contention=contention,
                overlap_replicas=overlaps,
                **options,
            )
            found.append([event.duration for log in run.class_logs for event in log if event.typ == "send"])
        longest = max(slow / plain for plain, slow in zip(*found, strict=True))
        assert 1.5 < longest <= 2.0 if overlaps else longest == 1.0


def test_a_message_holds_a_multiprocessor_a_channel_of_nccl() -> None:
    for hardware, world_size, share in (("h100_80g_nvl8", 64, 2 / 132), ("a100_80g", 8, 16 / 108)):
        parameters = RunParameters(workload="llama3-8b", world_size=world_size, hardware=hardware, global_batch_size=64)
        predictor: Any = parameters.predictor(StandsFor("megatron"))
        assert predictor.p2p("send", 1e6, 0, world_size // 2).processor_usage == share
