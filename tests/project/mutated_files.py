"""Files of every kind that minitrain reads, and what can be wrong with them: for `test_mutated_files.py`."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import minitrain as mt
from minitrain.evidence.rows import read_rows as read_table
from minitrain.evidence.rows import require_known
from minitrain.learn.budgets import budget_for
from minitrain.learn.classes import with_grades
from minitrain.learn.exercise import load_exercise
from minitrain.learn.sandbox import source_of
from minitrain.machine import load_config
from minitrain.machine.devices.calibration import Notebook
from minitrain.machine.given_durations import Calibration, Line
from minitrain.machine.platform.profile import read_models
from minitrain.machine.platform.scenario import Scenario
from minitrain.machine.platforms import Platform
from minitrain.machine.profiler_traces import TracedLayers
from minitrain.run.contributions import Contribution
from minitrain.run.strategy_loading import load_strategy
from minitrain.search.sweeps.sweep import read_results, writing
from minitrain.search.tuning.findings import of_calculon
from minitrain.tensors.expert_load import as_imbalance, expert_load
from minitrain.workloads.documents import Documents
from minitrain.workloads.exchange.reading import read_recipe
from tests.machine.test_profiler_traces import MARKS, trace

SHIPPED = Path(load_exercise("02").folder)
CONFIG = resources.files("minitrain.hw_configs").joinpath("h100_80g_nvl8.json").read_text("utf-8")
CLUSTER = (
    "groups:\n- name: new\n  kind: h100_80g_nvl8\n  count: 2\n- name: old\n  kind: a100_80g\n  count: 2\n"
    "between_groups: {bytes_per_s: 3.1e+9, latency_s: 20.0e-6}\n"
)
RECIPE = '[model]\nname = "llama3"\nflavor = "8B"\n\n[training]\nseq_len = 8192\nlocal_batch_size = 1\n'
CASE = {"world_size": 2, "num_layers": 3, "global_batch_size": 8}
ROW = {"strategy": "ddp", "step_time": 0.5, "error": None}
TABLE = "row_id,framework,model,n_gpus,gpu,gbs,seq_len,step_time_s\na,fsdp,llama3-8b,8,H100,16,8192,5.5\n"
LAYERS = "microbatch,tp,first_layer,last_layer,forward_s,backward_s,update_s\n1,1,0,33,0.01,0.02,0.001\n"
HUGGING_FACE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "hidden_act": "silu",
}  # fmt: skip
CONTRIBUTION = {
    "strategy": "ddp", "world_size": 2, "num_layers": 4, "global_batch_size": 64, "workload": "rows:512",
    "hardware": "", "digest": "0", "backend": "gloo", "machine": {"machine": "a machine"}, "versions": {},
    "step_times_s": [9.0, 1.0], "losses": [1.0], "peak_memory_bytes": 1e6, "memory_by_kind": {},
}  # fmt: skip
EXECUTION = {
    "num_procs": 8, "tensor_par": 2, "pipeline_par": 2, "data_par": 2, "batch_size": 16, "microbatch_size": 1,
    "activation_recompute": "full", "pipeline_interleaving": 1, "optimizer_sharding": True,
    "tensor_par_comm_type": "ar", "tensor_par_overlap": "none", "data_par_overlap": False, "training": True,
}  # fmt: skip
SCENARIO = {
    "hardware": "h100_80g_nvl8", "world_size": 2,
    "tasks": [{"task_id": "a", "compute": "gpu0", "flops_required_fp16": 1e12, "memory_read_bytes": 1e9}],
}  # fmt: skip
NOTEBOOK = {
    "cells": [{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": ["x = 1"]}],
    "metadata": {}, "nbformat": 4, "nbformat_minor": 5,
}  # fmt: skip
LINE = Line((1e-4, 2e-11, 1e-10), (), (), 0.0, 1)
CALIBRATION = Calibration("a machine", 2, 2, {"forward": LINE}, 1e-5, 0.1, 0.1, 1.0, (1.0,), ("a",), 0.1)


class Reader(NamedTuple):
    """One kind of file.

    Args:
        name: of the file, whose ending counts.
        text: a file that is right.
        read: reads it.
    """

    name: str
    text: str
    read: Callable[[Path], Any]


def _of_exercise(name: str) -> Callable[[Path], Any]:
    """Return what reads an exercise of which one file is the given one."""

    def read(path: Path) -> Any:
        folder = path.parent / Path(name).stem / "01_ddp"
        folder.mkdir(exist_ok=True, parents=True)
        (folder / name).unlink(missing_ok=True)
        for known in {"exercise.json", "reference.py", "statement.md"} - {name}:
            (folder / known).write_text((SHIPPED / known).read_text())
        (folder / name).symlink_to(path.absolute())
        exercise = load_exercise(folder)
        return budget_for(exercise, exercise.public[0]) if name == "budgets.json" else exercise

    return read


def _saved_run(folder: Path) -> str:
    """Return a run file."""
    path = folder / "run.jsonl"
    mt.simulate("ddp", world_size=2, num_layers=1, global_batch_size=2).save(path)
    return path.read_text()


def _rows(path: Path) -> str:
    """Return the rows of a sweep."""
    with writing(path) as write:
        write("a", ROW)
    return path.read_text()


SMALL: dict[str, Any] = {"world_size": 2, "global_batch_size": 2}


def _simulated(**parameters: Any) -> Any:
    """Simulate with what was read; require finite figures."""
    run = mt.simulate(
        "ddp", check=False, **SMALL | ({} if "workload" in parameters else {"num_layers": 2}) | parameters
    )
    json.dumps(run.summary(), allow_nan=False)
    return run


def _of_hugging_face(path: Path) -> Any:
    """Simulate a layer or two of a model."""
    read = mt.Transformer.from_hf(path)
    return read if read.num_layers > 100 else _simulated(workload=read, seq_len=16)


def _as_json(data: Any, **more: Any) -> str:
    return json.dumps(data, indent=1, **more)


def _newest(path: Path) -> Any:
    """Read what a checkpoint says of itself."""
    folder = path.parent / "step-1"
    folder.mkdir(exist_ok=True)
    (folder / "minitrain.json").unlink(missing_ok=True)
    (folder / "minitrain.json").symlink_to(path.absolute())
    pytest.importorskip("torch")
    from minitrain.training.checkpoints import Checkpoints

    return Checkpoints(path.parent, 1, {"world_size": 2}).newest()


def _routed(path: Path) -> Any:
    """Return what experts get."""
    return [expert_load(2, 1, imbalance=as_imbalance(str(path), layer, (0, 1))) for layer in (0, 1)]


def _table(path: Path) -> Any:
    """Read a table, cell by cell."""
    return [require_known(row) for row in read_table(path)]


def readers(folder: Path) -> dict[str, Reader]:
    """Return all kinds of files, with one of each that is right."""
    CALIBRATION.write(folder / "calibration.json")
    exercise = load_exercise("02")
    budgets = {case.key: asdict(budget_for(exercise, case)) for case in exercise.public[:1]}
    platform = {"name": "mine", "about": "what it is"}
    return {
        "hardware config": Reader("config.json", CONFIG, lambda path: _simulated(hardware=load_config(path))),
        "cluster": Reader("cluster.yaml", CLUSTER,
                          lambda path: _simulated(hardware=mt.Cluster.load(path), world_size=4, global_batch_size=4)),
        "calibration": Reader("calibration.json", (folder / "calibration.json").read_text(), Calibration.read),
        "platform": Reader("platform.json", _as_json(platform), Platform.read),
        "measurements": Reader("measured.json", _as_json({"about": {}, "measured": {"a": 1.0}}), Notebook),
        "models of the platform": Reader("models.json", resources.files("minitrain.machine.platform").joinpath(
            "configs", "model_params.json").read_text("utf-8"), read_models),
        "scenario": Reader("scenario.json", _as_json(SCENARIO), lambda path: Scenario.read(path).run()),
        "trace": Reader("trace.json", trace(folder / "trace.json", scales=(1,)).read_text(),
                        lambda path: TracedLayers.read(path, MARKS).rows(microbatch=1)),
        "model of Hugging Face": Reader("config.json", _as_json(HUGGING_FACE), _of_hugging_face),
        "adapters of PEFT": Reader("adapter_config.json", _as_json({"peft_type": "LORA", "r": 16, "lora_alpha": 32,
                                   "target_modules": ["q_proj"]}), mt.read_lora),
        "recipe": Reader("recipe.toml", RECIPE, read_recipe),
        "schedule": Reader("schedule.csv", mt.schedules.gpipe(2, 2).to_csv(), lambda path: load_strategy(str(path))),
        "execution of Calculon": Reader("execution.json", _as_json(EXECUTION), of_calculon),
        "rows of a sweep": Reader("rows.jsonl", _rows(folder / "rows.jsonl"), read_results),
        "table of validate": Reader("table.csv", TABLE, _table),
        "run file": Reader("run.jsonl", _saved_run(folder), lambda path: mt.load_run(path).summary()),
        "measured run": Reader("run.json", _as_json(CONTRIBUTION), Contribution.read),
        "checkpoint": Reader("checkpoint.json", _as_json({"steps": 1, "world_size": 2}), _newest),
        "exercise": Reader("exercise.json", (SHIPPED / "exercise.json").read_text(), _of_exercise("exercise.json")),
        "hidden sizes": Reader("hidden.json", _as_json([CASE]), _of_exercise("hidden.json")),
        "budgets": Reader("budgets.json", _as_json(budgets), _of_exercise("budgets.json")),
        "prices": Reader("layers.csv", LAYERS, mt.MeasuredLayers.read),
        "documents": Reader("documents.txt", "812\n33\n1024\n", lambda path: Documents.read(str(path))),
        "loads of experts": Reader("loads.txt", "3,1\n2,2\n", _routed),
        "students": Reader("students.csv", "Student,ID\nDoe,7\n", lambda path: with_grades(path, [])),
        "notebook": Reader("work.ipynb", _as_json(NOTEBOOK), source_of),
    }  # fmt: skip


_NUMBERS = re.compile(r"(?<=: )-?[0-9][0-9.e+-]*(?=[,\n}\]])")
_INSTEAD = {
    "not a number": "NaN", "without end": "Infinity", "too large for a float": "1e999", "negative": "-7",
    "zero": "0", "29 digits": "1" + "0" * 29, "true for a number": "true", "text for a number": '"7"',
    "null for a number": "null", "a list for a number": "[7]", "an object for a number": '{"a": 7}',
}  # fmt: skip
"""What stands in the place of a number."""


def mutations(text: str, *, is_json: bool) -> Iterator[tuple[str, bytes]]:
    """Yield what can be wrong with a text, and the bytes that are then in the file."""
    raw = text.encode()
    yield "nothing", raw
    yield "byte order mark", b"\xef\xbb\xbf" + raw
    yield "CR LF", text.replace("\n", "\r\n").encode()
    yield "empty", b""
    yield "cut in the middle", raw[: len(raw) // 2]
    yield "bytes of a picture", bytes(range(256)) * 4
    yield "UTF-16", text.encode("utf-16")
    yield "null bytes", raw.replace(b"\n", b"\n\x00", 1) + b"\x00"
    yield "a damaged archive", b"\x1f\x8b" + raw
    yield "nested 100,000 deep", b"[" * 100_000
    if not is_json:
        return
    is_one = not text.startswith("{") or text.count("\n[") + text.count("\n{") == 0
    data = json.loads(text) if is_one else None
    yield "a list", b"[1, 2]"
    yield "a number", b"7"
    yield "null", b"null"
    keys = [match.span(1) for match in re.finditer(r'"(\w+)":', text)] if isinstance(data, dict) else []
    for number in sorted({0, len(keys) // 2, len(keys) - 1} if keys else ()):
        start, end = keys[number]
        yield f"a key misspelt ({number})", f"{text[:end]}x{text[end:]}".encode()
        yield f"a key twice ({number})", f'{text[:start]}{text[start:end]}": 1, "{text[start:]}'.encode()
    places = [match.span() for match in _NUMBERS.finditer(text)]
    for what, instead in _INSTEAD.items():
        for number in sorted({0, len(places) // 2, len(places) - 1} if places else ()):
            start, end = places[number]
            yield f"{what} ({number})", (text[:start] + instead + text[end:]).encode()


_PIECES = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"null", b"true"]
_PIECES += [b"\xff", b"\x00", b"\xef\xbb\xbf", b"[" * 5000, b'{"a":' * 3000, b"9" * 5000, b'"name": 1,', b"\\ud800"]


def damaged(source: random.Random, text: bytes) -> bytes:
    """Return a text with some of it replaced, doubled, moved or removed."""
    for _ in range(source.randint(1, 4)):
        start = source.randrange(len(text) + 1)
        end = min(len(text), start + source.choice([0, 1, 2, 4, 8, 20, 60]))
        piece = source.choice([b"", source.choice(_PIECES), text[start:end] * 2, bytes([source.randrange(256)])])
        text = text[:start] + piece + text[end:]
    return text


_HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 0.5, -0.0, 5e-324, 1e-300, 1e300, -1e308, float("inf"), float("nan"),
    2**31, 2**53 + 1, 2**63, 10**29, 10**400, "", " ", "7", "nan", "x" * 100_000, "\ud800", "\0", "\x1b[31m", "a\nb",
    "../..", "/dev/zero",
    "__class__", [], {}, [[]], [None], {"a": 1}, {"": None}, [0] * 10_000, ["x"] * 3,
]  # fmt: skip
_WORDS = re.compile(r"[\w.+-]+")
_FIGURES = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
Places = list[tuple[Any, Any]]


def _places(data: Any) -> Places:
    """Return the containers in JSON data, each with one of its keys."""
    keys = list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    return [place for key in keys for place in ((data, key), *_places(data[key]))]


def _as_data(change: Callable[[random.Random, Places], None]) -> Callable[[random.Random, str], bytes]:
    """Return what damages the data of a JSON text or of one of its lines; of another text it replaces a word."""

    def damage(source: random.Random, text: str) -> bytes:
        lines = text.splitlines() if text.count("\n{") + text.count("\n[") else [text]
        place = source.randrange(len(lines))
        try:
            data = [json.loads(lines[place])]
        except ValueError:
            return _replaced(_WORDS, source, text)
        change(source, _places(data))
        return "\n".join([*lines[:place], json.dumps(*data), *lines[place + 1 :]]).encode()

    return damage


def _value(source: random.Random, places: Places) -> None:
    """Replace a value."""
    data, key = source.choice(places)
    data[key] = source.choice(_HOSTILE)


def _key(source: random.Random, places: Places) -> None:
    """Remove, misspell or add a key, or give it what belongs to another one."""
    objects = [place for place in places if isinstance(place[0], dict)]
    if not objects:
        return _value(source, places)
    data, key = source.choice(objects)
    new = source.choice([None, f"{key}x", key[:-1], source.choice(objects)[1], "__class__", "", "\0", " " + key])
    value = data.pop(key) if source.random() < 0.7 else data[key]
    if new is not None:
        data[new] = value
    return None


def _structure(source: random.Random, places: Places) -> None:
    """Let two values change places, or double, wrap or empty one."""
    (data, key), (other, its) = source.choice(places), source.choice(places)
    value = data[key]
    doubled = value * 2 if isinstance(value, list | str) else value
    many = value[:1] * 5000 if isinstance(value, list) else value
    emptied = type(value)() if isinstance(value, list | dict | str) else value
    changed = source.choice([None, [value], {"a": value}, doubled, many, emptied])
    if changed is not None:
        data[key] = changed
    elif other[its] not in (data, value) and json.dumps(other[its]) not in json.dumps(value):
        data[key] = json.loads(json.dumps(other[its]))  # a copy, so that there is no circle


def _lines(source: random.Random, text: str) -> bytes:
    """Remove, double, move or cut lines, or their fields."""
    lines = text.splitlines(keepends=True)
    for _ in range(source.randint(1, 3)):
        place, other = source.randrange(len(lines)), source.randrange(len(lines))
        line = lines[place]
        fields = line.split(",")
        less, more = ",".join(fields[1:]), ",".join([*fields, *fields])
        lines[place : place + 1] = source.choice(
            [[], [line] * 2, [lines[other]], [less], [more], [line.strip()], ["\n"]]
        )
        lines = lines or [""]
    return "".join(lines).encode()


def _replaced(pattern: re.Pattern[str], source: random.Random, text: str) -> bytes:
    """Replace something in a text by a hostile value."""
    found = list(pattern.finditer(text))
    if not found:
        return text.encode() * 2
    start, end = source.choice(found).span()
    value = source.choice(_HOSTILE)
    written = value if isinstance(value, str) and source.random() < 0.5 else json.dumps(value)
    return f"{text[:start]}{written}{text[end:]}".encode(errors="surrogatepass")


DAMAGES: dict[str, Callable[[random.Random, str], bytes]] = {
    "bytes": lambda source, text: damaged(source, text.encode()),
    "a value": _as_data(_value),
    "a key": _as_data(_key),
    "structure": _as_data(_structure),
    "lines": _lines,
    "a number": lambda source, text: _replaced(_FIGURES, source, text),
    "twice": lambda source, text: _replaced(
        _FIGURES, source, _as_data(source.choice([_value, _key]))(source, text).decode(errors="replace")
    ),
}
"""What a fuzzer does to a file, by class."""


def odd_places(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield paths that are no files to read."""
    yield "a folder", folder
    pipe = folder / "pipe"
    if not pipe.exists():
        os.mkfifo(pipe)
    yield "a pipe", pipe
    yield "a device", Path("/dev/zero")
    yield "nothing there", folder / "absent"
