"""What ranks communicate along each axis: whose it is, how much, and how much of it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Model
from minitrain.operations import COMM, RECV, SEND, Event, Stream
from minitrain.run.analysis.breakdown import AxisTotal, axis_finder, mean_by_axis, totals_of_log

MESH = {"pp": 2, "dp": 2, "tp": 2}
GPT = mt.Transformer(num_layers=4, hidden_size=128, num_heads=8, vocab_size=256, seq_len=96)
SBH = 2 * 96 * 128  # bytes of an activation of a sample


def train(strategy: Any = "megatron", **options: Any) -> mt.Run:
    own: dict[str, Any] = {"microbatch_size": 1} if isinstance(strategy, str) else {}
    return mt.simulate(strategy, **{"workload": GPT, "world_size": 8, "global_batch_size": 8, **own, **options})


@pytest.mark.parametrize(
    ("stream", "axis"),
    [
        (Stream(COMM, (2, 3)), "tp"),
        (Stream(COMM, (1, 3)), "dp"),
        (Stream(COMM, (0, 1, 2, 3)), "dp x tp"),
        (Stream(COMM, (3, 7)), "pp"),
        (Stream(COMM), "pp x dp x tp"),
        (Stream(COMM, (3,)), None),
        (Stream(COMM, (0, 3)), "other"),  # not all ranks along both axes
        (Stream(SEND, None, 7), "pp"),
        (Stream(RECV, None, 0), "dp x tp"),
    ],
    ids=str,
)
def test_a_group_belongs_to_the_axes_along_which_its_ranks_differ(stream: Stream, axis: str | None) -> None:
    assert axis_finder(3, 8, [MESH])(stream) == axis


def test_axes_of_one_rank_are_not_named() -> None:
    assert axis_finder(0, 4, [{"pp": 1, "dp": 4, "tp": 1}])(Stream(COMM)) == "dp"


def test_without_a_mesh_collectives_are_the_worlds_and_messages_the_peers() -> None:
    axis_of = axis_finder(0, 4, [])
    assert [axis_of(stream) for stream in (Stream(COMM), Stream(SEND, None, 1))] == ["world", "peers"]


def test_tensor_parallelism_moves_four_activations_a_layer_and_microbatch() -> None:
    run = train(tp=2, pp=2)
    found = run.communication_by_axis
    microbatches, layers_of_a_stage = 4, 2
    statistics = 3 * 4 * 96 * microbatches / 2  # of the loss, on half of the ranks
    ends = microbatches * SBH  # of a stage: the embedding's output, or the gradient of the head's input
    assert found["tp"].size_bytes == microbatches * 4 * layers_of_a_stage * SBH + ends + statistics
    assert found["pp"].size_bytes == microbatches * SBH  # sent by each rank: forward, or backward
    assert found["pp"].num_operations == 2 * microbatches


@pytest.mark.parametrize("options", [{"tp": 2, "pp": 2}, {"tp": 4}, {"pp": 2, "zero": 1}], ids=str)
def test_where_nothing_overlaps_axes_add_up_to_exposed_communication(options: dict[str, Any]) -> None:
    run = train(overlap_messages=False, **options)
    exposed = sum(total.exposed_s for total in run.communication_by_axis.values())
    assert exposed == pytest.approx(run.exposed_comm_fraction * run.step_time)
    assert all(total.exposed_s == pytest.approx(total.seconds) for total in run.communication_by_axis.values())


def test_what_compute_hides_is_not_exposed() -> None:
    run = train("fsdp", replicas=2, workload="llama3-8b", global_batch_size=16)
    dp = run.communication_by_axis["dp"]
    assert dp.exposed_s < dp.seconds / 2
    total = sum(each.exposed_s for each in run.communication_by_axis.values())
    assert total >= run.exposed_comm_fraction * run.step_time * (1 - 1e-9)


def test_two_axes_at_once_are_both_exposed() -> None:
    async def strategy(model: Model) -> Model:
        mesh = model.mesh(a=2, b=2)
        weight, state = model.load_weights(0, model.rank % 2, 2)
        model.weights[0], model.opt_states[0] = weight, state
        works = [model.launch(model.all_gather(weight, 0, group=mesh.group("b")))]
        works.append(model.launch(model.all_gather(weight, 0, group=mesh.group("a"))))
        for work in works:
            await work
        return model

    run = train(strategy, workload=None, world_size=4, num_layers=1, check=False)
    found = run.communication_by_axis
    assert found["a"].exposed_s == found["a"].seconds > 0
    assert found["b"].exposed_s == found["b"].seconds > 0
    assert found["a"].exposed_s + found["b"].exposed_s > run.breakdown.exposed[0]


def test_events_and_flat_logs_say_the_same() -> None:
    run = train("megatron", tp=2, pp=2, num_chunks=2, sequence_parallel=True)
    assert all(total == totals(list(log), rank, run.meshes) for rank, log, total in each_rank(run))


def each_rank(run: mt.Run) -> list[tuple[int, Sequence[Event], Mapping[str, AxisTotal]]]:
    return [(rank, log, totals(log, rank, run.meshes)) for rank, log in enumerate(run.logs)]


def totals(log: Sequence[Event], rank: int, meshes: Any) -> dict[str, AxisTotal]:
    return totals_of_log(log, rank, 8, meshes)


def test_a_mean_does_not_depend_on_how_often_equal_ranks_are_counted() -> None:
    ranks = [{"tp": AxisTotal(3, 0.1, 0.1, 0.3)}, {"dp": AxisTotal(1, 0.7, 0.2, 0.1)}]
    assert mean_by_axis(ranks) == mean_by_axis([rank for rank in ranks for _ in range(7)])
