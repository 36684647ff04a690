"""SOURCES.md gives a source for every figure of every shipped config, and quotes the figure as the file has it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from minitrain.machine import shipped_configs

FOLDER = Path(__file__).parents[2] / "hw_configs"
KINDS = re.compile(
    r"assumed: |derived: |et al. 20|\(GitHub\)|calculon|NVIDIA|AMD|AWS|Google Cloud|Intel|Espressif|no figure: |"
    "the FP32 rate"
)


def documented(name: str) -> dict[str, tuple[str, str]]:
    """Return value and source by key path, from a config's section."""
    section = (FOLDER / "SOURCES.md").read_text("utf-8").split(f"\n## {name}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| (.+) \|$", section, re.MULTILINE)
    return {path: (value, source) for path, value, source in rows}


def leaves(value: Any, path: str = "") -> list[str]:
    """Return the key paths of a config's figures; the rows of an efficiency curve or operation are one figure."""
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key], f"{path}.{key}" if path else key)]
    if isinstance(value, list) and isinstance(value[0], dict):
        return [leaf for place, item in enumerate(value) for leaf in leaves(item, f"{path}[{place}]")]
    return [path]


def at(config: Any, path: str) -> Any:
    if path in config:
        return config[path]  # of a config that is like another one
    for key in re.findall(r"[^.\[\]]+", path):
        config = config[int(key)] if isinstance(config, list) else config[key]
    return config


@pytest.mark.parametrize("name", shipped_configs())
def test_every_figure_has_a_source(name: str) -> None:
    config, paths = json.loads((FOLDER / f"{name}.json").read_text()), documented(name)
    bare = [
        leaf for leaf in leaves(config) if not any(re.match(re.escape(path) + r"(\.|\[|$)", leaf) for path in paths)
    ]
    assert bare == []


@pytest.mark.parametrize("name", shipped_configs())
def test_every_source_quotes_its_figure_and_says_what_it_is(name: str) -> None:
    config = json.loads((FOLDER / f"{name}.json").read_text())
    for path, (value, source) in documented(name).items():
        assert json.loads(value) == at(config, path), path
        assert KINDS.search(source), (path, source)


def test_a_device_without_fp16_says_that_float16_is_its_bf16_peak() -> None:
    assert "bf16" in documented("tpu_v5p")["matrix.float16.tflops"][1]


def test_sections_and_shipped_files_are_the_same() -> None:
    sections = re.findall(r"^## (\S+)$", (FOLDER / "SOURCES.md").read_text("utf-8"), re.MULTILINE)
    assert sections == shipped_configs()
