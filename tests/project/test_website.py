"""The docs as a site: what happens to the Markdown on its way, and that links that lead nowhere are found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import website

import minitrain as mt


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that Sphinx would read."""
    folder = tmp_path_factory.mktemp("source")
    website.sources(folder, lab=True)
    return folder


def test_every_page_is_in_the_sidebar_once(source: Path) -> None:
    listed = [name for names in website.TOPICS.values() for name in names]
    written = {path.relative_to(source).with_suffix("").as_posix() for path in source.rglob("*.md")} - {"index"}
    assert sorted(listed) == sorted(written)


def test_a_link_to_another_file_leads_to_a_copy_of_it(source: Path) -> None:
    index = (source / "index.md").read_text()
    assert "[strategies/ddp.py](path:files/strategies/ddp.py.txt)" in index
    assert (source / "files/strategies/ddp.py.txt").read_text() == (website.ROOT / "strategies/ddp.py").read_text()
    assert "(docs/explore.md)" in index


def test_a_picture_has_its_dark_one_beside_it(source: Path) -> None:
    text = (source / "docs/traces.md").read_text()
    assert "```{image} heat-light.png" in text
    assert "```{image} heat-dark.png" in text
    assert (source / "docs/heat-dark.png").is_file()


def test_the_lab_below_a_strategy_runs_that_strategy(source: Path, tmp_path: Path) -> None:
    found = re.search(r'src="(lab/index\.html)#([^"]*)"', (source / "index.md").read_text())
    assert found is not None
    state = {name: value[0] for name, value in parse_qs(found[2].replace("&amp;", "&")).items()}
    assert "async def my_fsdp(model)" in state["source"]
    file = tmp_path / "shown.py"
    file.write_text(state["source"])
    sizes: dict[str, Any] = {name: int(state[name]) for name in ("world_size", "num_layers", "global_batch_size")}
    assert mt.simulate(str(file), **sizes).step_time > 0


def test_the_reference_names_all_that_is_exported(source: Path) -> None:
    text = (source / "docs/reference.md").read_text()
    assert {"simulate", "Run", "LawError", "Transformer"} <= set(re.findall(r":: minitrain\.(\w+)$", text, re.M))


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#here"></a><a href="b.html#gone"></a><img src="no.png">')
    (tmp_path / "b.html").write_text('<p id="here"></p><a href="https://example.org"></a><a href="#here"></a>')
    assert list(website.broken(tmp_path)) == ["a.html: b.html#gone", "a.html: no.png"]


def test_versions_are_listed_newest_first(tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    website.list_versions(tmp_path)
    assert json.loads((tmp_path / "versions.json").read_text()) == ["0.10.0", "0.9.0"]
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()
