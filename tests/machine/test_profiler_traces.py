"""Layer times from traces of the PyTorch profiler."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.errors import UsageError
from minitrain.machine.measured_layers import LayerTime
from minitrain.machine.profiler_traces import Marks, TracedLayers

MAIN, AUTOGRAD = 100, 200
MARKS = Marks("layer {layer}", embedding="embedding", head="head")


def layers_from_trace(path: Path, marks: Marks | None, **given: Any) -> list[LayerTime]:
    """Return the rows of a trace's layers."""
    return TracedLayers.read(path, marks).rows(**given)


class Writer:
    """Writes a trace as Kineto does: what threads do, what they launch, and the kernels, times in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = {MAIN: 1000.0, AUTOGRAD: 1000.0}
        self.device = 2000.0
        self.correlation = 0

    def event(self, cat: str, name: str, tid: int, ts: float, dur: float, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def kernel(self, tid: int, dur: float, name: str = "gemm", *, beside: bool = False) -> None:
        """Launch a kernel; one that runs beside the one before does not move the device on."""
        self.correlation += 1
        self.event("cuda_runtime", "cudaLaunchKernel", tid, self.now[tid], 1, correlation=self.correlation)
        self.now[tid] += 2
        start = self.device - dur if beside else self.device
        self.event("kernel", name, 7, start, dur, correlation=self.correlation, stream=7)
        self.device = max(self.device, start + dur)

    def span(self, cat: str, name: str, tid: int, work: Any, **args: Any) -> float:
        """Do something within a range of a thread, and return when it began."""
        start = self.now[tid]
        self.now[tid] += 1
        work()
        self.now[tid] += 1
        self.event(cat, name, tid, start, self.now[tid] - start, **args)
        return start


LAYERS = (("embedding", 1.0), ("layer 4", 10.0), ("layer 5", 20.0), ("head", 7.0))


def forward(writer: Writer, name: str, dur: float, sequence: int) -> float:
    """Write the forward of a layer, and return when its operation began."""

    def operation() -> None:
        writer.kernel(MAIN, dur)
        writer.kernel(MAIN, 5, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL")

    began = 0.0

    def within() -> None:
        nonlocal began
        known = {"Sequence number": sequence, "Fwd thread id": 0}
        began = writer.span("cpu_op", "aten::linear", MAIN, operation, **known)

    writer.span("user_annotation", name, MAIN, within)
    return began


def backward(writer: Writer, dur: float, sequence: int, forward_began: float, *, arrows: bool) -> None:
    """Write the backward of a layer, linked to its forward by an arrow or by the sequence number alone."""

    def inner() -> None:
        began = writer.span("cpu_op", "AddmmBackward0", AUTOGRAD, lambda: writer.kernel(AUTOGRAD, dur))
        arrow = {"cat": "fwdbwd", "name": "fwdbwd", "id": sequence, "pid": 1}
        if arrows:
            writer.events.append({**arrow, "ph": "s", "tid": MAIN, "ts": forward_began})
            writer.events.append({**arrow, "ph": "f", "tid": AUTOGRAD, "ts": began})

    known = {} if arrows else {"Sequence number": sequence, "Fwd thread id": 1}
    writer.span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", AUTOGRAD, inner, **known)


def step(writer: Writer, scale: float, *, arrows: bool, first: int) -> None:
    """Write one training step: embedding, two layers, head; backward, update."""
    began = [forward(writer, name, dur * scale, first + place) for place, (name, dur) in enumerate(LAYERS)]
    writer.now[AUTOGRAD] = writer.now[MAIN]
    for place in reversed(range(len(LAYERS))):
        backward(writer, 2 * LAYERS[place][1] * scale, first + place, began[place], arrows=arrows)
    writer.now[MAIN] = writer.now[AUTOGRAD]
    writer.span("user_annotation", "Optimizer.step#AdamW.step", MAIN, lambda: writer.kernel(MAIN, 8 * scale))


def trace(path: Path, *, arrows: bool = True, scales: tuple[float, ...] = (1, 3, 1.5)) -> Path:
    """Write a trace of several steps."""
    writer = Writer()
    for number, scale in enumerate(scales):
        step(writer, scale, arrows=arrows, first=10 * number)
    return written(path, writer.events)


def written(path: Path, events: Any) -> Path:
    """Write events as a trace."""
    data = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": events}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize("arrows", [True, False])
def test_a_layer_takes_the_median_of_what_its_kernels_take(tmp_path: Path, arrows: bool) -> None:
    rows = layers_from_trace(trace(tmp_path / "t.json", arrows=arrows), MARKS, microbatch=4, tp=2, model="m")
    assert [(row.first_layer, row.last_layer) for row in rows] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert [row.forward_s for row in rows] == pytest.approx([1.5e-6, 15e-6, 30e-6, 10.5e-6])
    assert [row.backward_s for row in rows] == pytest.approx([3e-6, 30e-6, 60e-6, 21e-6])
    assert [row.update_s for row in rows] == pytest.approx([3e-6] * 4)
    assert {(row.microbatch, row.tp, row.gpu, row.model) for row in rows} == {(4, 2, "NVIDIA H200", "m")}


def test_layers_are_numbered_as_marked_where_no_ends_are_named(tmp_path: Path) -> None:
    rows = layers_from_trace(trace(tmp_path / "t.json"), Marks(), microbatch=1, gpu="X")
    assert [(row.first_layer, row.gpu) for row in rows] == [(4, "X"), (5, "X")]


def test_kernels_beside_one_another_count_once(tmp_path: Path) -> None:
    writer = Writer()

    def both() -> None:
        writer.kernel(MAIN, 10)
        writer.kernel(MAIN, 10, beside=True)

    writer.span(
        "user_annotation", "layer 0", MAIN, lambda: writer.span("cpu_op", "op", MAIN, both, **{"Sequence number": 1})
    )
    evaluate = {"Sequence number": 1, "Fwd thread id": 1}
    writer.span(
        "cpu_op", "autograd::engine::evaluate_function: F", AUTOGRAD, lambda: writer.kernel(AUTOGRAD, 4), **evaluate
    )
    (row,) = layers_from_trace(written(tmp_path / "t.json", writer.events), Marks(), microbatch=1)
    assert (row.forward_s, row.backward_s) == pytest.approx((10e-6, 4e-6))


def test_what_checkpointing_computes_again_is_part_of_backward(tmp_path: Path) -> None:
    writer = Writer()
    known = {"Sequence number": 3}

    def forward(tid: int) -> None:
        writer.span(
            "user_annotation",
            "layer 0",
            tid,
            lambda: writer.span("cpu_op", "op", tid, lambda: writer.kernel(tid, 6), **known),
        )

    def backward() -> None:
        forward(AUTOGRAD)
        evaluate = {"Sequence number": 3, "Fwd thread id": 2}
        writer.span(
            "cpu_op", "autograd::engine::evaluate_function: F", AUTOGRAD, lambda: writer.kernel(AUTOGRAD, 9), **evaluate
        )

    forward(MAIN)
    checkpoint = {"Sequence number": 2, "Fwd thread id": 1}
    writer.span(
        "cpu_op", "autograd::engine::evaluate_function: CheckpointFunctionBackward", AUTOGRAD, backward, **checkpoint
    )
    (row,) = layers_from_trace(written(tmp_path / "t.json", writer.events), Marks(), microbatch=1)
    assert (row.forward_s, row.backward_s) == pytest.approx((6e-6, 15e-6))


def test_a_compressed_trace_and_a_bare_list_are_read(tmp_path: Path) -> None:
    plain = trace(tmp_path / "t.json")
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(json.loads(plain.read_text())["traceEvents"]))
    expected = layers_from_trace(plain, MARKS, microbatch=1, gpu="")
    assert layers_from_trace(packed, MARKS, microbatch=1, gpu="") == expected
    assert layers_from_trace(bare, MARKS, microbatch=1) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "the trace bad.json cannot be read: "),
        ('{"events": []}', "has no list of traceEvents"),
        ('{"traceEvents": []}', "has no range named 'layer {layer}'; it has no named ranges; mark layers by"),
    ],
)
def test_a_faulty_trace_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        layers_from_trace(path, Marks(), microbatch=1)


def test_a_trace_without_what_is_asked_for_says_what_it_has(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.json")
    with pytest.raises(UsageError, match=r"it has Optimizer.step#AdamW.step, embedding, head, layer 4, layer 5; mark"):
        layers_from_trace(path, Marks("block_{layer}"), microbatch=1)
    data = json.loads(path.read_text())
    forward_alone = [event for event in data["traceEvents"] if event["tid"] != AUTOGRAD]
    with pytest.raises(UsageError, match=r"t.json has no backward kernels of layer 4; profile whole training steps"):
        layers_from_trace(written(path, forward_alone), Marks(), microbatch=1)


def test_a_sequence_number_that_is_none_is_refused(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.json", arrows=False)
    path.write_text(path.read_text().replace('"Sequence number": 1', '"Sequence number": "1e9"', 1))
    with pytest.raises(UsageError, match=r"damaged: event \d+ must have numbers"):
        layers_from_trace(path, MARKS, microbatch=1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"layer": "layer"}, 'must have "{layer}" where its number is'),
        ({"head": "head"}, "embedding and head go together"),
    ],
)
def test_marks_that_mean_nothing_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Marks(**given)


def test_the_command_writes_a_table_that_prices_a_run(tmp_path: Path) -> None:
    path, out = trace(tmp_path / "t.json"), tmp_path / "layers.csv"
    options = ["--microbatch", "4", "--embedding", "embedding", "--head", "head", "--out", str(out)]
    result = CliRunner().invoke(app, ["hw", "layers-from-trace", str(path), *options])
    assert result.exit_code == 0, result.output
    assert "4 layers, forward 0.057 ms, backward 0.114 ms, update 0.012 ms" in result.output
    model = mt.Transformer(num_layers=2, hidden_size=64, num_heads=4, vocab_size=512, seq_len=32)
    run = mt.simulate("ddp", world_size=1, workload=model, global_batch_size=4, prices=mt.MeasuredLayers.read(out))
    assert sum(event.duration for event in run.logs[0] if event.typ == "forward") == pytest.approx(57e-6)


def kinds_of_trace(kind: str) -> dict[str, str]:
    """Return what the ranges of `LAYERS` are called in an unmarked trace of a kind."""
    names = {name: f"nothing {place}" for place, (name, _) in enumerate(LAYERS)}
    if kind == "modules":
        names |= {"layer 4": "nn.Module: TransformerLayer_0", "layer 5": "nn.Module: TransformerLayer_1"}
    return names


def unmarked(path: Path, kind: str) -> Path:
    """Write the trace of `trace` as frameworks write it, that is without our marks."""
    data = json.loads(trace(path).read_text())
    events, names = [], kinds_of_trace(kind)
    for event in data["traceEvents"]:
        name = event["name"]
        if kind == "FSDP" and name.startswith("layer "):  # hooks at both ends of the forward, and no range around it
            module = f"model.layers.{int(name[6:]) - 4}"
            events.append({**event, "name": f"FSDP::pre_forward ({module})", "dur": 0.5})
            events.append({**event, "name": f"FSDP::post_forward ({module})", "ts": event["ts"] + event["dur"] - 0.5})
            events[-1]["dur"] = 0.5
        elif name in names:
            events.append({**event, "name": names[name], "cat": "python_function"})
        elif event["cat"] == "kernel" and not name.startswith("nccl"):
            same = {10.0, 20.0, 30.0, 60.0, 15.0}  # forward of layers; what is twice as long is backward
            is_layer = event["dur"] in same or event["dur"] / 2 in same
            events.append({**event, "name": "gemm" if is_layer else f"other {event['dur']}"})
        else:
            events.append(event)
    return written(path, events)


@pytest.mark.parametrize(
    ("kind", "by"),
    [("FSDP", "the ranges of FSDP"), ("modules", "the calls of modules"), ("order", "the order of kernels")],
)
def test_layers_of_a_trace_that_nobody_marked_are_found(tmp_path: Path, kind: str, by: str) -> None:
    found = TracedLayers.read(unmarked(tmp_path / "t.json", kind))
    assert found.found_by == by
    assert found.coverage == pytest.approx(1.0)
    marked = layers_from_trace(trace(tmp_path / "marked.json"), MARKS, microbatch=4)
    assert found.rows(microbatch=4) == marked


def test_a_part_of_the_layers_stands_for_all(tmp_path: Path) -> None:
    rows = TracedLayers.read(trace(tmp_path / "t.json"), MARKS).rows(microbatch=4, num_layers=80)
    assert [(row.first_layer, row.last_layer) for row in rows] == [(0, 0), (1, 80), (81, 81)]
    assert [row.forward_s for row in rows] == pytest.approx([1.5e-6, 22.5e-6, 10.5e-6])
    inner = TracedLayers.read(trace(tmp_path / "t.json")).rows(microbatch=4, num_layers=80)
    assert [(row.first_layer, row.last_layer) for row in inner] == [(0, 79)]


def test_the_norm_of_gradients_is_part_of_the_update(tmp_path: Path) -> None:
    writer = Writer()
    step(writer, 1, arrows=True, first=0)
    optimizer = writer.events.pop(next(i for i, e in enumerate(writer.events) if e["name"].startswith("Optimizer")))
    without = TracedLayers.read(written(tmp_path / "t.json", writer.events), Marks("layer {layer}")).update_s
    writer.events.append(optimizer)
    writer.kernel(MAIN, 3, "norm")
    writer.span("user_annotation", "Optimizer.step#AdamW.step", MAIN, lambda: writer.kernel(MAIN, 8))
    events = [{**event, "name": event["name"].replace("layer ", "nn.Module: Block_")} for event in writer.events]
    found = TracedLayers.read(written(tmp_path / "t.json", events))
    assert without == 0.0
    assert found.update_s == pytest.approx((8e-6 + 11e-6) / 2)


def test_kernels_that_never_come_again_are_no_layers(tmp_path: Path) -> None:
    writer = Writer()
    forward(writer, "anything", 5, 0)
    path = written(tmp_path / "t.json", writer.events)
    with pytest.raises(UsageError, match=r"no sequence of kernels comes again forward; profile whole training steps"):
        TracedLayers.read(path)


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ({"Net": 1, "Block": 3, "Linear": 6}, "Block"),
        ({"Wrapper": 2, "TransformerBlock": 2, "TransformerLayer": 8, "Linear": 32}, "TransformerLayer"),
        ({"Stage": 4, "Dense": 8}, "Stage"),
    ],
)
def test_the_class_that_a_model_consists_of_is_its_layer(tmp_path: Path, calls: dict[str, int], kind: str) -> None:
    writer = Writer()
    for phase in ("cpu_op", "autograd"):  # forward and backward of eight kernels
        for place in range(32):
            if phase == "autograd":
                evaluate = "autograd::engine::evaluate_function: F"
                known = {"Sequence number": 31 - place}
                writer.span("cpu_op", evaluate, AUTOGRAD, lambda: writer.kernel(AUTOGRAD, 2), **known)
            else:
                known = {"Sequence number": place}
                writer.span("cpu_op", "aten::mm", MAIN, lambda: writer.kernel(MAIN, 1), **known)
    forwards = sorted(event["ts"] for event in writer.events if event["name"] == "aten::mm")
    ends = [*forwards[1:], forwards[-1] + 4]
    for name, count in calls.items():
        for number in range(count):
            first, last = number * 32 // count, (number + 1) * 32 // count - 1
            start = forwards[first] - 0.5
            writer.event("python_function", f"nn.Module: {name}_{number}", MAIN, start, ends[last] - 0.75 - start)
    found = TracedLayers.read(written(tmp_path / "t.json", writer.events))
    assert len(found.layers) == calls[kind]


@pytest.mark.ci
@pytest.mark.torch
def test_traces_as_torch_writes_them_are_read(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = Path(__file__).with_name("write_torch_traces.py")
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True, timeout=240)
    found = {kind: TracedLayers.read(tmp_path / f"{kind}.json") for kind in ("fsdp", "ddp", "plain")}
    assert [each.found_by for each in found.values()] == [
        "the ranges of FSDP", "the calls of modules", "the order of kernels"
    ]  # fmt: skip
    for each in found.values():
        rows = each.rows(microbatch=8)
        assert [row.first_layer for row in rows] == [0, 1, 2, 3, 4]
        assert all(row.forward_s > 0 and row.backward_s > 0 and row.update_s > 0 for row in rows)
        assert each.coverage > 0.95


def test_layers_of_fsdp_on_a_gpu_take_what_they_take_without_it() -> None:
    """A trace of one step of torch 2.11 on an H100; without FSDP the same layers took 0.232 and 0.504 ms."""
    found = TracedLayers.read(Path(__file__).with_name("h100_fsdp_trace.json.gz"))
    rows = found.rows(microbatch=4)
    assert found.found_by == "the ranges of FSDP"
    assert [row.first_layer for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row.forward_s for row in rows[1:5]] == pytest.approx([0.232e-3] * 4, rel=0.02)
    assert [row.backward_s for row in rows[1:5]] == pytest.approx([0.504e-3] * 4, rel=0.02)
    assert found.coverage > 0.99
