"""Our orders and files against torch.distributed.pipelining itself; skipped where torch 2.13 is not."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minitrain import schedules
from minitrain.errors import UsageError
from minitrain.search.schedules import Schedule

pytestmark = pytest.mark.torch

Generator = Callable[[int, int, int], Schedule]

FAMILIES: list[tuple[Generator, str, tuple[int, ...]]] = [
    (schedules.looped_bfs, "ScheduleLoopedBFS", (1, 2, 3, 4)),
    (schedules.interleaved_1f1b, "ScheduleInterleaved1F1B", (1, 2, 3, 4)),
    (schedules.interleaved_zero_bubble, "ScheduleInterleavedZeroBubble", (1, 2, 3, 4)),
    (schedules.zbv, "ScheduleZBVZeroBubble", (2,)),
    (schedules.dualpipe_v, "ScheduleDualPipeV", (2,)),
]
SINGLE: list[tuple[Generator, str]] = [
    (schedules.gpipe, "ScheduleGPipe"),
    (schedules.one_f_one_b, "Schedule1F1B"),
]
NUM_MICROBATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 21)


@pytest.fixture(scope="module")
def torch() -> Iterator[Any]:
    """Return torch's module of schedules; its own warnings are not ours to fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        version = pytest.importorskip("torch").__version__
        if not version.startswith("2.13."):
            pytest.skip(f"the orders are those of torch 2.13, not {version}")
        yield pytest.importorskip("torch.distributed.pipelining.schedules")


class Stage(SimpleNamespace):
    """Stand in for torch's pipeline stage: note what is run, send and receive nothing."""

    def __init__(self, index: int, num_ranks: int, num_chunks: int) -> None:
        super().__init__(stage_index=index, num_stages=num_ranks * num_chunks, group_size=num_ranks)
        self.group_rank, self.submod = index % num_ranks, None
        self.is_first, self.is_last = index == 0, index == num_ranks * num_chunks - 1
        self.log: list[str] = []

    def forward_one_chunk(self, microbatch: int, *args: Any, **options: Any) -> None:
        self.log.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch: int, **options: Any) -> None:
        self.log.append(f"{self.stage_index}B{microbatch}")

    def get_fwd_recv_ops(self, microbatch: int) -> list[Any]:
        return []

    get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = get_fwd_recv_ops

    def perform_reduce_grad(self, divisor: int) -> None:
        """Do nothing: there is no gradient."""


def make(torch: Any, kind: str, p: int, m: int, v: int) -> Any:
    """Return torch's schedule of these sizes, or None where it refuses them."""
    try:
        return getattr(torch, kind)([Stage(chunk * p, p, v) for chunk in range(v)], m)
    except ValueError:
        return None


def dump(schedule: Any, path: Path, form: str) -> str:
    """Return what torch writes for a schedule."""
    schedule._dump_csv(str(path), format=form)
    return path.read_text()


NUM_RANKS = [2, 3, *(pytest.param(p, marks=pytest.mark.no_cover) for p in range(4, 9))]  # more take the same lines


@pytest.mark.few(1)
@pytest.mark.parametrize(("ours", "theirs", "chunks"), FAMILIES)
@pytest.mark.parametrize("p", NUM_RANKS)
def test_every_order_that_torch_offers_is_torchs(
    torch: Any, ours: Generator, theirs: str, chunks: tuple[int, ...], p: int, tmp_path: Path
) -> None:
    for v in chunks:
        for m in NUM_MICROBATCHES:
            reference = make(torch, theirs, p, m, v)
            if reference is None:
                continue
            text = dump(reference, tmp_path / "torch.csv", "compute_only")
            rows = Schedule.from_csv(text).rows
            assert ours(p, m, v).rows == tuple(tuple(cell for cell in row if cell) for row in rows), (p, m, v)


@pytest.mark.parametrize(("ours", "theirs"), SINGLE)
@pytest.mark.parametrize("p", NUM_RANKS)
def test_a_schedule_of_one_stage_a_rank_is_what_torch_runs(torch: Any, ours: Generator, theirs: str, p: int) -> None:
    for m in range(p, p + 6):
        orders = []
        for rank in range(p):
            stage = Stage(rank, p, 1)
            schedule = getattr(torch, theirs)(stage, m)
            schedule._initialize_stage = lambda *args: None
            schedule._step_microbatches([()] * m, [{}] * m)
            orders.append(stage.log)
        assert [[str(action) for action in order] for order in ours(p, m, 1).orders] == orders, (p, m)


@pytest.mark.parametrize(("ours", "theirs", "chunks"), FAMILIES)
def test_a_file_that_torch_wrote_comes_back_as_it_was(
    torch: Any, ours: Generator, theirs: str, chunks: tuple[int, ...], tmp_path: Path
) -> None:
    reference = make(torch, theirs, 4, 8, chunks[-1])
    text = dump(reference, tmp_path / "torch.csv", "compute_only")
    assert Schedule.from_csv(text).to_csv() == text


@pytest.mark.parametrize(("ours", "theirs", "chunks"), FAMILIES)
def test_a_file_with_communication_gives_the_same_orders(
    torch: Any, ours: Generator, theirs: str, chunks: tuple[int, ...], tmp_path: Path
) -> None:
    reference = make(torch, theirs, 4, 8, chunks[-1])
    text = dump(reference, tmp_path / "torch.csv", "compute_comms")
    assert "SEND_F" in text
    assert Schedule.from_csv(text).orders == ours(4, 8, chunks[-1]).orders


@pytest.mark.parametrize("m", [1, 3, 4, 8, 11])
@pytest.mark.parametrize(
    "generator", [*(family[0] for family in [*FAMILIES, *SINGLE]), schedules.zb_h1, schedules.zb_h2]
)
def test_torch_loads_what_we_write(torch: Any, generator: Generator, m: int, tmp_path: Path) -> None:
    v = 2 if any(generator is family[0] for family in FAMILIES) else 1
    p = 2 if generator is schedules.dualpipe_v else 4
    try:
        schedule = generator(p, m, v)
    except UsageError:
        pytest.skip("no legal size")
    path = tmp_path / "ours.csv"
    path.write_text(schedule.to_csv())
    runtime = torch._PipelineScheduleRuntime([Stage(chunk * p, p, v) for chunk in range(v)], m)
    runtime._load_csv(str(path))
    assert runtime.stage_index_to_group_rank == schedule.placement
    assert dump(runtime, tmp_path / "again.csv", "compute_only") == schedule.to_csv()
