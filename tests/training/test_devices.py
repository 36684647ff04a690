"""What a rank does on a GPU, as far as it goes without one: events, streams and pinned memory are stand-ins here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

import minitrain as mt  # noqa: E402
from minitrain.cli import app  # noqa: E402
from minitrain.run.parameters import split_keywords  # noqa: E402
from minitrain.training import devices, worker  # noqa: E402
from minitrain.training.devices import Gpu, Written, require_gpu_memory, require_gpus  # noqa: E402
from minitrain.training.launcher import meeting_place  # noqa: E402
from minitrain.training.layers import Kept  # noqa: E402
from minitrain.training.program import record  # noqa: E402
from minitrain.training.ranks import Training  # noqa: E402
from minitrain.training.worker import Doing, Times, train_rank  # noqa: E402
from minitrain.workloads.matmul import DenseRows  # noqa: E402

OFFLOADING = "fsdp:offload=activations"
SIZES: dict[str, Any] = {"world_size": 1, "num_layers": 2, "global_batch_size": 4, "workload": DenseRows(256)}


class FakeEvent:
    """An event of a GPU that has worked off all that was queued; its clock starts at another time than the host's."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at: float | None = None

    def record(self) -> None:
        self.at = time.perf_counter() - 1000.0

    def synchronize(self) -> None:
        assert self.at is not None

    def query(self) -> bool:
        return self.at is not None

    def elapsed_time(self, other: Any) -> float:
        assert self.at is not None
        return float(other.at - self.at) * 1e3


class FakeStream:
    """A stream that notes for what it was told to wait."""

    def __init__(self) -> None:
        self.waited: list[Any] = []

    def wait_stream(self, stream: Any) -> None:
        self.waited.append(stream)

    wait_event = wait_stream


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Return a GPU whose memory is the host's."""
    computing, used = FakeStream(), []
    pinned = torch.empty_like

    @contextlib.contextmanager
    def current(stream: Any) -> Iterator[None]:
        used.append(stream)
        yield

    for name, fake in {
        "Event": FakeEvent,
        "Stream": FakeStream,
        "stream": current,
        "current_stream": lambda: computing,
        "set_device": lambda _: None,
        "synchronize": lambda: None,
        "reset_peak_memory_stats": lambda _: None,
        "max_memory_allocated": lambda _: 12345,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "empty_like", lambda values, pin_memory=False, **given: pinned(values, **given))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: used.append(stream), raising=False)
    found = Gpu(torch.device("cpu"))
    found.computing, found.used = computing, used  # type: ignore[attr-defined]  # for the tests
    return found


def steps_of(strategy: Any, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Times, list[float]]:
    """Return when one rank did what in two steps, and their losses."""
    run, options = split_keywords(SIZES)
    given: dict[str, Any] = dict.fromkeys(("data", "optimizer", "numerics", "folder"))
    training = Training(strategy, run, options, 2, "gloo", seed=0, dtype="float32", checkpoint_every=10, **given)
    losses: list[float] = []

    def report(message: tuple[Any, ...]) -> None:
        if message[0] == "step":
            losses.append(message[2])

    if gpu is not None:
        monkeypatch.setattr(worker, "place_of", lambda _: gpu)
    with meeting_place() as meeting:
        times = train_rank(training.task(record(strategy, SIZES), 0, meeting), report, Doing())
    torch.distributed.destroy_process_group()
    return times, losses


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", ["ddp", OFFLOADING])
def test_a_step_on_a_gpu_learns_the_same_and_has_times_of_the_hosts_clock(
    strategy: Any, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wanted = steps_of(strategy, None, monkeypatch)
    began = time.perf_counter()
    times, losses = steps_of(strategy, gpu, monkeypatch)
    ended = time.perf_counter()
    assert losses == wanted
    for spans in times.spans.values():
        assert began < min(spans) <= max(spans) < ended
        assert all(begin <= end for begin, end in zip(spans[::2], spans[1::2], strict=True))
    assert times.most_bytes == 2 * 3 * 256**2 * 4  # what it began with: the stand-in gives out nothing


def test_copies_have_a_stream_of_their_own_for_which_others_wait(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_of(OFFLOADING, gpu, monkeypatch)
    copies = gpu._copies
    assert copies.waited
    assert set(copies.waited) == {gpu.computing}  # a copy begins when what it copies is computed
    assert copies in gpu.used
    assert len(gpu.computing.waited) == len(copies.waited)  # each was awaited
    assert all(isinstance(event, FakeEvent) for event in gpu.computing.waited)


def test_a_state_that_waits_on_the_host_is_handed_on_from_there(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step begins with the copy: the original would take the GPU's memory until the step ends."""
    copies, handed = set(), []
    to_host, hand_on = Gpu._to_host, worker._handed_on

    def noted(of: Any, values: Any) -> Any:
        made = to_host(of, values)
        copies.add(made.data_ptr())
        return made

    def kept(*given: Any) -> Any:
        handed.append(hand_on(*given))
        return handed[-1]

    monkeypatch.setattr(Gpu, "_to_host", noted)
    monkeypatch.setattr(worker, "_handed_on", kept)
    steps_of("fsdp:offload=optimizer", gpu, monkeypatch)
    assert {state.values.data_ptr() for _, state in handed[-1].values()} <= copies


def test_what_torch_saves_on_another_device_stays_there() -> None:
    """A seed that is on the host would be waited for on its way to the GPU."""
    kept = Kept()
    seed = torch.zeros((), device="meta")
    saved = kept._saved.keeping(torch.zeros(4))(seed)
    kept._saved.weight = torch.zeros(4)
    assert kept._saved.found(saved).device == seed.device
    assert kept._saved.tensors == []


def test_nccl_without_gpus_is_refused_before_anything_starts() -> None:
    with pytest.raises(mt.UsageError, match=r"needs NVIDIA GPUs .* finds none here; use backend='gloo'"):
        mt.train("ddp", backend="nccl", steps=1)


def test_more_ranks_than_gpus_and_too_small_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    require_gpus(2)
    with pytest.raises(mt.UsageError, match="a GPU for each rank, and here are 2 for 3"):
        require_gpus(3)
    small = type("Properties", (), {"total_memory": 2**30})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: small)
    require_gpu_memory([2**30])
    with pytest.raises(mt.UsageError, match=r"needs 2\.00 GiB for its tensors, as simulated, and GPU 1 has 1\.00 GiB"):
        require_gpu_memory([2**30, 2**31])


def test_what_is_written_is_all_bytes_of_a_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "written"
    monkeypatch.setattr(devices, "TemporaryFile", lambda: path.open("wb"))
    values = [torch.arange(6.0).view(2, 3).t(), torch.tensor([1.5, -2.0], dtype=torch.bfloat16)]
    noted: list[Any] = []
    with ThreadPoolExecutor(1) as writer:
        work = Written(writer, dict(enumerate(values)), [])
        work.get_future().then(noted.append)
        work.wait()
    assert work.is_completed()
    assert len(noted) == 1
    assert path.read_bytes() == b"".join(each.contiguous().view(torch.uint8).numpy().tobytes() for each in values)


def test_a_calibration_by_steps_takes_the_backend_that_is_asked_for(tmp_path: Path) -> None:
    given = ["hw", "calibrate", "--strategy", "ddp", "--backend", "mpi", "--out", str(tmp_path / "this.json")]
    assert "backend must be gloo or nccl, got 'mpi'" in CliRunner().invoke(app, given).output
